"""Jitter: each rank's compute time varies from step to step by a lognormal factor."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Floats
from simdp.cluster.stragglers.base import Straggler, rounded
from simdp.spec import Float, Int


class Lognormal(Straggler):
    """Factor ``exp(sigma z)`` with a standard normal z per rank and step: median 1.

    Attributes
    ----------
    sigma : float
        Standard deviation of the factor's logarithm.
    draws : int
        The factor is the mean of so many draws: as many as a step has micro-batches, where each of
        these varies on its own, and all are alike on average.
    """

    by_chance: ClassVar[bool] = True

    kind: Literal["lognormal"] = "lognormal"
    sigma: Float = Field(ge=0, le=10)
    draws: Int = Field(1, ge=1, le=10**4)

    def slowdown(self, step: int, world_size: int, random: np.random.Generator) -> Floats:
        drawn = np.exp(self.sigma * random.standard_normal((self.draws, world_size)))
        return rounded(drawn.mean(axis=0))
