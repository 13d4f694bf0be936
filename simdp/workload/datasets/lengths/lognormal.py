"""Lengths whose logarithm is normal, as those of texts nearly are."""

from __future__ import annotations

from math import exp
from pathlib import Path
from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator

from simdp.arrays import Ints
from simdp.spec import Float, Int, problem
from simdp.workload.datasets.lengths.base import LONGEST, Lengths


class Lognormal(Lengths):
    """``exp(mu + sigma z)`` with a standard normal z, cut to a range and rounded.

    What falls outside gets the nearest length in the range, as with ``numpy.clip``.

    Attributes
    ----------
    mu : float or None
        Mean of the logarithm of the length.
    median : float or None
        Half of the lengths are above it; in place of ``mu``, its logarithm.
    sigma : float
        Standard deviation of the logarithm.
    min : int
        Fewest tokens of a sample.
    max : int or None
        Most; by default what the model takes.
    """

    kind: Literal["lognormal"] = "lognormal"
    mu: Float | None = Field(None, ge=0, le=14)
    median: Float | None = Field(None, ge=1, le=LONGEST)
    sigma: Float = Field(ge=0)
    min: Int = Field(1, ge=1, le=LONGEST)
    max: Int | None = Field(None, ge=1, le=LONGEST)

    @model_validator(mode="after")
    def _is_clear(self) -> Self:
        if (self.mu is None) == (self.median is None):
            given = "neither of them is" if self.mu is None else "both are"
            raise problem(f"mu or median says where the lengths lie, but {given} given; give one.")
        if self.max is not None and self.min > self.max:
            raise problem(f"min {self.min} is above max {self.max}; exchange them.")
        return self

    def shortest(self, base: Path) -> int:
        return self.min

    def longest(self, base: Path) -> int | None:
        return self.max

    def drawn(self, num_samples: int, base: Path, random: np.random.Generator) -> Ints:
        median = exp(self.mu) if self.mu is not None else self.median or 1.0
        with np.errstate(over="ignore"):  # what is too long is cut
            lengths = median * np.exp(self.sigma * random.standard_normal(num_samples))
        found: Ints = np.rint(np.clip(lengths, self.min, self.max or LONGEST)).astype(np.int64)
        return found
