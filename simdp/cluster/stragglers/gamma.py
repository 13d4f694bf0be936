"""Jitter of a gamma distribution: each rank's compute time varies from step to step, by mean 1."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Floats
from simdp.cluster.stragglers.base import Straggler, rounded
from simdp.spec import Float


class Gamma(Straggler):
    """Factor of a gamma distribution per rank and step: mean 1, shape ``1 / cv^2``.

    Attributes
    ----------
    cv : float
        Coefficient of variation: standard deviation over mean. With 1 it is exponential.
    """

    by_chance: ClassVar[bool] = True

    kind: Literal["gamma"] = "gamma"
    cv: Float = Field(ge=0, le=3)

    def slowdown(self, step: int, world_size: int, random: np.random.Generator) -> Floats:
        if not self.cv:
            return np.ones(world_size)
        drawn = random.standard_gamma(self.cv**-2, world_size) * self.cv**2
        return rounded(np.maximum(drawn, np.finfo(float).tiny))
