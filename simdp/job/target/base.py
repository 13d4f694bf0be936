"""Target: what a job is to reach, and how many samples that takes."""

from __future__ import annotations

from abc import abstractmethod
from math import ceil, inf, sqrt
from typing import NamedTuple

import numpy as np

from simdp.arrays import Floats
from simdp.spec import Spec

QUANTILES = {"p5": 0.05, "p50": 0.5, "p90": 0.9, "p95": 0.95}


class Need(NamedTuple):
    """Samples that a job needs, which luck decides a part of.

    Single runs are drawn from what some runs were like: a Student t distribution with one degree
    of freedom less than runs, ``mean + sd sqrt(1 + 1 / runs) t``, which is also how far a new run
    of a normal quantity may lie from the mean of those seen. A run needs no less than one step.

    Attributes
    ----------
    mean, sd : float
        Of single runs [samples].
    runs : float
        How many of them mean and sd were found from; infinitely many where they are given.
    """

    mean: float
    sd: float = 0.0
    runs: float = inf

    def quantile(self, p: float) -> float:
        """Samples within which a share p of runs gets there."""
        if not self.sd:
            return self.mean
        return max(float(self.mean + self._scale * _student(p, self.runs - 1)), 0.0)

    def draw(self, random: np.random.Generator, size: int) -> Floats:
        """Samples that single runs need, shape `(size,)`."""
        if not self.sd:
            return np.full(size, self.mean)
        drawn = random.standard_normal(size)
        if self.runs < inf:
            drawn /= np.sqrt(random.chisquare(self.runs - 1, size) / (self.runs - 1))
        return np.maximum(self.mean + self._scale * drawn, 0.0)

    def steps(self, global_batch: float) -> int:
        """Whole steps in which a mean run gets there."""
        return max(ceil(self.mean / global_batch - 1e-9), 1)

    def seconds(self, throughput: float) -> dict[str, float]:
        """Mean and quantiles of the time that it takes [s].

        Parameters
        ----------
        throughput : float
            Of all ranks [samples/s]; that steps differ in time is no part of the quantiles.
        """
        found = {name: self.quantile(p) / throughput for name, p in QUANTILES.items()}
        return {"mean": self.mean / throughput, **found}

    @property
    def _scale(self) -> float:
        return self.sd * sqrt(1 + 1 / self.runs)


def _student(p: float, freedom: float) -> float:
    """Quantile of Student's t; of the normal distribution where the freedom is infinite."""
    from scipy.special import ndtri, stdtrit

    return float(stdtrit(freedom, p) if freedom < inf else ndtri(p))


class Target(Spec):
    """What a job is to reach."""

    kind: str

    @abstractmethod
    def need(self, global_batch: float, num_samples: int) -> Need | None:
        """Samples that it takes; None where only a run can tell.

        Parameters
        ----------
        global_batch : float
            Samples of all ranks in a step.
        num_samples : int
            In the data set; 0 without one.

        Raises
        ------
        ValueError
            As `problem_with` says.
        """

    def problem_with(self, global_batch: float, num_samples: int) -> str | None:
        """Say why it cannot be told, or None."""
        return None
