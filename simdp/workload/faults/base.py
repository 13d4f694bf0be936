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

    def on_rank(self) -> int:
        """Return the one rank concerned."""
        return self.rank

    def hits(self, rank: int, step: int) -> bool:
        """Whether it happens on this rank in this step, counted from 1."""
        return (rank, step) == (self.rank, self.step)
