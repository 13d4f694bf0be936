"""Roofline: a piece of work takes as long as its arithmetic or its memory traffic, and a launch.

Williams, Waterman and Patterson, "Roofline: an insightful visual performance model", CACM 52(4),
2009.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simdp.cluster import Device
from simdp.workload.layers import Cost

Floats = NDArray[np.float64]


class Roofline:
    """Seconds that work takes on each rank's device.

    Parameters
    ----------
    devices : sequence of Device
        One per rank.
    dtype : str
        Whose peak counts.
    """

    def __init__(self, devices: Sequence[Device], dtype: str) -> None:
        self.flops = np.array([device.peak[dtype] * device.efficiency for device in devices])
        self.bandwidth = np.array([device.memory_bandwidth for device in devices])
        self.launch = np.array([device.launch for device in devices])

    def seconds(self, cost: Cost) -> Floats:
        """Time of a piece of work.

        Parameters
        ----------
        cost : Cost
            Arrays of shape `(world_size,)`.

        Returns
        -------
        ndarray, shape `(world_size,)`
            ``max(flops / (peak efficiency), nbytes / bandwidth) + launches launch`` [s].
        """
        work: Floats = np.maximum(cost.flops / self.flops, cost.nbytes / self.bandwidth)
        work += cost.launches * self.launch
        return work

    def moving(self, nbytes: float) -> Floats:
        """Time to read and write so many bytes in device memory, per rank [s]."""
        time: Floats = nbytes / self.bandwidth
        return time
