"""Kept: things of any kind that are done by many, and their results, which a store may have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from simdp.studies.executor import Done, Executor, Failed
from simdp.studies.store import Store

T = TypeVar("T")
R = TypeVar("R")


def done_in_order(
    function: Callable[[T], R],
    items: Sequence[T],
    *,
    executor: Executor,
    keep: Keep[T, R] | None = None,
) -> Iterator[R]:
    """Do many things of any kind; results come in the order of the items.

    Parameters
    ----------
    function, items
        As of `Executor.each`.
    executor : Executor
        Who does them.
    keep : Keep, optional
        Where each result is written when it is there, and taken from.

    Raises
    ------
    Exception
        That of the first item that fails, when its turn comes.
    """
    found: dict[int, R | Failed] = {} if keep is None else keep.taken(items)
    waiting = [number for number in range(len(items)) if number not in found]
    outcomes = executor.each(function, [items[number] for number in waiting])
    for wanted in range(len(items)):
        while wanted not in found:
            place, outcome = next(outcomes)
            number = waiting[place]
            found[number] = outcome if isinstance(outcome, Failed) else outcome.value
            if keep is not None and isinstance(outcome, Done):
                keep.put(items[number], outcome.value)
        one = found.pop(wanted)
        if isinstance(one, Failed):
            raise one.error
        yield one


class Keep(Generic[T, R]):
    """How results of some kind are kept in a store.

    Parameters
    ----------
    store : Store
        Where.
    key : callable
        Names an item by all that its result depends on.
    kind : type
        Of the results: dataclasses, named tuples and what they consist of.
    """

    def __init__(self, store: Store, key: Callable[[T], str], kind: Any) -> None:
        self.store, self.key = store, key
        self._adapter: TypeAdapter[R] = TypeAdapter(kind)

    def taken(self, items: Sequence[T]) -> dict[int, R | Failed]:
        """Results that are there, by the numbers of their items."""
        found: dict[int, R | Failed] = {}
        for number, item in enumerate(items):
            kept = self.store.get(self.key(item))
            if kept is None:
                continue
            try:
                found[number] = self._adapter.validate_python(kept["value"])
            except (ValidationError, KeyError):
                self.store.num_found -= 1
        return found

    def put(self, item: T, value: R) -> None:
        """Keep a result."""
        self.store.put(self.key(item), {"value": self._adapter.dump_python(value)})
