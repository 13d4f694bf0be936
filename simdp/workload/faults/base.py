"""Fault: a value that is put into a gradient. The engine puts it there."""

from __future__ import annotations

from abc import abstractmethod

from pydantic import Field

from simdp.spec import Int, Spec


class Fault(Spec):
    """A value in the first element of the first gradient that a rank's backward has ready.

    Attributes
    ----------
    rank : int
        From 0.
    step : int
        From 1, as the k of the learning rate lr(k).
    """

    kind: str
    rank: Int = Field(ge=0, le=10**9)
    step: Int = Field(ge=1, le=10**9)

    @property
    @abstractmethod
    def value(self) -> float:
        """What stands there instead of the gradient."""

    def happens(self, step: int, world_size: int) -> bool:
        """Whether it happens in this step, counted from 1, of a run with so many ranks."""
        return step == self.step and self.rank < world_size
