"""Recurrences: when each transfer of a part ends, for all its groups at once.

Max-plus algebra: a transfer starts at the maximum of the instants that it waits for, and ends a
fixed time later. Places in a group are rows, groups are columns. A place that is a switch enters at
minus infinity.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from simdp.collectives import Plan
from simdp.engine.network import Connections, Turn

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


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
    """

    alpha: Floats
    per_chunk: Floats

    def of(self, turn: Turn) -> Floats:
        """Time of each transfer of a round, shape `(num_transfers, num_groups)` [s]."""
        count = turn.count if isinstance(turn.count, int) else turn.count[:, None]
        time: Floats = self.alpha[turn.pair] + self.per_chunk[turn.pair] * count
        return time

    def has_two_speeds(self) -> bool:
        """Whether single chunks take one of two times, at the same places in every group."""
        time = self.alpha + self.per_chunk
        return two_speeds(time) is not None


def two_speeds(time: Floats) -> NDArray[np.bool_] | None:
    """Mark the slow connections, where all groups have the same ones and only two speeds.

    Parameters
    ----------
    time : ndarray, shape `(num_pairs, num_groups)`
        Of a transfer on each connection [s].

    Returns
    -------
    ndarray of bool, shape `(num_pairs,)`, or None
        None where there are more speeds.
    """
    fast, slow = time.min(axis=0), time.max(axis=0)
    is_slow: NDArray[np.bool_] = time[:, 0] > fast[0]
    alike = (time == np.where(is_slow[:, None], slow, fast)).all()
    return is_slow if alike else None


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
    for turn in turns:
        start = np.maximum(done[turn.src], done[turn.dst])
        end = _take_turns(turn, start, pace.of(turn))
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
    for turn in turns:
        start = free[turn.pair]
        _wait_for_chunks(start, arrived, turn)
        end = _take_turns(turn, start, pace.of(turn))
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


# Rings: connection r ends where connection r + 1 begins ------------------------------------------


def ring(
    plan: Plan, connections: Connections, pace: Pace, enter: Floats, record: Recorder | None
) -> Floats:
    """Every round as the first; in closed form where one is known.

    Parameters and result are those of `by_rank`.
    """
    time = pace.alpha + pace.per_chunk
    src, dst = connections.places.T
    first = np.maximum(enter[src], enter[dst])
    end = None if record is not None else _closed(plan, time, first)
    if end is None:
        end = _round_by_round(plan, time, first, record)
    done = np.empty_like(end)
    done[src] = np.maximum(end, np.roll(end, 1, axis=0))
    return done


def _round_by_round(plan: Plan, time: Floats, first: Floats, record: Recorder | None) -> Floats:
    """T[q] = max(T[q - 1] here, T[q - slices] on the connection before) + time."""
    pair, n = np.arange(len(first)), len(first)
    start, end = first, first + time
    behind = deque([end], maxlen=plan.slices)
    if record is not None:
        record(pair, start, end, 1)
    for q in range(1, plan.num_rounds):
        start = end
        if q >= plan.slices:
            start = np.empty_like(end)
            np.maximum(end[1:], behind[0][: n - 1], out=start[1:])
            np.maximum(end[0], behind[0][n - 1], out=start[0])
        end = start + time
        behind.append(end)
        if record is not None:
            record(pair, start, end, 1)
    return end


def _closed(plan: Plan, time: Floats, first: Floats) -> Floats | None:
    """When the last transfer of every connection ends, or None where no formula is known.

    Walking back from that transfer, each step leads to the one before it on the connection or to
    the one that brought what it sends. With equal links, j steps of the second kind lead to the
    connection r - j and skip ``slices - 1`` transfers each, so that
    ``T[r] = max over j of first[r - j] + (rounds - j (slices - 1)) time``.
    """
    n, rounds = len(first), plan.num_rounds
    if rounds // plan.slices < n - 1:  # not every start can be reached
        return None
    if (time == time[:1]).all():
        if plan.slices == 1:
            latest: Floats = first.max(axis=0) + rounds * time[0]
            return np.broadcast_to(latest, first.shape)
        lost = (plan.slices - 1) * time[0] * np.arange(2 * n)[:, None]
        best = np.maximum.accumulate(np.concatenate([first, first]) + lost, axis=0) - lost
        found: Floats = best[n:] + rounds * time[0]
        return found
    return _two_speeds(time, first, rounds) if plan.slices == 1 else None


