"""Idle: when each rank's compute stream rests, which is when it hides no communication.

A compute stream is busy nearly always, and the gaps in between are the same for all ranks: they
lie where a script waits. So gaps are kept, not spans of work: few arrays over all ranks.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

from simdp.arrays import Floats, Ints
from simdp.results.blocks import Block, columns_of, is_everyone
from simdp.results.trace import COMPUTE_LANE, Trace


class Idle:
    """The gaps between the spans of work of each rank, with those before and after all of them.

    Parameters
    ----------
    trace : Trace
        Every span of the run.
    world_size : int
        Number of ranks.
    beside : sequence of int
        Lanes on which a rank does not rest either, numbered as in the trace.
    """

    def __init__(self, trace: Trace, world_size: int, beside: Sequence[int] = ()) -> None:
        lanes = (COMPUTE_LANE, *beside)
        work = [b for b in trace.blocks if isinstance(b.lane, int) and b.lane in lanes]
        gaps, in_turn = _gaps(work, world_size) if not beside else ([], False)
        self._gaps = gaps if in_turn else _gaps_by_rank(work, world_size)
        self._bound()

    def _bound(self) -> None:
        """Find bounds by which most gaps need no look.

        No gap before the i-th ends after the i-th latest end; none after it begins before the
        i-th earliest begin.
        """
        begins, ends = [], []
        for begin, end in self._gaps:
            real = end > begin
            begins.append(float(begin[real].min()))
            ends.append(float(end[real].max()))
        self._latest_end = list(accumulate(ends, max))
        self._earliest_begin = list(accumulate(reversed(begins), min))[::-1]

    def within(self, ranks: Ints, start: Floats, end: Floats) -> Floats:
        """How long the compute streams of some ranks rest in some intervals.

        Parameters
        ----------
        ranks : ndarray, shape `(num_ranks,)`, int64
            Who.
        start, end : ndarray, shape `(..., num_ranks)`
            The intervals [s].

        Returns
        -------
        ndarray, shape `(..., num_ranks)`
            Seconds.
        """
        found = np.zeros(start.shape)
        first = bisect_right(self._latest_end, float(start.min()))
        last = bisect_left(self._earliest_begin, float(end.max()))
        everyone = is_everyone(ranks, len(self._gaps[0][0]))
        for begin, until in self._gaps[first:last]:
            if not everyone:
                begin, until = begin[ranks], until[ranks]
            found += np.maximum(np.minimum(end, until) - np.maximum(start, begin), 0.0)
        return found


def _gaps_by_rank(work: list[Block], world_size: int) -> list[tuple[Floats, Floats]]:
    """Tell the gaps of ranks whose work comes in any order, and may lie side by side.

    The first of each rank, then the second of each, and so on; who has none any more has one of no
    length, after all others.
    """
    columns = columns_of(work)
    order = np.lexsort([columns["start"], columns["rank"]])
    rank, start, end = (columns[key][order] for key in ("rank", "start", "end"))
    cuts = np.searchsorted(rank, np.arange(world_size + 1)).tolist()
    found = []
    for first, last in pairwise(cuts):
        done = np.maximum.accumulate(end[first:last])
        begin, until = np.append(-np.inf, done), np.append(start[first:last], np.inf)
        rests = until > begin
        found.append((begin[rests], until[rests]))
    ends = np.full((2, max(len(begin) for begin, _ in found), world_size), np.inf)
    for one, gaps in enumerate(found):
        ends[:, : len(gaps[0]), one] = gaps
    return [(begin, until) for begin, until in zip(*ends, strict=True)]


def _spread(values: Floats, ranks: Ints, others: Floats) -> Floats:
    """Give some ranks, which ascend, their values, and all others what they had."""
    if len(ranks) == len(others):
        return values
    spread = others.copy()
    spread[ranks] = values
    return spread


def _gaps(work: list[Block], world_size: int) -> tuple[list[tuple[Floats, Floats]], bool]:
    """Walk along blocks of work; tell the gaps, and whether the blocks allow such a walk.

    They do if they come in the order of time, and if the ranks of each ascend. A gap of no length
    stands for a rank that has none there.
    """
    gaps, in_turn = [], True
    last = np.full(world_size, -np.inf)
    for block in work:
        in_turn &= bool((block.ranks[1:] > block.ranks[:-1]).all())
        if block.start is not last:  # mostly, work begins with the very array that ended the last
            until = _spread(block.start, block.ranks, last)
            in_turn &= bool((until >= last).all())
            if (until > last).any():
                gaps.append((last, until))
        last = _spread(block.end, block.ranks, last)
    gaps.append((last, np.full(world_size, np.inf)))
    return gaps, in_turn
