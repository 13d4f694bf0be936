"""Executors of many points: in this process, or in several.

A process that dies, as one does that takes more memory than there is, takes whatever is under way
with it. What was under way is then done one by one, so that the item that kills its process is
known, and fails; the others are done.

A process ends with the one that started it, however that ended: a signal such as SIGTERM or SIGKILL
leaves it no time to end them.
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, Self, TypeVar

from simdp.errors import ScenarioError, SimdpError, one_line

# Outcome ------------------------------------------------------------------------------------------

T = TypeVar("T")
R = TypeVar("R")
Value = TypeVar("Value", covariant=True)

NO_MEMORY = "there is not enough memory for this; try fewer ranks, steps or samples."


@dataclass(frozen=True)
class CompletedItem(Generic[Value]):
    """An item that is done.

    Attributes
    ----------
    value
        What the function returned.
    """

    value: Value


@dataclass(frozen=True)
class Failed:
    """An item that failed.

    Attributes
    ----------
    problems : list of str
        Why, one line each.
    error : Exception
        What was raised, or stands for what became of its process.
    """

    problems: list[str]
    error: Exception = field(repr=False, compare=False)

    @property
    def reason(self) -> str:
        """Why, in one line."""
        return one_line("; ".join(self.problems))

    @property
    def exit_status(self) -> int:
        """As of the command line, had it been alone."""
        own = 2 if isinstance(self.error, MemoryError) else 1
        return int(getattr(self.error, "exit_status", own))

    @classmethod
    def of(cls, error: Exception) -> Failed:
        """Say of an error what it means to who asked."""
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
    """Does many things that do not depend on each other; a context manager.

    It may be asked several times; what it needs is started when it is first asked, and ended with
    the context.
    """

    @abstractmethod
    def each(
        self, function: Callable[[T], R], items: Sequence[T]
    ) -> Iterator[tuple[int, CompletedItem[R] | Failed]]:
        """Call a function with every item; what fails is an outcome, not an exception.

        Parameters
        ----------
        function : callable
            Picklable, as are the items and what it returns.
        items : sequence
            What it is called with.

        Yields
        ------
        int, Done or Failed
            The number of an item, from 0, and what became of it: each once, as they finish.
        """

    @property
    def workers(self) -> int:
        """How many items may be under way at once."""
        return 1

    def close(self) -> None:
        """End what was started; nothing where nothing was."""
        return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def attempt(function: Callable[[T], R], item: T) -> CompletedItem[R] | Failed:
    """Call a function here, and say what became of it, in a form that another process can read."""
    try:
        return CompletedItem(function(item))
    except Exception as error:
        return _readable(Failed.of(error))


def _readable(failed: Failed) -> Failed:
    """Replace an error that no other process can make anew."""
    try:
        pickle.loads(pickle.dumps(failed.error))
    except Exception:  # whatever a class of errors does when it is made anew
        return Failed(failed.problems, SimdpError(failed.reason))
    return failed


def in_order(outcomes: Iterator[tuple[int, R]], number: int) -> Iterator[R]:
    """Yield what belongs to items in their order; what comes early waits.

    Parameters
    ----------
    outcomes : iterator of (int, value)
        Each number from 0 once.
    number : int
        How many there are.
    """
    early: dict[int, R] = {}
    for wanted in range(number):
        while wanted not in early:
            index, outcome = next(outcomes)
            early[index] = outcome
        yield early.pop(wanted)


class SerialExecutor(PointExecutor):
    """Does everything in this process, in order."""

    def each(
        self, function: Callable[[T], R], items: Sequence[T]
    ) -> Iterator[tuple[int, CompletedItem[R] | Failed]]:
        for number, item in enumerate(items):
            yield number, attempt(function, item)
