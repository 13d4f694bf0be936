"""Roofline: a kernel takes as long as its arithmetic or its memory traffic, and a launch.

``max(flops / (peak efficiency), nbytes / bandwidth) + launch`` (Williams, Waterman and Patterson,
"Roofline: an insightful visual performance model", CACM 52(4), 2009).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simdp.cluster import Device

Floats = NDArray[np.float64]


class Roofline:
    """What each rank's device can do.

    Parameters
    ----------
    devices : sequence of Device
        One per rank.
    world_size : int, optional
        Number of ranks, where one device stands for all of them.

    Attributes
    ----------
    device : ndarray, shape `(world_size,)`
        Number of the rank's device among those that differ.
    bandwidth : ndarray, shape `(world_size,)`
        Of the memory [bytes/s].
    launch : ndarray, shape `(world_size,)`
        Time to start a kernel [s].
    """

    def __init__(self, devices: Sequence[Device], world_size: int | None = None) -> None:
        different: list[Device] = []
        for device in devices:
            if device not in different:
                different.append(device)
        self.different = different
        self.device = np.array([different.index(device) for device in devices])
        if world_size is not None:
            self.device = np.broadcast_to(self.device, world_size)
        self.bandwidth = self._each([device.memory_bandwidth for device in different])
        self.launch = self._each([device.launch for device in different])
        self._flops: dict[str, Floats] = {}

    def _each(self, figures: Sequence[float]) -> Floats:
        """A figure of each rank's device."""
        found: Floats = np.array(figures)[self.device]
        return found

    def flops(self, dtype: str) -> Floats:
        """Arithmetic per second in a dtype, shape `(world_size,)` [FLOP/s]."""
        if dtype not in self._flops:
            each = [device.peak[dtype] * device.efficiency for device in self.different]
            self._flops[dtype] = self._each(each)
        return self._flops[dtype]

    def moving(self, nbytes: float) -> Floats:
        """Time to read and write so many bytes in device memory, per rank [s]."""
        time: Floats = nbytes / self.bandwidth
        return time
