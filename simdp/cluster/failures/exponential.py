"""Exponential gaps: a unit fails as often late as early, and as soon after a failure as ever."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
from pydantic import model_validator

from simdp.arrays import Floats, Ints
from simdp.cluster.failures.hazard import BLOCK, Hazard, chosen
from simdp.cluster.failures.rate import EXAMPLE, Rate
from simdp.cluster.stragglers.base import rounded
from simdp.spec import PositiveSeconds, problem


class Exponential(Hazard):
    """``{kind: exponential, mtbf: 1000 h}``: a rate that never changes, a Poisson process.

    All units together fail at the sum of their rates, and each in proportion to its own.

    Attributes
    ----------
    mtbf : float or None
        Mean time between failures of one unit [s].
    rate : FailureRate or None
        In its place, how often one unit fails, as it is published: ``6.5 per 1000 node-days``.
    """

    kind: Literal["exponential"] = "exponential"
    mtbf: PositiveSeconds | None = None
    rate: Rate | None = None

    @model_validator(mode="after")
    def _has_one_rate(self) -> Exponential:
        if (self.mtbf is None) == (self.rate is None):
            raise problem(f"give either mtbf, a time, or rate; {EXAMPLE}.")
        if self.rate is not None and self.rate.unit not in (None, self.per):
            raise problem(
                f"rate: {self.rate.text} is per {self.rate.unit}, and per is {self.per}; make "
                "them agree."
            )
        return self

    def mean_gap(self) -> float:
        if self.rate is not None:
            return 1 / self.rate.per_second
        assert self.mtbf is not None
        return self.mtbf

    def arrivals(self, rates: Floats, random: np.random.Generator) -> Iterator[tuple[Floats, Ints]]:
        summed = np.cumsum(rates)
        gap, now = self.mean_gap() / float(summed[-1]), 0.0
        while True:
            gaps = rounded(random.standard_exponential(BLOCK)) * gap
            gaps[0] += now
            times = np.cumsum(gaps)
            now = float(times[-1])
            yield times, chosen(summed, random.random(BLOCK))
