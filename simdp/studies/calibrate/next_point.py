"""The further measurement that would narrow a prediction most."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from simdp.arrays import Floats
from simdp.collectives.costs.wiring import Wiring
from simdp.results.calibration import NextPoint
from simdp.studies.calibrate.candidates import Point
from simdp.studies.calibrate.fit import QUANTILE, Fit, jacobian
from simdp.units import format_quantity

SIZES = tuple(float(2**k) for k in range(3, 31))
"""Sizes that may be proposed: 8 bytes to 1 GiB."""


def variance_left(covariance: Floats, goals: Floats, measured: Floats, noise: float) -> Floats:
    """Mean variance that each of some measurements would leave in predictions.

    With the covariance C of the constants, the slopes g of a prediction and the rows J of a
    measurement whose times have the noise s, the variance g C g falls by
    ``g C J' (s^2 + J C J')^-1 J C g``.

    Parameters
    ----------
    covariance : ndarray, shape `(num_constants, num_constants)`
        Of the logarithms of the constants.
    goals : ndarray, shape `(num_goals, num_constants)`
        Slopes of the logarithms of predictions.
    measured : ndarray, shape `(num_measurements, num_times, num_constants)`
        Those of the times that each measurement has.
    noise : float
        Relative standard deviation of one time.

    References
    ----------
    Atkinson, Donev and Tobias, "Optimum experimental designs, with SAS", 2007, chapter 10: for a
    single prediction c-optimality, for several V-optimality.
    """
    shared = measured @ covariance @ goals.T
    own = measured @ covariance @ measured.transpose(0, 2, 1)
    own += noise**2 * np.eye(measured.shape[1])
    gains = np.sum(shared * np.linalg.solve(own, shared), axis=1)
    before = np.sum(goals @ covariance * goals, axis=1)
    left: Floats = np.maximum(before - gains, 0.0).mean(axis=1)
    return left


def next_point(
    found: Fit,
    predictor: Callable[[Sequence[Point]], Callable[[Floats], Floats]],
    collective: str,
    wirings: Sequence[Wiring],
    target: Point,
) -> NextPoint:
    """Find the measurement that leaves the least variance in a prediction.

    Parameters
    ----------
    found : Fit
        What is known so far.
    predictor : callable
        Makes the function from constants to the times of some points.
    collective : str
        Which may be measured.
    wirings : sequence of Wiring
        Between which ranks it may be.
    target : Point
        What is to be predicted.
    """
    candidates = [Point(collective, nbytes, wiring) for wiring in wirings for nbytes in SIZES]
    slopes = jacobian(predictor(candidates), found.values)
    goal = jacobian(predictor([target]), found.values)
    left = variance_left(found.covariance, goal, slopes[:, None, :], found.noise)
    best = int(np.argmin(left))
    before = float(np.sum(goal @ found.covariance * goal))
    chosen, w = candidates[best], target.wiring
    said = f"{target.collective} of {format_quantity(target.nbytes, 'data size')}"
    return NextPoint(
        collective=collective,
        num_nodes=chosen.wiring.num_nodes,
        world_size=chosen.wiring.world_size,
        nbytes=chosen.nbytes,
        target=f"{said} between {w.world_size} ranks on {w.num_nodes} nodes",
        before=QUANTILE * float(np.sqrt(before)),
        after=QUANTILE * float(np.sqrt(left[best])),
    )
