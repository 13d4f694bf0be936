"""One rank that computes slower by a constant factor, as a hot or worn device does."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Floats
from simdp.cluster.stragglers.base import Straggler
from simdp.spec import Float, Int


class SlowRank(Straggler):
    """Rank ``rank`` takes ``factor`` times as long for forward and backward.

    Attributes
    ----------
    rank : int
        Which, from 0.
    factor : float
        Above 1 it is slower than the others, below 1 faster.
    """

    kind: Literal["slow_rank"] = "slow_rank"
    rank: Int = Field(ge=0)
    factor: Float = Field(gt=0, le=1e6)

    def on_rank(self) -> int | None:
        return self.rank

    def slowdown(self, step: int, world_size: int, random: np.random.Generator) -> Floats:
        factors = np.ones(world_size)
        factors[self.rank : self.rank + 1] = self.factor  # idle where there is no such rank
        return factors
