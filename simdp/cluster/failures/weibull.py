"""Weibull gaps: units that fail more often when young (shape below 1), or when old (above)."""

from __future__ import annotations

from math import gamma
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from simdp.arrays import Floats
from simdp.cluster.failures.renewal import Renewal
from simdp.cluster.stragglers.base import rounded
from simdp.spec import Float, PositiveSeconds, problem


class Weibull(Renewal):
    """``{kind: weibull, mtbf: 1000 h, shape: 0.7}``: gaps ``scale E^(1 / shape)``.

    E is exponential with mean 1. With a shape below 1 a failure makes the next one of its unit
    more likely soon, as repairs that do not help do: 0.7 to 0.8 is usual of nodes.

    Attributes
    ----------
    mtbf : float or None
        Mean time between failures of one unit, ``scale Gamma(1 + 1 / shape)`` [s].
    scale : float or None
        In its place, the time by which 63 % of gaps have ended [s].
    shape : float
        1 is `exponential`.

    References
    ----------
    Schroeder and Gibson, "A large-scale study of failures in high-performance computing systems",
    DSN 2006, section 5.3.
    """

    kind: Literal["weibull"] = "weibull"
    mtbf: PositiveSeconds | None = None
    scale: PositiveSeconds | None = None
    shape: Float = Field(ge=0.1, le=100)

    @model_validator(mode="after")
    def _has_one_length(self) -> Weibull:
        if (self.mtbf is None) == (self.scale is None):
            raise problem("give either mtbf, the mean time between failures, or scale.")
        return self

    def mean_gap(self) -> float:
        return self.mtbf if self.mtbf is not None else self._length() * self._mean()

    def _mean(self) -> float:
        """Mean of gaps of scale 1."""
        return float(rounded(np.array(gamma(1 + 1 / self.shape))))

    def _length(self) -> float:
        """The scale [s]."""
        if self.scale is not None:
            return self.scale
        assert self.mtbf is not None
        return self.mtbf / self._mean()

    def gaps(self, shape: tuple[int, ...], random: np.random.Generator) -> Floats:
        return self._length() * rounded(random.standard_exponential(shape) ** (1 / self.shape))

    def lives(self, num_units: int, random: np.random.Generator) -> Floats:
        """Draw ``scale G^(1 / shape)``, as gaps weighted by their length are; G is gamma."""
        drawn = random.standard_gamma(1 + 1 / self.shape, num_units)
        return self._length() * rounded(drawn ** (1 / self.shape))
