"""Shared hosts: devices whose hosts, or which themselves, serve other people's jobs beside."""

from __future__ import annotations

from math import log1p, sqrt
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Floats, Ints
from simdp.cluster.stragglers.base import Straggler, rounded
from simdp.spec import Float

CV = {"p25": 0.0508, "p50": 0.0935, "p75": 0.5497, "p90": 1.0650}
"""Coefficients of variation over the ten workers of a job in an iteration: quantiles of 82,739."""


class SharedHost(Straggler):
    """Factor of mean 1 per rank: one part stays for the whole run, the other is drawn each step.

    How far workers differ in an iteration is what Alibaba's PAI measured, where jobs share GPUs:
    100 jobs of 10 workers, 2,000 iterations each. Which part of it lasts follows from the four jobs
    whose workers' own times are known: their means explain 0.53, 0.92, 0.41 and all of the
    logarithm's variance, where the largest time over the mean of an iteration is as measured.

    Attributes
    ----------
    load : {"p25", "p50", "p75", "p90"}
        The quantile of the measured coefficients of variation: 0.051, 0.094, 0.55 or 1.07.
    lasting_part : float
        Part of the variance of the factor's logarithm that belongs to the rank for good.

    References
    ----------
    github.com/alibaba/clusterdata, cluster-trace-gpu-v2020, mini-batch times.
    """

    by_chance: ClassVar[bool] = True

    kind: Literal["shared_host"] = "shared_host"
    load: Literal["p25", "p50", "p75", "p90"] = "p50"
    lasting_part: Float = Field(0.7, ge=0, le=1)

    def _drawn(self, part: float, size: int, random: np.random.Generator) -> Floats:
        """Lognormal factors of mean 1 that have a part of the logarithm's variance."""
        variance = part * log1p(CV[self.load] ** 2)
        return rounded(np.exp(sqrt(variance) * random.standard_normal(size) - variance / 2))

    def lasting(self, nodes: Ints, random: np.random.Generator) -> Floats:
        return self._drawn(self.lasting_part, len(nodes), random)

    def slowdown(self, step: int, world_size: int, random: np.random.Generator) -> Floats:
        return self._drawn(1 - self.lasting_part, world_size, random)
