"""Roofline: a kernel takes its arithmetic or its memory traffic, the longer one, and a launch.

``max((flops + half_work) / (peak efficiency), nbytes / bandwidth) + launch`` (Williams, Waterman
and Patterson, "Roofline: an insightful visual performance model", CACM 52(4), 2009; half_work as
in `Device`). A kernel without arithmetic has no ``half_work``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simdp.arrays import Floats, Ints
from simdp.cluster import Cluster
from simdp.cluster.hardware import Device
from simdp.workload import Workload
from simdp.workload.step_costs import matrix_dtype

NATIVE_BATCH_NORM = 5.3e9
"""Memory traffic of a multiprocessor in torch's own batch norm [bytes/s], which runs in bfloat16.

In other dtypes cuDNN's runs (ATen/native/Normalization.cpp); torch's has a block for each channel
of contiguous images, too few to keep memory busy; with channels last it has more. On an H200
(records/h200-1gpu) ResNet-50's take 31 ms of a step of 128 images, in place of 9; no other device
was measured."""


def native_batch_norm(device: Device) -> float:
    """Memory traffic that torch's own batch norm reaches on a device [bytes/s]."""
    return min(NATIVE_BATCH_NORM * device.multiprocessors, device.memory_rate)


class Roofline:
    """Performance of each rank's device.

    Parameters
    ----------
    devices : sequence of Device
        One per rank; or one for all, with ``world_size``.
    sharers : ndarray, shape `(world_size,)`, optional
        Number of ranks on the device of each rank. They take turns, so that arithmetic and memory
        traffic take this many times as long, and a launch does not.

    Attributes
    ----------
    device : ndarray, shape `(world_size,)`
        Index of the rank's device among the ``different`` ones.
    bandwidth, launch, half_work : ndarray, shape `(world_size,)`
        Memory bandwidth that kernels of layers reach [bytes/s]; time to start a kernel [s];
        additional work by which arithmetic is slower than at full speed [FLOP].
    batch_norm : ndarray, shape `(world_size,)`
        Memory traffic that torch's own batch norm reaches [bytes/s].
    misaligned : ndarray, shape `(world_size,)`
        Share of the arithmetic that misaligned products reach on tensor cores.
    alone : Roofline
        The same, if every rank had a whole device.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        world_size: int | None = None,
        sharers: Ints | None = None,
    ) -> None:
        self.alone, self.sharers = self, np.ones(world_size or len(devices), dtype=np.int64)
        if sharers is not None and sharers.max() > 1:
            self.alone, self.sharers = Roofline(devices), sharers
            slices = {(id(d), k): (d, k) for d, k in zip(devices, sharers.tolist(), strict=True)}
            made = {key: device.slice(k) for key, (device, k) in slices.items()}
            devices = [made[id(d), k] for d, k in zip(devices, sharers.tolist(), strict=True)]
        different: list[Device] = []
        for device in devices:
            if device not in different:
                different.append(device)
        self.different = different
        self.device = np.array([different.index(device) for device in devices])
        if world_size is not None:
            self.device = np.broadcast_to(self.device, world_size)
        self.bandwidth = self._each([device.memory_rate for device in different])
        self.launch = self._each([device.launch for device in different])
        self.batch_norm = self._each([native_batch_norm(device) for device in different])
        self.misaligned = self._each([device.misaligned_efficiency for device in different])
        self.half_work = self._each([device.half_work for device in different])
        self._stream = self._each([device.stream_rate for device in different])
        self._flops: dict[tuple[str, str], Floats] = {}

    def _each(self, figures: Sequence[float]) -> Floats:
        """A figure of each rank's device."""
        figures_of_ranks: Floats = np.array(figures)[self.device]
        return figures_of_ranks

    def flops(self, dtype: str, fused: str = "") -> Floats:
        """Arithmetic per second, shape `(world_size,)` [FLOP/s].

        ``fused`` is the pass of a fused attention, empty for all else.
        """
        if (dtype, fused) not in self._flops:
            rates = [device.rate(dtype, fused) for device in self.different]
            self._flops[dtype, fused] = self._each(rates)
        return self._flops[dtype, fused]

    def of_products(self, flops: float | Floats, workload: Workload) -> float | Floats:
        """Time of the optimizer's matrix products [s]."""
        return flops / self.flops(matrix_dtype(workload, self.different)) if np.any(flops) else 0.0

    def moving(self, nbytes: float | Floats) -> Floats:
        """Time to read and write bytes in device memory [s]; a number applies to every rank."""
        return nbytes / self.bandwidth

    def updating(self, nbytes: float | Floats) -> Floats:
        """The same for an update, whose kernels stream through lists of tensors [s]."""
        return nbytes / self._stream


def roofline_of(cluster: Cluster) -> Roofline:
    """The roofline of a cluster's devices."""
    if isinstance(cluster.device, list) or cluster.ranks_per_device > 1:
        return Roofline(cluster.devices(), sharers=cluster.sharers())
    return Roofline([cluster.device], cluster.world_size)
