"""Walk: numbers that are computed bit by bit, beside a script."""

from __future__ import annotations

from collections.abc import Generator
from typing import Generic, TypeVar

T = TypeVar("T")


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
