"""Walk: numbers that are computed bit by bit, beside a script; of one rank, or of all together."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from simdp.arrays import Array
from simdp.engine.threads import each_rank
from simdp.workload.layers.base import PAUSE, Exchange

T = TypeVar("T")
Answer = Callable[[list[Array]], list[Array]]
"""Takes the part of each rank, returns what each is sent."""


class Walk(Generic[T]):
    """Takes a generator's steps; when it begins it goes to the first pause.

    Parameters
    ----------
    steps : generator
        Yields at its pauses, and returns something.
    """

    def __init__(self, steps: Generator[None, None, T]) -> None:
        self._steps = steps
        self._result: T | None = None
        self.step()

    def step(self) -> None:
        """Go on to the next pause, or to the end; after that, nothing."""
        try:
            next(self._steps)
        except StopIteration as stop:
            if stop.value is not None:
                self._result = stop.value

    def result(self) -> T:
        """What the generator has returned."""
        assert self._result is not None, "it is not at its end"
        return self._result


def together(
    scripts: Sequence[Exchange[T]], answer: Answer, num_elements: int
) -> Generator[None, None, list[T]]:
    """Run every rank's script; where they yield, all of them are answered together.

    Where they pause, so does this.

    Parameters
    ----------
    scripts : sequence of generator
        Of each rank: yields parts to exchange, or `PAUSE`.
    answer : callable
        Asked once all have yielded; ranks that are done take part with zeros.
    num_elements : int
        As for `each_rank`.

    Returns
    -------
    list
        What the scripts return, by rank.
    """
    results: list[Any] = [None] * len(scripts)
    waiting = set(range(len(scripts)))
    told: list[Array | None] = [None] * len(scripts)

    def advance(rank: int) -> Array | None:
        if rank not in waiting:
            return None
        try:
            return scripts[rank].send(told[rank])  # type: ignore[arg-type]  # None starts it
        except StopIteration as stop:
            results[rank] = stop.value
            return None

    while waiting:
        parts = each_rank(advance, len(scripts), num_elements)
        waiting = {rank for rank, part in enumerate(parts) if part is not None}
        if any(part is PAUSE for part in parts):
            yield
            told = [None] * len(scripts)
        elif waiting:
            told = list(answer(_filled(parts)))
    return results


def alone(script: Generator[Any, Any, T]) -> T:
    """Run a rank's script that exchanges nothing and does not pause."""
    try:
        next(script)
    except StopIteration as stop:
        found: T = stop.value
        return found
    raise AssertionError("there is nobody to exchange with")


def _filled(parts: Sequence[Array | None]) -> list[Array]:
    """Let ranks that are done take part with zeros."""
    there = next(part for part in parts if part is not None)
    return [np.zeros_like(there) if part is None else part for part in parts]
