"""Window: the time that a timeline shows, and the spans in it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simdp.arrays import Floats
from simdp.results.blocks import Block, part
from simdp.results.metrics import num_warm_up
from simdp.results.trace import ACTIVITIES, COMPUTE_LANE, Trace

NUM_STEPS = 2
"""Steps that are shown of one run."""

SPARSE = 2.0
"""Last steps that take so many times as long as any rank's own are apart: most would be empty."""

_TRANSFER = ACTIVITIES.index("transfer")


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

    @property
    def length(self) -> float:
        """How long it is [s]."""
        return self.end - self.begin

    def cut(self, trace: Trace) -> Trace:
        """Keep the spans that get bars: not single transfers, and not what lies outside."""
        blocks = []
        for block in trace.blocks:
            if block.activity == _TRANSFER or (not self.apart and block.step < self.steps[0]):
                continue
            inside = (block.end > self.begin) & (block.start < self.end)
            if not self.apart:
                inside |= block.start == block.end  # which ends a step, or begins it
            if inside.any():
                blocks.append(part(block, np.flatnonzero(inside)))
        return Trace(blocks, trace.names)


def window_of(trace: Trace, num_steps: int = NUM_STEPS) -> Window:
    """Choose what to show of a run of at least one step: the last ones that are steady.

    The first of several steps is warm-up, as for the metrics. Where ranks do not wait for each
    other, the last steps lie far apart on the clock. Then it is the time before the first rank is
    done, as long as the slowest one's last steps.
    """
    drawn = [block for block in trace.blocks if block.activity != _TRANSFER]
    last = max(block.step for block in drawn)
    first = max(num_warm_up(last + 1), last - num_steps + 1)
    steps = range(first, last + 1)
    shown = [block for block in drawn if block.step >= first]
    size = max(int(block.ranks.max()) for block in drawn) + 1
    starts, ends = _extremes(shown, size)
    begin, end = float(starts.min()), float(ends.max())
    own = float((ends - starts).max())
    if not first or end - begin <= SPARSE * own:
        return Window(begin, end if end > begin else begin + 1e-9, steps, False)
    learns = [block for block in drawn if block.step >= 0 and _is_compute(block)]
    starts, ends = _extremes(learns, size)
    end = float(ends[ends > -np.inf].min())  # ranks without samples are done at once
    begin = max(float(starts.min()), end - own)
    return Window(begin, end, steps, True)


def _is_compute(block: Block) -> bool:
    return not isinstance(block.lane, np.ndarray) and block.lane == COMPUTE_LANE


def _extremes(blocks: list[Block], size: int) -> tuple[Floats, Floats]:
    """First start and last end of each rank [s]; infinite of ranks without a span."""
    starts, ends = np.full(size, np.inf), np.full(size, -np.inf)
    for block in blocks:
        np.minimum.at(starts, block.ranks, block.start)
        np.maximum.at(ends, block.ranks, block.end)
    return starts, ends
