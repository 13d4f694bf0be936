"""Jitter dealt evenly: in every step the ranks spread as n random ones do on average."""

from __future__ import annotations

from functools import lru_cache
from statistics import NormalDist
from typing import Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Floats
from simdp.cluster.stragglers.base import Straggler, rounded
from simdp.spec import Float


class Jitter(Straggler):
    """Factor ``exp(sigma z)``, where the z of a step's ranks are normal scores in random order.

    What `lognormal` draws by chance is dealt here: the score of the i-th of n ranks is what the
    i-th smallest of n normal numbers is on average, ``Phi^-1((i - 3/8) / (n + 1/4))``. A single
    step then shows what many random ones average to, whatever the seed; a rank by itself has no
    jitter. Which rank is the slowest changes from step to step.

    Attributes
    ----------
    sigma : float
        Standard deviation of the factor's logarithm.

    References
    ----------
    Blom, "Statistical estimates and transformed beta-variables", 1958.
    """

    kind: Literal["jitter"] = "jitter"
    sigma: Float = Field(ge=0, le=10)

    def slowdown(self, step: int, world_size: int, random: np.random.Generator) -> Floats:
        return rounded(np.exp(self.sigma * random.permutation(normal_scores(world_size))))


@lru_cache(maxsize=64)
def normal_scores(n: int) -> Floats:
    """Expected values of n normal numbers in rising order, shape `(n,)`."""
    inverse = NormalDist().inv_cdf
    return np.array([inverse((i - 0.375) / (n + 0.25)) for i in range(1, n + 1)])
