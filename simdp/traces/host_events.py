"""Host events: what the processor did for a rank, as columns."""

from __future__ import annotations

from dataclasses import dataclass

from simdp.arrays import Floats, Ints

OP, ANNOTATION, RUNTIME = range(3)
"""Kinds of host events: operators, annotations, calls of the device's runtime and driver."""

HOST_KINDS = ("op", "annotation", "runtime")
"""The kinds in words, by their codes."""


@dataclass(frozen=True, eq=False)
class HostEvents:
    """Operators, annotations and calls of the runtime, sorted by their start.

    Attributes
    ----------
    names : tuple of str
        Every name once.
    name : ndarray, int64
        Which of ``names`` each has.
    kind : ndarray, int64
        ``OP``, ``ANNOTATION`` or ``RUNTIME``.
    start, end : ndarray, float64
        After the trace's origin [s].
    thread : ndarray, int64
        On which thread.
    step : ndarray, int64
        Index of the step in which it began, or -1.
    """

    names: tuple[str, ...]
    name: Ints
    kind: Ints
    start: Floats
    end: Floats
    thread: Ints
    step: Ints

    def __len__(self) -> int:
        return len(self.start)
