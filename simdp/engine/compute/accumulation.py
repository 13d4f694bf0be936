"""Accumulation: later micro-steps add their gradients to those that are there."""

from __future__ import annotations

import numpy as np

from simdp.engine.compute.beside import accumulating
from simdp.engine.compute.columns import Columns
from simdp.engine.compute.roofline import Roofline
from simdp.workload import Workload


def with_accumulation(found: Columns, workload: Workload, roofline: Roofline) -> Columns:
    """Seconds of backward with an addition to each parameter's gradient, by a kernel each.

    Parameters
    ----------
    found : Columns
        Without them.
    workload : Workload
        What is trained.
    roofline : Roofline
        The devices.

    Returns
    -------
    Columns
        Ranks without samples add nothing.
    """
    _, ranks = np.unique(found.column, return_index=True)
    seconds = found.seconds.copy()
    for call, kernels in enumerate(accumulating(workload)):
        nbytes = sum(kernel.fixed for kernel in kernels)
        added = nbytes / roofline.bandwidth[ranks] + len(kernels) * roofline.launch[ranks]
        seconds[call] += added * (seconds[call] > 0)
    return Columns(seconds, found.column)
