"""Kernels: what a device did, as columns.

In a trace without a device the outermost operators of each thread stand in for kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

from simdp.arrays import Floats, Ints

COMPUTE, COMMUNICATION, COPY, SET, SYNC = range(5)
"""Kinds of kernels: work, collectives and messages, gpu_memcpy, gpu_memset, cuda_sync."""

KERNEL_KINDS = ("compute", "communication", "copy", "set", "sync")
"""The kinds in words, by their codes."""


@dataclass(frozen=True, eq=False)
class Kernels:
    """Device events, sorted by their start.

    Attributes
    ----------
    names : tuple of str
        Every name once.
    name : ndarray, int64
        Which of ``names`` each has.
    kind : ndarray, int64
        ``COMPUTE``, ``COMMUNICATION``, ``COPY``, ``SET`` or ``SYNC``.
    start, end : ndarray, float64
        On the device, after the trace's origin [s].
    stream : ndarray, int64
        On which stream; without a device, of which thread.
    device : ndarray, int64
        Which device of the process; -1 unknown.
    launched, launch_end : ndarray, float64
        The host call that launched it [s]; nan if it is not in the trace.
    step : ndarray, int64
        Index of the step in which it was *launched*, -1 outside of all, or if that is not known.
    op : ndarray, int64
        Index into the host events of the operator that it belongs to, or -1.
    nbytes : ndarray, float64
        Of copies and sets [bytes]; nan for all else.
    """

    names: tuple[str, ...]
    name: Ints
    kind: Ints
    start: Floats
    end: Floats
    stream: Ints
    device: Ints
    launched: Floats
    launch_end: Floats
    step: Ints
    op: Ints
    nbytes: Floats

    def __len__(self) -> int:
        return len(self.start)
