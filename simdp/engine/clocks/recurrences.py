"""Recurrences: when each transfer of a part ends, for all its groups at once.

Max-plus algebra: a transfer starts at the maximum of the instants that it waits for, and ends a
fixed time later. Places in a group are rows, groups are columns. A place that is a switch enters at
minus infinity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from simdp.arrays import Floats, Ints
from simdp.collectives import Plan
from simdp.engine.network import Connections, Turn


class Recorder(Protocol):
    """Takes the transfers of one round as they are found."""

    def __call__(self, pair: Ints, start: Floats, end: Floats, count: int | Ints) -> None:
        """Take transfers: their connections, instants per group [s], and chunks of each."""


@dataclass(frozen=True)
class Pace:
    """What a transfer of a part costs.

    Attributes
    ----------
    alpha, per_chunk : ndarray, shape `(num_pairs, num_groups)`
        Latency of each connection, and time of each chunk [s].
    each : sequence of ndarray, shape `(num_transfers, num_groups)`
        Time of the transfers of each round, where these do not tell it [s].
    """

    alpha: Floats
    per_chunk: Floats
    each: Sequence[Floats] = ()

    def of(self, number: int, turn: Turn) -> Floats:
        """Time of each transfer of a round, shape `(num_transfers, num_groups)` [s]."""
        if self.each:
            return self.each[number]
        count = turn.count if isinstance(turn.count, int) else turn.count[:, None]
        time: Floats = self.alpha[turn.pair] + self.per_chunk[turn.pair] * count
        return time


def _meet(done: Floats, places: Ints, end: Floats, once: bool) -> None:
    """Let places be done no earlier than some instants; ``once`` if none is listed twice."""
    if once:
        done[places] = np.maximum(done[places], end)
    else:
        np.maximum.at(done, places, end)


def _take_turns(turn: Turn, start: Floats, time: Floats) -> Floats:
    """When transfers end; several on one connection move ``start`` behind each other."""
    end: Floats = start + time
    if len(turn.in_line) > 1:
        before = np.full((int(turn.pair.max()) + 1, start.shape[1]), -np.inf)
        for line in turn.in_line:
            pair = turn.pair[line]
            start[line] = np.maximum(start[line], before[pair])
            before[pair] = end[line] = start[line] + time[line]
    return end


def by_rank(turns: list[Turn], pace: Pace, enter: Floats, record: Recorder | None) -> Floats:
    """Round by round: a transfer starts when both its ranks are through with earlier rounds.

    Parameters
    ----------
    turns : list of Turn
        The rounds.
    pace : Pace
        What transfers cost.
    enter : ndarray, shape `(num_places, num_groups)`
        When each place enters [s].
    record : Recorder, optional
        Takes the transfers.

    Returns
    -------
    ndarray, shaped as ``enter``
        When each place is done [s].
    """
    done = enter.copy()
    for number, turn in enumerate(turns):
        start = np.maximum(done[turn.src], done[turn.dst])
        end = _take_turns(turn, start, pace.of(number, turn))
        if record is not None:
            record(turn.pair, start, end, turn.count)
        _meet(done, turn.src, end, turn.once)
        _meet(done, turn.dst, end, turn.once)
    return done


def by_chunk(
    turns: list[Turn],
    plan: Plan,
    connections: Connections,
    pace: Pace,
    enter: Floats,
    record: Recorder | None,
) -> Floats:
    """Chunk by chunk: remember when each came to each place, and when each connection is free.

    Parameters and result are those of `by_rank`.
    """
    places = connections.places
    free = np.maximum(enter[places[:, 0]], enter[places[:, 1]])
    arrived = np.full((plan.num_vertices, plan.num_slots, enter.shape[1]), -np.inf)
    done = enter.copy()
    for number, turn in enumerate(turns):
        start = free[turn.pair]
        _wait_for_chunks(start, arrived, turn)
        end = _take_turns(turn, start, pace.of(number, turn))
        if record is not None:
            record(turn.pair, start, end, turn.count)
        _meet(free, turn.pair, end, len(turn.in_line) == 1)
        _arrive(arrived, turn, end)
        _meet(done, turn.src, end, turn.once)
        _meet(done, turn.dst, end, turn.once)
    return done


def _several(turn: Turn) -> tuple[Ints, Ints, Ints, Ints]:
    """Each chunk of each transfer: the transfer, where the chunk leaves and lands, and begins."""
    counts = np.broadcast_to(turn.count, turn.src.shape)
    each = np.repeat(np.arange(len(counts)), counts)
    begins = np.cumsum(counts) - counts
    within = (np.arange(len(each)) - begins[each]) * turn.stride
    return each, turn.chunk[each] + within, turn.to[each] + within, begins


def _wait_for_chunks(start: Floats, arrived: Floats, turn: Turn) -> None:
    if isinstance(turn.count, int) and turn.count == 1:
        np.maximum(start, arrived[turn.src, turn.chunk], out=start)
        return
    each, chunk, _, begins = _several(turn)
    latest = np.maximum.reduceat(arrived[turn.src[each], chunk], begins, axis=0)
    np.maximum(start, latest, out=start)


def _arrive(arrived: Floats, turn: Turn, end: Floats) -> None:
    if isinstance(turn.count, int) and turn.count == 1:
        places = turn.dst * arrived.shape[1] + turn.to
        _meet(arrived.reshape(-1, arrived.shape[2]), places, end, turn.once)
        return
    each, _, to, _ = _several(turn)
    np.maximum.at(arrived, (turn.dst[each], to), end[each])
