"""Rings and chains: recurrences whose rounds repeat, in closed form where one is known.

Max-plus algebra, as in `recurrences`; arrays of connections are in the order in which chunks pass
them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

import numpy as np

from simdp.arrays import Floats
from simdp.collectives import Plan
from simdp.engine.clocks.recurrences import Pace, Recorder
from simdp.engine.network import Connections

MAX_SPEEDS = 16
"""Speeds of a ring's connections for which a closed form beats going round by round."""


# Rings: connection r ends where connection r + 1 begins ------------------------------------------


def ring(
    plan: Plan, connections: Connections, pace: Pace, enter: Floats, record: Recorder | None
) -> Floats:
    """Every round as the first; in closed form where one is known.

    Parameters and result are those of `by_rank`.
    """
    time = pace.alpha + pace.per_chunk
    src, dst = connections.places.T[:2]
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
    if plan.slices > 1:
        return None
    return _by_pattern(time, first, partial(_ring_of_speeds, rounds=rounds))


def _by_pattern(
    time: Floats, first: Floats, closed: Callable[[Floats, Floats], Floats | None]
) -> Floats | None:
    """Apply a closed form to all groups whose connections are alike; None if one has none."""
    if (time == time[:, :1]).all():
        return closed(time[:, 0], first)
    alike: dict[bytes, list[int]] = {}
    for group, column in enumerate(time.T):
        alike.setdefault(column.tobytes(), []).append(group)
    end = np.empty_like(first)
    for mine in alike.values():
        found = closed(time[:, mine[0]], first[:, mine])
        if found is None:
            return None
        end[:, mine] = found
    return end


def _ring_of_speeds(time: Floats, first: Floats, rounds: int) -> Floats | None:
    """The ring of several nodes, whose connections have a few speeds.

    Walking back as in `_closed`, a way of j steps passes j + 1 connections and stays
    ``rounds - 1 - j`` times, best on the slowest that it passes. With the ring unrolled, and C[i]
    the time of the connections before i, a way from s to r whose slowest connection takes t ends at
    ``first[s] + C[r + 1] - C[s] + (rounds - 1 - (r - s)) t``.
    For each t, every start counts from which a way passes a connection as slow as t; where it
    passes a slower one, this says less than is true, which does no harm. Of the turns of the ring
    the last one counts: to go around once more passes the slowest connection, and from there on
    a way gains nothing over staying.

    Parameters
    ----------
    time : ndarray, shape `(n,)`
        Of each connection [s].
    first : ndarray, shape `(n, num_groups)`
        When each may start first [s].
    rounds : int
        Transfers on each connection.
    """
    n, speeds = len(time), np.unique(time)
    i = np.arange(3 * n)
    slowest = np.maximum.accumulate(np.where(np.tile(time == speeds[-1], 3), i, -1))
    too_long = rounds < (i - slowest)[2 * n :].max() + n
    if too_long or len(speeds) > MAX_SPEEDS:
        return None
    spent, r = _spent(np.tile(time, 3), speeds), i[2 * n :]
    starts = np.tile(first, (3, 1)) - spent[:-1, None]
    end = np.full_like(first, -np.inf)
    for t in speeds:
        last = np.maximum.accumulate(np.where(np.tile(time >= t, 3), i, -1))[2 * n :]
        best = _latest(starts + i[:, None] * t, n)[last]
        np.maximum(end, best + (spent[r + 1] + (rounds - 1 - r) * t)[:, None], out=end)
    return end


def _spent(time: Floats, speeds: Floats) -> Floats:
    """Time of all connections before each one, and of all; sums of few products, so that exact."""
    total = np.zeros(len(time) + 1)
    for t in speeds:
        total[1:] += np.cumsum(time == t) * t
    return total


def _latest(values: Floats, n: int) -> Floats:
    """Maximum over each value and the n - 1 before it, of three times n values; from n - 1 on."""
    blocks = values.reshape(3, n, -1)
    ahead = np.maximum.accumulate(blocks, axis=1).reshape(values.shape)
    back = np.maximum.accumulate(blocks[:, ::-1], axis=1)[:, ::-1].reshape(values.shape)
    found = np.full_like(values, -np.inf)
    found[n - 1 :] = np.maximum(ahead[n - 1 :], back[: 2 * n + 1])
    return found


# Chains: connection p begins where connection p - 1 ends ------------------------------------------


def chain(num_chunks: int, connections: Connections, pace: Pace, enter: Floats) -> Floats | None:
    """A pipeline of chunks along a chain, in closed form; None where there are many speeds.

    Walking back from the last chunk on connection p, a way leads over the connections before it to
    some connection q, passes each at least once, and stays ``num_chunks - 1`` times, best on the
    slowest that it passes:
    ``T[p] = max over q of first[q] + time[q] + ... + time[p] + (num_chunks - 1) slowest``.
    As in `_ring_of_speeds`, speed by speed.

    Parameters
    ----------
    num_chunks : int
        Chunks in the pipeline.
    connections, pace, enter
        As in `ring`.

    Returns
    -------
    ndarray, shaped as ``enter``, or None
        When each place is done [s].
    """
    src, dst = connections.places.T[:2]
    first = np.maximum(enter[src], enter[dst])
    time = pace.alpha + pace.per_chunk
    end = _by_pattern(time, first, partial(_chain_of_speeds, num_chunks=num_chunks))
    if end is None:
        return None
    done = np.full_like(enter, -np.inf)
    done[src] = end
    done[dst] = np.maximum(done[dst], end)
    return done


def _chain_of_speeds(time: Floats, first: Floats, num_chunks: int) -> Floats | None:
    speeds = np.unique(time)
    if len(speeds) > MAX_SPEEDS:
        return None
    spent, p = _spent(time, speeds), np.arange(len(time))
    starts = np.maximum.accumulate(first - spent[:-1, None], axis=0)
    end = np.full_like(first, -np.inf)
    for t in speeds:
        last = np.maximum.accumulate(np.where(time >= t, p, -1))
        there = last >= 0
        total = (spent[1:] + (num_chunks - 1) * t)[there, None]
        end[there] = np.maximum(end[there], starts[last[there]] + total)
    return end
