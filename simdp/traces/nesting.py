"""Nesting: which event of a thread lies in which other."""

from __future__ import annotations

import numpy as np

from simdp.arrays import Array, Bools, Floats, Ints


def parents(start: Array, end: Array) -> Ints:
    """Find the event in which each event of one thread lies; -1 for none.

    Parameters
    ----------
    start, end : ndarray, shape `(n,)`
        Sorted by the start, longer ones first.

    Returns
    -------
    ndarray, shape `(n,)`, int64
    """
    found = np.full(len(start), -1, dtype=np.int64)
    open_events: list[int] = []
    ends = end.tolist()
    for i, (begin, until) in enumerate(zip(start.tolist(), ends, strict=True)):
        while open_events and (ends[open_events[-1]] <= begin or ends[open_events[-1]] < until):
            open_events.pop()
        if open_events:
            found[i] = open_events[-1]
        open_events.append(i)
    return found


def innermost(start: Array, end: Array, up: Ints, at: Array) -> Ints:
    """Find the innermost event that holds each instant; -1 for none.

    Parameters
    ----------
    start, end, up : ndarray, shape `(n,)`
        Of one thread, sorted, and their `parents`.
    at : ndarray, shape `(m,)`
        Instants.

    Returns
    -------
    ndarray, shape `(m,)`, int64
    """
    found: Ints = np.searchsorted(start, at, side="right") - 1
    out = np.flatnonzero(found >= 0)
    while len(out := out[end[found[out]] < at[out]]):
        found[out] = up[found[out]]
        out = out[found[out] >= 0]
    return found


class Threads:
    """Events of several threads, to be asked where an instant of one lies.

    Parameters
    ----------
    start, end : ndarray, shape `(n,)`
        Sorted by the start, longer ones first.
    thread : ndarray, shape `(n,)`, int64
        Whose.

    Attributes
    ----------
    is_outermost : ndarray, shape `(n,)`, bool
        Whether each lies in no other.
    """

    def __init__(self, start: Array, end: Array, thread: Ints) -> None:
        self._start, self._end = start, end
        self.is_outermost: Bools = np.zeros(len(start), dtype=bool)
        self._of: dict[int, tuple[Ints, Ints]] = {}
        for tid in np.unique(thread).tolist():
            mine = np.flatnonzero(thread == tid)
            up = parents(start[mine], end[mine])
            self.is_outermost[mine] = up < 0
            self._of[tid] = mine, up

    def holding(self, at: Floats | Ints, thread: Ints) -> Ints:
        """Index of the innermost event that holds each instant of a thread; -1 for none."""
        found = np.full(len(at), -1, dtype=np.int64)
        for tid in np.unique(thread).tolist():
            if tid in self._of:
                mine, up = self._of[tid]
                asked = np.flatnonzero(thread == tid)
                inside = innermost(self._start[mine], self._end[mine], up, at[asked])
                found[asked] = np.where(inside >= 0, mine[inside], -1)
        return found
