"""Numerical faults that a scenario can inject: NaN and infinity."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Annotated, Literal

from pydantic import Field

from simdp.family import Family
from simdp.spec import Int, Spec, one_of


class Fault(Spec):
    """A value in the first element of the first gradient that a rank's backward finishes."""

    kind: str
    rank: Int = Field(ge=0, le=10**9)
    """From 0."""
    step: Int = Field(ge=1, le=10**9)
    """From 1, as the k of the learning rate lr(k)."""

    @property
    @abstractmethod
    def value(self) -> float:
        """Value that replaces the gradient's element."""

    def happens(self, step: int, world_size: int) -> bool:
        """Whether it happens in this step, counted from 1, of a run with ``world_size`` ranks."""
        return step == self.step and self.rank < world_size


FAULTS: Family[Fault] = Family(
    "faults",
    Fault,
    __name__,
    {
        "inf": "Inf",
        "nan": "Nan",
    },
)
AnyFault = Annotated[Fault, one_of("fault", FAULTS)]


class Inf(Fault):
    """An infinite number in one gradient, as after overflow in 16 bits."""

    kind: Literal["inf"] = "inf"

    @property
    def value(self) -> float:
        return math.inf


class Nan(Fault):
    """A NaN in one gradient, as after 0/0 or inf - inf."""

    kind: Literal["nan"] = "nan"

    @property
    def value(self) -> float:
        return math.nan
