"""Fit constants to measured times: bounded least squares, with an interval for every constant.

Constants are positive and are fitted as logarithms, to the logarithms of the times, so that a
microsecond and a second weigh alike. Each has a typical value and a spread around it, such as what
a vendor publishes. Where the data say nothing, that is what remains, and it is reported so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import exp, log
from typing import Any

import numpy as np

from simdp.arrays import Floats
from simdp.rng import stream

NUM_STARTS = 8
"""Starts of the search: the minimum over protocols has kinks, at which a single one may stop."""

NOISE = 0.03
"""Relative error beyond which a point counts less than its square: nccl-tests repeat within it."""

LEAST_NOISE = 0.01
"""No fit is trusted beyond this: runs of nccl-tests differ by a percent between days."""

WELL_KNOWN = 0.1
"""Relative standard error below which a constant counts as determined."""

QUANTILE = 1.645
"""Standard errors on each side of a 90 % interval."""


@dataclass(frozen=True)
class Constant:
    """A constant to be fitted.

    Attributes
    ----------
    key : str
        Dotted, as in a scenario.
    dimension : str or None
        A key of `simdp.units.DIMENSIONS`; None for a plain number.
    typical : float
        Where it lies if the data say nothing.
    low, high : float
        Its bounds, above 0.
    spread : float
        Standard error of the logarithm around ``typical``; 1 is a factor of e.
    """

    key: str
    dimension: str | None
    typical: float
    low: float
    high: float
    spread: float = 1.0


@dataclass(frozen=True)
class Fit:
    """What a fit found.

    Attributes
    ----------
    constants : tuple of Constant
        What was fitted.
    values : ndarray, shape `(num_constants,)`
        The best values.
    predicted : ndarray, shape `(num_points,)`
        Times by these values [s].
    errors : ndarray, shape `(num_points,)`
        Predicted over measured, less 1.
    noise : float
        Root mean square of the logarithmic errors, at least `LEAST_NOISE`.
    jacobian : ndarray, shape `(num_points, num_constants)`
        Of the logarithms of times by those of constants.
    covariance : ndarray, shape `(num_constants, num_constants)`
        Of the logarithms of the constants.
    """

    constants: tuple[Constant, ...]
    values: Floats
    predicted: Floats
    errors: Floats
    noise: float
    jacobian: Floats
    covariance: Floats

    @property
    def residual(self) -> float:
        """Root mean square of the relative errors."""
        return float(np.sqrt(np.mean(self.errors**2)))

    def interval(self, index: int) -> tuple[float, float]:
        """The 90 % interval of a constant, cut off at its bounds."""
        constant = self.constants[index]
        reach = exp(min(QUANTILE * float(np.sqrt(self.covariance[index, index])), 50.0))
        value = float(self.values[index])
        return max(value / reach, constant.low), min(value * reach, constant.high)

    def undetermined(self) -> list[str]:
        """Keys that the data leave open.

        Their interval hits a bound; or they are known no better than to a tenth, and not twice as
        well as before any data.
        """
        found = []
        for index, constant in enumerate(self.constants):
            low, high = self.interval(index)
            error = float(np.sqrt(self.covariance[index, index]))
            bounded = low <= constant.low or high >= constant.high
            if bounded or error > max(constant.spread / 2, WELL_KNOWN):
                found.append(constant.key)
        return found


def fit(
    predict: Callable[[Floats], Floats],
    measured: Floats,
    constants: Sequence[Constant],
    num_starts: int = NUM_STARTS,
    restraints: Callable[[Floats], Floats] | None = None,
    start: Floats | None = None,
    batched: bool = False,
) -> Fit:
    """Find the constants that explain measured times best.

    Parameters
    ----------
    predict : callable
        Times [s] by the constants' values, in their order.
    measured : ndarray, shape `(num_points,)`
        Times [s].
    constants : sequence of Constant
        What is free.
    num_starts : int
        Searches, of which the best counts; the first starts from the typical values.
    restraints : callable, optional
        What the constants' values break of what must hold between them, in standard errors.
    start : ndarray, shape `(num_constants,)`, optional
        Values from which the first search starts; without it the typical ones.
    batched : bool
        Whether ``predict`` takes several sets of values at once, one in each row.
    """
    typical = np.array([log(constant.typical) for constant in constants])
    spread = np.array([constant.spread for constant in constants])
    target = np.log(measured)

    def residuals(x: Floats) -> Floats:
        misses = (np.log(predict(np.exp(x))) - target) / NOISE
        known = [misses, (x - typical) / spread]
        known += [] if restraints is None else [restraints(np.exp(x))]
        return np.concatenate(known, axis=-1)

    first = typical if start is None else np.log(start)
    slopes_at = partial(_slopes, residuals) if batched and restraints is None else None
    x = _search(residuals, constants, typical, first, num_starts, slopes_at)
    predicted = predict(np.exp(x))
    misses = np.log(predicted) - target
    freedom = max(len(measured) - len(constants), 1)
    noise = max(float(np.sqrt(np.sum(misses**2) / freedom)), LEAST_NOISE)
    slopes = jacobian(predict, np.exp(x))
    information = slopes.T @ slopes / noise**2 + np.diag(1 / spread**2)
    return Fit(
        constants=tuple(constants),
        values=np.exp(x),
        predicted=predicted,
        errors=predicted / measured - 1,
        noise=noise,
        jacobian=slopes,
        covariance=np.asarray(np.linalg.inv(information), dtype=np.float64),
    )


def jacobian(predict: Callable[[Floats], Floats], values: Floats, step: float = 1e-4) -> Floats:
    """Slopes of the logarithms of times by the logarithms of constants.

    Returns
    -------
    ndarray, shape `(num_points, num_constants)`
    """
    columns = []
    for index in range(len(values)):
        factor = np.ones(len(values))
        factor[index] = exp(step)
        change = np.log(predict(values * factor)) - np.log(predict(values / factor))
        columns.append(change / (2 * step))
    return np.stack(columns, axis=1)


def _slopes(residuals: Callable[[Floats], Floats], x: Floats) -> Floats:
    """Slopes of residuals, all at once: `(num_residuals, num_constants)`."""
    step = 1e-6
    each = residuals(x + step * np.vstack([np.zeros(len(x)), np.eye(len(x))]))
    found: Floats = (each[1:] - each[0]).T / step
    return found


def _search(
    residuals: Callable[[Floats], Floats],
    constants: Sequence[Constant],
    typical: Floats,
    first: Floats,
    num_starts: int,
    slopes_at: Callable[[Floats], Floats] | None,
) -> Floats:
    """The best of several searches; one from ``first``, others from around what is typical."""
    from scipy.optimize import least_squares

    low = np.array([log(constant.low) for constant in constants])
    high = np.array([log(constant.high) for constant in constants])
    draws = stream(0, "calibrate").normal(size=(num_starts, len(constants)))
    spread = np.array([constant.spread for constant in constants])
    starts = typical + 0.7 * spread * draws
    starts[0] = first
    best: Any = None
    for start in starts:
        inside = low + 1e-6 * (high - low), high - 1e-6 * (high - low)
        start = np.clip(start, *inside)
        # Absolute values beyond the noise: a table has rows that another job disturbed.
        found = least_squares(
            residuals,
            start,
            bounds=(low, high),
            loss="soft_l1",
            max_nfev=200,
            jac=slopes_at or "2-point",
        )
        if best is None or found.cost < best.cost:
            best = found
    return np.asarray(best.x)
