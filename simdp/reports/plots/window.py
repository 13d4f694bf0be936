"""Window: the time that a timeline shows, and the spans in it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simdp.arrays import Bools
from simdp.results.trace import COMM_LANE, COMPUTE_LANE, FIRST_STREAM_LANE, Trace

NUM_STEPS = 2
"""Steps that are shown."""

SPARSE = 2.0
"""Last steps that take so many times as long as any rank's own are apart: most would be empty."""


class Window(NamedTuple):
    """The time that is shown.

    Attributes
    ----------
    begin, end : float
        Instants [s].
    steps : range
        The last ones, which are shown whole.
    apart : bool
        Whether ranks go through these at times so different that not they are shown, but what all
        ranks do at the same time.
    """

    begin: float
    end: float
    steps: range
    apart: bool

    def holds(self, trace: Trace) -> Bools:
        """Tell which spans get bars."""
        if self.apart:
            return _drawn(trace) & (trace.end > self.begin) & (trace.start < self.end)
        return _drawn(trace) & (trace.step >= self.steps[0])


def window_of(trace: Trace) -> Window:
    """Choose what to show of a run of at least one step: the last two.

    Where ranks do not wait for each other, these lie far apart on the clock. Then it is the time
    before the first rank is done, as long as the slowest one's last two steps.
    """
    last = int(trace.step.max())
    steps = range(max(0, last - NUM_STEPS + 1), last + 1)
    shown = (trace.step >= steps[0]) & _drawn(trace)
    begin, end = float(trace.start[shown].min()), float(trace.end[shown].max())
    mine, size = trace.rank[shown], int(trace.rank.max()) + 1
    starts, ends = np.full(size, np.inf), np.full(size, -np.inf)
    np.minimum.at(starts, mine, trace.start[shown])
    np.maximum.at(ends, mine, trace.end[shown])
    own = float((ends - starts).max())
    if not steps[0] or end - begin <= SPARSE * own:
        return Window(begin, end if end > begin else begin + 1e-9, steps, False)
    learns = (trace.step >= 0) & (trace.lane == COMPUTE_LANE)
    at_work = np.unique(trace.rank[learns])  # others may be done at once
    end = float(ends[at_work].min())
    begin = max(float(trace.start[learns].min()), end - own)
    return Window(begin, end, steps, True)


def _drawn(trace: Trace) -> Bools:
    """Spans that get bars: not single transfers. All streams share a row of bars."""
    return (trace.lane <= COMM_LANE) | (trace.lane >= FIRST_STREAM_LANE)
