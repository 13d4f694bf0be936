"""Arrows of a trace: from what ended to what began in the very same instant because of it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simdp.arrays import Floats
from simdp.results.trace import COMPUTE_LANE, Trace

MAX_ARROWS = 5_000
"""Arrows in a file; more would hide what they join."""

NEAR = 1e-9
"""Part of an instant by which two may differ and still be the same."""


def arrows(trace: Trace, entered: Floats) -> Iterator[tuple[int, int, float]]:
    """Find what depends on what, rank by rank, and then between ranks.

    Parameters
    ----------
    trace : Trace
        The spans that are shown.
    entered : ndarray, shape `(num_spans,)`
        When each span's rank came to it; of a collective that is before it waits [s].

    Yields
    ------
    int, int, float
        The places of two spans, and the instant in the second one that is meant [s]: a collective
        behind the kernel that ended when its rank came to it; a kernel behind the collective that
        it had to wait for; what waited for the rank that came last.
    """
    if not len(trace):
        return
    found = [*_of_ranks(trace, entered), *_between_ranks(trace, entered)]
    yield from found[:MAX_ARROWS]


def _of_ranks(trace: Trace, entered: Floats) -> Iterator[tuple[int, int, float]]:
    is_comm = trace.select("comm")
    heads = np.flatnonzero(np.diff(trace.rank, prepend=-1))
    for begin, end in zip(heads, [*heads[1:], len(trace)], strict=True):
        mine = np.arange(begin, end)
        work = mine[trace.lane[mine] == COMPUTE_LANE]
        calls = mine[is_comm[mine]]
        if not len(work) or not len(calls):
            continue
        behind = _ending_at(trace.end[work], entered[calls])
        for call, place in zip(calls, behind, strict=True):
            if place >= 0:
                yield int(work[place]), int(call), float(entered[call])
        idle = np.ones(len(work), dtype=bool)
        idle[1:] = trace.start[work[1:]] > trace.end[work[:-1]]
        held = work[idle]
        by_end = calls[np.argsort(trace.end[calls], kind="stable")]
        behind = _ending_at(trace.end[by_end], trace.start[held])
        for kernel, place in zip(held, behind, strict=True):
            if place >= 0:
                yield int(by_end[place]), int(kernel), float(trace.start[kernel])


def _ending_at(ends: Floats, instants: Floats) -> list[int]:
    """Places of the ends, which ascend, that are the same instants; -1 where none is."""
    right = np.minimum(np.searchsorted(ends, instants * (1 - NEAR)), len(ends) - 1)
    near = np.abs(ends[right] - instants) <= NEAR * instants
    return [int(place) for place in np.where(near, right, -1)]


def _between_ranks(trace: Trace, entered: Floats) -> Iterator[tuple[int, int, float]]:
    calls = np.flatnonzero(trace.select("comm") & (trace.nbytes >= 0))
    waited = trace.start > entered
    if not len(calls):
        return
    keys = np.stack([trace.step[calls], trace.lane[calls], trace.name[calls]])
    order = np.lexsort([trace.start[calls], *keys[::-1]])
    calls, keys = calls[order], keys[:, order]
    # Of one name in a step there may be several calls, each of which begins where all have come.
    new = np.ones(len(calls), dtype=bool)
    new[1:] = (keys[:, 1:] != keys[:, :-1]).any(axis=0)
    start = trace.start[calls]
    new[1:] |= start[1:] - start[:-1] > NEAR * np.abs(start[1:])
    heads = np.flatnonzero(new)
    for begin, end in zip(heads, [*heads[1:], len(calls)], strict=True):
        group = calls[begin:end]
        last = group[int(np.argmax(entered[group]))]
        if waited[last] or not waited[group].any():
            continue
        for one in group[waited[group]]:
            yield int(last), int(one), float(trace.start[one])
