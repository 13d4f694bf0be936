"""Reliability: how many measured times lie inside intervals of several levels."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from statistics import NormalDist
from typing import NamedTuple

from simdp.results.validation import CollectiveComparison, Comparison

LEVELS = (0.5, 0.68, 0.8, 0.9, 0.95, 0.99)
"""Nominal shares of the measured times that intervals are to hold."""

TOLD = 0.9
"""The level of ``low`` and ``high``."""


class Coverage(NamedTuple):
    """What intervals of one level hold.

    Attributes
    ----------
    level : float
        The nominal share.
    observed : float
        The share of the points whose measured time lies inside.
    low, high : float
        Between these the share of as many independent series lies in nine cases of ten, if the
        level is right.
    """

    level: float
    observed: float
    low: float
    high: float


def coverage(points: Sequence[Comparison]) -> list[Coverage]:
    """Count at every level of `LEVELS`.

    Parameters
    ----------
    points : sequence of Comparison
        One or more. Those of one series are not independent; the band counts series.
    """
    count = num_series(points)
    return [
        Coverage(
            level,
            sum(holds(point, level) for point in points) / len(points),
            _quantile(0.05, level, count) / count,
            _quantile(0.95, level, count) / count,
        )
        for level in LEVELS
    ]


def num_series(points: Sequence[Comparison]) -> int:
    """Count the tables of collectives, and of steps the scenarios."""
    return len(
        {
            (one.scenario, one.table if isinstance(one, CollectiveComparison) else None)
            for one in points
        }
    )


def holds(point: Comparison, level: float) -> bool:
    """Whether an interval of another level than 90 % holds the measured time.

    Its ends are those of a log-normal distribution on each side: ``simulated (low / simulated)^k``
    below, where k is the ratio of the levels' quantiles; an end at 0 stays there.
    """
    normal = NormalDist()
    ratio = normal.inv_cdf((1 + level) / 2) / normal.inv_cdf((1 + TOLD) / 2)
    low: float = point.simulated * (point.low / point.simulated) ** ratio
    high: float = point.simulated * (point.high / point.simulated) ** ratio
    return low <= point.measured <= high


def _quantile(share: float, level: float, count: int) -> int:
    """The smallest number of successes that is reached with a chance of ``share`` or more."""
    total = 0.0
    for k in range(count + 1):
        total += comb(count, k) * level**k * (1 - level) ** (count - k)
        if total >= share:
            return k
    return count
