"""Jitter: each rank's compute time varies from step to step by a lognormal factor."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Floats
from simdp.cluster.stragglers.base import Straggler, rounded
from simdp.spec import Float


class Lognormal(Straggler):
    """Factor ``exp(sigma z)`` with a standard normal z per rank and step: median 1.

    Attributes
    ----------
    sigma : float
        Standard deviation of the factor's logarithm.
    """

    kind: Literal["lognormal"] = "lognormal"
    sigma: Float = Field(ge=0, le=10)

    def slowdown(self, step: int, world_size: int, random: np.random.Generator) -> Floats:
        return rounded(np.exp(self.sigma * random.standard_normal(world_size)))