def _two_speeds(time: Floats, first: Floats, rounds: int) -> Floats | None:
    """The ring of several nodes: fast links, and slow ones at the same places in every group.

    Walking back as in `_closed`, a way of j steps from r passes j + 1 connections and stays
    ``rounds - 1 - j`` times, best on a slow one. With the ring unrolled, and C[i] the time of the
    connections before i, a way from s over a slow one to r takes
    ``first[s] + C[r + 1] - C[s] + (rounds - 1 - (r - s)) slow``,
    whose part in s has its maximum over all s up to the last slow connection before r. Ways that
    pass no slow one are shorter than those that go around once more.
    """
    n, fast, slow = len(first), time.min(axis=0), time.max(axis=0)
    is_slow = two_speeds(time)
    if is_slow is None:
        return None
    i = np.arange(3 * n)
    unrolled = np.tile(is_slow, 3)
    last_slow = np.maximum.accumulate(np.where(unrolled, i, -1))[2 * n :]
    if rounds < (i[2 * n :] - last_slow).max() + n:  # some ways are too long
        return None
    before = np.concatenate([[0], np.cumsum(unrolled)])[:, None]
    spent = np.arange(3 * n + 1)[:, None] * fast + before * (slow - fast)  # C
    starts = np.tile(first, (3, 1)) - spent[:-1] + i[:, None] * slow
    best = np.maximum.accumulate(starts, axis=0)[last_slow]
    r = i[2 * n :, None]
    found: Floats = best + spent[r[:, 0] + 1] + (rounds - 1 - r) * slow
    return found


# Chains: connection p begins where connection p - 1 ends ------------------------------------------


def chain(num_chunks: int, connections: Connections, pace: Pace, enter: Floats) -> Floats:
    """A pipeline of chunks along a chain of one or two speeds, in closed form.

    Walking back from the last chunk on connection p, a way leads over the connections before it to
    some connection q, passes each at least once, and stays ``num_chunks - 1`` times, best on the
    slowest that it passes:
    ``T[p] = max over q of first[q] + time[q] + ... + time[p] + (num_chunks - 1) slowest``.
    Ways over a slow connection start at the last slow one before p, or earlier; to take earlier
    starts for ways without one does no harm, since they then count for less than they are.

    Parameters
    ----------
    num_chunks : int
        Chunks in the pipeline.
    connections, pace, enter
        As in `ring`; `Pace.has_two_speeds`.

    Returns
    -------
    ndarray, shaped as ``enter``
        When each place is done [s].
    """
    time = pace.alpha + pace.per_chunk
    src, dst = connections.places.T
    first = np.maximum(enter[src], enter[dst])
    fast, slow = time.min(axis=0), time.max(axis=0)
    is_slow = two_speeds(time)
    assert is_slow is not None
    p = np.arange(len(time))[:, None]
    passed = np.cumsum(is_slow)[:, None]  # slow connections up to p
    spent = (p + 1) * fast + passed * (slow - fast)
    starts = np.maximum.accumulate(first - (spent - time), axis=0)
    end = starts + spent + (num_chunks - 1) * fast
    last_slow = np.maximum.accumulate(np.where(is_slow, p[:, 0], -1))
    over = last_slow >= 0
    through = starts[last_slow[over]] + spent[over] + (num_chunks - 1) * slow
    end[over] = np.maximum(end[over], through)
    done = np.full_like(enter, -np.inf)
    done[src] = end
    done[dst] = np.maximum(done[dst], end)
    return done
