"""Chances: how probable it is that a plan's option meets its deadline and its budget.

Runs to the same target differ by luck: in the samples that they need, and in what fails on the way.
Beside that the simulated step may be off, as its 90 % interval states. Both multiply the time to
the end, and with it money and energy.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import inf, log

import numpy as np

from simdp.arrays import Floats
from simdp.job.target import Need
from simdp.results.plan import Option

QUANTILES = 201
"""Equally probable values that stand for a distribution."""

Z90 = 1.6448536269514722
"""Standard deviations of a normal distribution from its middle to the ends of 90 %."""

LIMITED = {"deadline": "finish_s", "budget": "cost_usd", "energy": "energy_kwh"}
"""Limits that are met by chance, and the field of an option that each limits."""


def luck_of(need: Need) -> Floats:
    """Samples that single runs need over their mean, at equally probable places, rising."""
    if not need.sd:
        return np.ones(1)
    return np.array([need.quantile(float(p)) for p in _places()]) / need.mean


def chance(option: Option, limits: Mapping[str, float], factors: Floats) -> float | None:
    """The probability that an option meets deadline, budget and energy, all of them.

    Parameters
    ----------
    option : Option
        With its mean time, money and energy.
    limits : mapping of str to float
        As of `simdp.results.plan.Plan`.
    factors : ndarray
        Equally probable values that multiply all three, as from `factors_of`.

    Returns
    -------
    float or None
        None where no limit of these is given.
    """
    allowed = inf
    for name, field in LIMITED.items():
        if name in limits:
            value = option.value(field)
            allowed = min(allowed, limits[name] / value if value else -inf)
    return None if allowed == inf else float((factors <= allowed * (1 + 1e-12)).mean())


def factors_of(luck: Floats, ends: tuple[float, float] | None) -> Floats:
    """All that may multiply the time to the end.

    Parameters
    ----------
    luck : ndarray
        Times of single runs over their mean.
    ends : (float, float) or None
        The 90 % interval of a step over its time; between them, and beyond, its logarithm is
        normal on each side.
    """
    if ends is None:
        return luck
    z = _normal() / Z90
    low, high = log(max(ends[0], 1e-9)), log(max(ends[1], 1e-9))
    step = np.exp(np.where(z < 0, -z * min(low, 0.0), z * max(high, 0.0)))
    found: Floats = np.outer(luck, step).ravel()
    return found


@cache
def _places() -> Floats:
    found: Floats = (np.arange(QUANTILES) + 0.5) / QUANTILES
    return found


@cache
def _normal() -> Floats:
    from scipy.special import ndtri

    found: Floats = ndtri(_places())
    return found
