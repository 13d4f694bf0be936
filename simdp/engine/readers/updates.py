"""Updates: what unscaling, clipping and the optimizer cost on each rank."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simdp.engine.compute.profile_times import told_update
from simdp.engine.compute.roofline import Roofline
from simdp.engine.ops import Work
from simdp.engine.readers.footprints import Amount
from simdp.engine.readers.records import Stepping
from simdp.workload import Workload
from simdp.workload.step_costs import optimizer_nbytes_moved

Amounts = tuple[Amount, Amount, Amount]
"""Bytes that scaling moves, bytes that the optimizer moves, and seconds that it takes beside these
on the device: launches, and products of matrices."""


def beside_told(workload: Workload, roofline: Roofline, moved: Amount, beside: Amount) -> Amount:
    """What an update takes beside the bytes that it moves, where a profile tells its time.

    Parameters
    ----------
    workload : Workload
        Its compute may say what the update of all parameters takes.
    roofline : Roofline
        The devices.
    moved : Amount
        What the optimizer moves on each rank [bytes]: a part of all.
    beside : Amount
        What comes back where no profile tells [s].
    """
    told = told_update(workload, roofline)
    whole = optimizer_nbytes_moved(workload)
    if told is None or not whole:
        return beside
    found: Amount = told * (moved / whole) - roofline.moving(moved)
    return found


def update_works(
    step: int, stepping: Stepping, amounts: Amounts, roofline: Roofline, host: float
) -> Iterator[Work]:
    """Work of an update: what moves bytes in memory, the device's or the host's.

    Parameters
    ----------
    step : int
        As in `Work`.
    stepping : Stepping
        Which ranks take part, and which of them change their weights.
    amounts : Amounts
        What is moved, and what it takes beside.
    roofline : Roofline
        The devices.
    host : float
        What a rank gets of the host's memory, where pieces lie there [bytes/s]; 0 on the device.
    """
    scaled, moved, beside = amounts

    def work(name: str, nbytes: Amount, active: Amount, longer: Amount = 0.0) -> Work:
        if host:
            busy = nbytes / host * np.ones(len(stepping.active))
        else:
            busy = roofline.moving(nbytes) + longer
        return Work(step, "update", name, busy * active, float(np.max(nbytes)))

    if np.any(scaled):
        yield work("gradients", scaled, stepping.active)
    if np.any(moved) and stepping.taken.any():
        yield work("optimizer", moved, stepping.taken, beside)
