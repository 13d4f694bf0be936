"""Base of executors, and the one that runs in this process.

A process that dies, for example out of memory, loses all items that are in progress. They are then
repeated one by one, so that only the item that kills its process fails.

A child process ends with its parent, however that ends: SIGTERM or SIGKILL leave a parent no time
to end its children.
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, Self, TypeVar

from simdp.errors import ScenarioError, SimdpError, joined, one_line

# Results of items ---------------------------------------------------------------------------------

T = TypeVar("T")
R = TypeVar("R")
Value = TypeVar("Value", covariant=True)

NO_MEMORY = "not enough memory; try fewer ranks, steps or samples."


@dataclass(frozen=True)
class CompletedItem(Generic[Value]):
    """Return value of a finished item."""

    value: Value


@dataclass(frozen=True)
class Failed:
    """An item that failed: problems, one line each, and the exception.

    If its process died, the exception describes that.
    """

    problems: list[str]
    error: Exception = field(repr=False, compare=False)

    @property
    def reason(self) -> str:
        """All problems in one line."""
        return one_line(joined(self.problems))

    @property
    def exit_status(self) -> int:
        """Exit status of the command line for this error."""
        own = 2 if isinstance(self.error, MemoryError) else 1
        return int(getattr(self.error, "exit_status", own))

    @classmethod
    def of(cls, error: Exception) -> Failed:
        """Make it from an exception."""
        if isinstance(error, ScenarioError):
            problems = list(error.problems)
        elif isinstance(error, SimdpError):
            problems = str(error).split("\n")
        elif isinstance(error, MemoryError):
            problems = [NO_MEMORY]
        else:
            problems = [f"{type(error).__name__}: {error}"]
        return cls([one_line(line) for line in problems], error)


class PointExecutor(ABC):
    """Calls a function for many independent items; a context manager.

    It can be used several times; processes start at first use and end with the context.
    """

    @abstractmethod
    def each(
        self, function: Callable[[T], R], items: Sequence[T]
    ) -> Iterator[tuple[int, CompletedItem[R] | Failed]]:
        """Call a function with every item; yield each item's number and result as they finish.

        Function, items and return values are picklable. Failures are results, not exceptions.
        """

    @property
    def workers(self) -> int:
        """Number of items that run at the same time."""
        return 1

    def close(self) -> None:
        """End all processes; a no-op without any."""
        return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def attempt(function: Callable[[T], R], item: T) -> CompletedItem[R] | Failed:
    """Call a function in this process, and return a picklable result."""
    try:
        return CompletedItem(function(item))
    except Exception as error:
        return _readable(Failed.of(error))


def _readable(failed: Failed) -> Failed:
    """Replace an error that cannot be unpickled."""
    try:
        pickle.loads(pickle.dumps(failed.error))
    except Exception:  # unpickling may raise any error
        return Failed(failed.problems, SimdpError(failed.reason))
    return failed


def in_order(outcomes: Iterator[tuple[int, R]], number: int) -> Iterator[R]:
    """Yield ``number`` results in the order of their items, 0, 1, ...; early ones wait."""
    early: dict[int, R] = {}
    for wanted in range(number):
        while wanted not in early:
            index, outcome = next(outcomes)
            early[index] = outcome
        yield early.pop(wanted)


class SerialExecutor(PointExecutor):
    """Calls the function in this process, in order."""

    def each(
        self, function: Callable[[T], R], items: Sequence[T]
    ) -> Iterator[tuple[int, CompletedItem[R] | Failed]]:
        for number, item in enumerate(items):
            yield number, attempt(function, item)
