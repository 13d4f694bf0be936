"""Times of an operator's kernels on a device.

The roofline is that of scenarios (`simdp.engine.compute.roofline`), kernel by kernel.
"""

from __future__ import annotations

import torch

from simdp.cluster.hardware import DTYPES, TENSOR_CORES, Device
from simdp.engine.compute.roofline import native_batch_norm
from simdp.engine.programs.runtime import Activity
from simdp.errors import ProgramError
from simdp.torch.kernels import OperatorKernels
from simdp.workload.layers.base import ALIGNMENT

PRODUCTS = ("product", "fused_attention")


class Speed:
    """Speed of a device shared by ``sharers`` ranks; ``launch`` is a kernel's launch time [s]."""

    def __init__(self, device: Device, sharers: int = 1) -> None:
        self.device, self.sharers = device, sharers
        self._part = device.slice(sharers) if sharers > 1 else device
        self.launch, self._bandwidth = self._part.launch, self._part.memory_rate
        self._stream = self._part.stream_rate

    def seconds(
        self,
        launched: OperatorKernels,
        dtype: torch.dtype,
        itemsize: float,
        allow_tf32: bool = False,
        activity: Activity = "forward",
    ) -> float:
        """Return the time of an operator's consecutive kernels [s].

        ``itemsize`` is the mean of bytes per real number; ``allow_tf32`` allows products of float32
        in tfloat32 (``allow_tf32`` of ``torch.backends.cuda.matmul``, or of ``cudnn``, where it is
        torch's default); ``activity`` is the pass, for fused attention.

        Raises
        ------
        ProgramError
            If the device has no peak for products in this dtype.
        """
        if not launched.kernels:
            return 0.0
        arithmetic = launched.arithmetic or str(dtype).removeprefix("torch.")
        name, rate, half_work = self._rate(launched.policy, arithmetic, allow_tf32, activity)
        total = 0.0
        for kernel in launched.kernels:
            nbytes = kernel.elements * itemsize + kernel.nbytes
            moving = self.moving(nbytes)
            if kernel.normalizes and dtype is torch.bfloat16:
                moving = nbytes / native_batch_norm(self._part)
            flops = kernel.flops + half_work if kernel.flops else 0.0
            if kernel.width * itemsize % ALIGNMENT and name in TENSOR_CORES:
                flops /= self._part.misaligned_efficiency
            total += max(flops / rate, moving) + self.launch
        return total

    def moving(self, nbytes: float) -> float:
        """Return the time to read and write bytes in device memory [s]."""
        return nbytes / self._bandwidth

    def updating(self, nbytes: float) -> float:
        """Return the same for an update, whose kernels stream through lists of tensors [s]."""
        return nbytes / self._stream

    def _rate(
        self, policy: str, name: str, allow_tf32: bool, activity: Activity
    ) -> tuple[str, float, float]:
        """Return the arithmetic, its FLOP/s, and the extra work of a product [FLOP]."""
        peak = self._part.peak
        if policy not in PRODUCTS:
            name = name if name in peak else next(iter(peak))
            return name, self._part.rate(name), 0.0
        if allow_tf32 and name == "float32" and "tfloat32" in peak:
            name = "tfloat32"
        if name == "int8":  # as fast as float8, and on devices without it not below float16
            name = "float8" if "float8" in peak else "float16"
        if name not in peak:
            dtypes = ", ".join(dtype for dtype in DTYPES if dtype in peak)
            raise ProgramError(
                f"products in {name}: {self.device.name or 'the device'} has no peak for this "
                f"dtype, only for {dtypes}; choose one of these, or another --cluster."
            )
        fused = activity if policy == "fused_attention" else ""
        return name, self._part.rate(name, fused), self._part.half_work
