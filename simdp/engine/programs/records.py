"""Records: the spans of a program, on lanes that nothing overlaps on.

A rank's first communication lane takes every call that finds it free; what is under way beside that
goes to a further lane.
"""

from __future__ import annotations

import numpy as np

from simdp.arrays import Floats, Ints
from simdp.results.trace import COMM_LANE, COMPUTE_LANE, FIRST_STREAM_LANE, Trace, TraceBuilder

STEP = 0
"""A program has no steps; all that it does is in one."""

ROUNDING = 1e-12
"""A wait that is shorter than this part of the clock is what rounding makes of none."""


class Records:
    """Collects the spans of all ranks.

    Parameters
    ----------
    world_size : int
        Number of ranks.
    """

    def __init__(self, world_size: int) -> None:
        self._builder = TraceBuilder()
        self._busy = [np.zeros(world_size)]  # until when, by lane

    def compute(self, rank: int, activity: str, name: str, start: float, end: float) -> None:
        """Add work of a rank [s]."""
        self._builder.add_one(rank, STEP, COMPUTE_LANE, activity, name, start, end)

    def call(
        self, ranks: Ints, name: str, ready: Floats, enter: Floats, end: Floats, nbytes: Floats
    ) -> None:
        """Add a call: each rank waits for the slowest to be ready, then takes part.

        Parameters
        ----------
        ranks : ndarray, shape `(num_places,)`, int64
            Who.
        name : str
            The call.
        ready, enter, end : ndarray, shape `(num_places,)`
            When each rank asks for it, when its stream is free for it, and when it is done [s].
        nbytes : ndarray, shape `(num_places,)`
            What each rank sends [bytes].
        """
        latest = ready.max()
        begin = np.minimum(np.maximum(enter, latest), end)
        begin = np.where(begin - enter > ROUNDING * latest, begin, enter)
        self._add(ranks, name, enter, begin, end, nbytes)

    def message(
        self, rank: int, name: str, enter: float, begin: float, end: float, nbytes: float
    ) -> None:
        """Add a rank's part of a message: it waits for the other rank, then takes part [s]."""
        number = 0
        while number < len(self._busy) and self._busy[number][rank] > enter:
            number += 1
        if number == len(self._busy):
            self._busy.append(np.zeros_like(self._busy[0]))
        self._busy[number][rank] = end
        lane = _lane(number)
        if begin > enter:
            self._builder.add_one(rank, STEP, lane, "wait", name, enter, begin)
        self._builder.add_one(rank, STEP, lane, "comm", name, begin, end, nbytes)

    def _add(
        self, ranks: Ints, name: str, enter: Floats, begin: Floats, end: Floats, nbytes: Floats
    ) -> None:
        lane = self._lanes(ranks, enter, end)
        waits = np.flatnonzero(begin > enter)
        if len(waits):
            early = ranks[waits], STEP, _one_or_all(lane[waits])
            self._builder.add(*early, "wait", name, enter[waits], begin[waits])
        self._builder.add(ranks, STEP, _one_or_all(lane), "comm", name, begin, end, nbytes)

    def _lanes(self, ranks: Ints, start: Floats, end: Floats) -> Ints:
        """The first lane of each rank that is free from a start on."""
        lanes = np.full(len(ranks), -1)
        number = 0
        while (left := np.flatnonzero(lanes < 0)).size:
            if number == len(self._busy):
                self._busy.append(np.zeros_like(self._busy[0]))
            busy = self._busy[number]
            taken = left[busy[ranks[left]] <= start[left]]
            busy[ranks[taken]] = end[taken]
            lanes[taken] = _lane(number)
            number += 1
        return lanes

    def build(self) -> Trace:
        """Hand over all spans."""
        return self._builder.build()


def _lane(number: int) -> int:
    """The lane of a rank's communication of this number, from 0."""
    return COMM_LANE if number == 0 else FIRST_STREAM_LANE + number - 1


def _one_or_all(lanes: Ints) -> int | Ints:
    """A number, where all are equal: it takes less room."""
    return int(lanes[0]) if (lanes == lanes[0]).all() else lanes
