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


def next_point(
    found: Fit,
    predictor: Callable[[Sequence[Point]], Callable[[Floats], Floats]],
    collective: str,
    wirings: Sequence[Wiring],
    target: Point,
) -> NextPoint:
    """Find the measurement that leaves the least variance in a prediction.

    With the covariance C of the constants, the slopes g of the prediction and j of a measurement
    whose own noise is s, the variance g C g falls by (g C j)^2 / (s^2 + j C j).

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

    References
    ----------
    Atkinson, Donev and Tobias, "Optimum experimental designs, with SAS", 2007, chapter 10: for a
    single prediction, c-optimality.
    """
    candidates = [Point(collective, nbytes, wiring) for wiring in wirings for nbytes in SIZES]
    slopes = jacobian(predictor(candidates), found.values)
    (goal,) = jacobian(predictor([target]), found.values)
    reach = found.covariance @ goal
    own = np.sum(slopes @ found.covariance * slopes, axis=1)
    gains = (slopes @ reach) ** 2 / (found.noise**2 + own)
    best = int(np.argmax(gains))
    before = float(goal @ reach)
    after = max(before - float(gains[best]), 0.0)
    chosen, w = candidates[best], target.wiring
    said = f"{target.collective} of {format_quantity(target.nbytes, 'data size')}"
    return NextPoint(
        collective=collective,
        num_nodes=chosen.wiring.num_nodes,
        world_size=chosen.wiring.world_size,
        nbytes=chosen.nbytes,
        target=f"{said} between {w.world_size} ranks on {w.num_nodes} nodes",
        before=QUANTILE * float(np.sqrt(before)),
        after=QUANTILE * float(np.sqrt(after)),
    )
