"""Intervals between checkpoints, and what they cost, where failures come at an even rate.

Throughout: ``mttf`` is the mean time between failures of the job, ``write`` what a checkpoint holds
it up for, ``restart`` what a failure costs beside lost work, ``interval`` the training between two
checkpoints, all in seconds.
"""

from __future__ import annotations

from math import exp, expm1, log1p, sqrt

NEWTON_STEPS, FAR = 60, 30.0


def young(write: float, mttf: float) -> float:
    """Interval after Young, "A first order approximation to the optimum checkpoint interval", 1974.

    ``sqrt(2 w M)`` [s].
    """
    return sqrt(2 * write * mttf)


def daly_first_order(write: float, mttf: float) -> float:
    """Interval ``sqrt(2 w M) - w`` [s], 0 at least.

    Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", 2006.
    """
    return max(young(write, mttf) - write, 0.0)


def daly(write: float, mttf: float) -> float:
    """Interval after Daly's higher order formula [s].

    ``sqrt(2 w M) (1 + sqrt(w / 2M) / 3 + w / 18M) - w`` where w < 2 M, else M. Daly, "A higher
    order estimate of the optimum checkpoint interval for restart dumps", 2006, equation 37.
    """
    if write >= 2 * mttf:
        return mttf
    ratio = write / (2 * mttf)
    return young(write, mttf) * (1 + sqrt(ratio) / 3 + ratio / 9) - write


def exact(write: float, mttf: float) -> float:
    """Interval that makes `slowdown` least: ``M (1 + W0(-exp(-w/M - 1)))`` [s].

    Where its derivative vanishes, ``exp(-(t + w) / M) = 1 - t / M``, which Lambert's W solves.
    """
    return mttf * _one_plus_lambert(write / mttf)


def _one_plus_lambert(x: float) -> float:
    """``1 + W0(-exp(-x - 1))`` for x >= 0, by Newton's method for u in ``-u - log(1 - u) = x``."""
    if x == 0 or x > FAR:
        return 1 - exp(-x - 1) if x else 0.0
    u = min(sqrt(2 * x), 1 - exp(-x - 1))  # near 0, and far from it
    for _ in range(NEWTON_STEPS):
        change = (-u - log1p(-u) - x) * (1 - u) / u
        u = min(max(u - change, u / 2), (u + 1) / 2)
        if abs(change) < 1e-15 * u:
            break
    return u


def slowdown(interval: float, write: float, mttf: float, restart: float) -> float:
    """Expected time per useful time, where failures also hit writes and restarts.

    ``M exp(R / M) (exp((t + w) / M) - 1) / t``; its inverse is the goodput. Daly, "A higher order
    estimate of the optimum checkpoint interval for restart dumps", 2006, equation 20.
    """
    return mttf * exp(restart / mttf) * expm1((interval + write) / mttf) / interval


def expected_ettr(interval: float, write: float, mttf: float, restart: float) -> float:
    """Effective over scheduled training time, to first order in ``interval / mttf``.

    ``(1 - (R + t / 2) / M) / (1 + w / t)``. Kokolis et al., "Revisiting reliability in large-scale
    machine learning research clusters", HPCA 2025, equation 1.
    """
    return (1 - (restart + interval / 2) / mttf) / (1 + write / interval)
