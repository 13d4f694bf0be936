"""The vectorised clock: times of whole collectives as arrays over all ranks.

Max-plus algebra: a transfer starts at the maximum of the instants that it depends on, and ends a
fixed time later. Rows are places in a group, columns are groups; a switch enters at minus infinity.
Connections are sorted in the order in which chunks pass them.

Exact where no link is used by two transfers at a time: then a transfer's duration does not depend
on other transfers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import NamedTuple, Protocol

import numpy as np

from simdp.arrays import Floats, Ints
from simdp.cluster.hardware import Overheads
from simdp.collectives import Plan, SubPlan
from simdp.engine.network import Connections, NetworkRoutes, RoundTransfers
from simdp.engine.network.traffic import REPEATING, Lockstep
from simdp.engine.ops import (
    ClockBarrier,
    ClockOp,
    ClockWait,
    ComputeWork,
    Feed,
    FusedWork,
    Launch,
    MemoryChange,
)
from simdp.engine.slowdown import Slowdown
from simdp.errors import OperationError
from simdp.results.trace import (
    COMM_LANE,
    COMPUTE_LANE,
    FIRST_SEND_LANE,
    FIRST_STREAM_LANE,
    CallSize,
    TraceBuilder,
)

# Recurrences --------------------------------------------------------------------------------------


class TransferRecorder(Protocol):
    """Records the transfers of one round."""

    def __call__(self, pair: Ints, start: Floats, end: Floats, count: int | Ints) -> None:
        """Record transfers: their connections, instants per group [s], and chunks of each."""


@dataclass(frozen=True)
class TransferPace:
    """Durations of a part's transfers.

    ``alpha`` and ``per_chunk``, of shape `(num_pairs, num_groups)`, are the latency of each
    connection and the time of each chunk [s]; ``each`` replaces them by the times of each round's
    transfers [s].
    """

    alpha: Floats
    per_chunk: Floats
    each: Sequence[Floats] = ()

    def of(self, number: int, turn: RoundTransfers) -> Floats:
        """Time of each transfer of a round, shape `(num_transfers, num_groups)` [s]."""
        if self.each:
            return self.each[number]
        count = turn.count if isinstance(turn.count, int) else turn.count[:, None]
        return self.alpha[turn.pair] + self.per_chunk[turn.pair] * count


def _meet(done: Floats, places: Ints, end: Floats, once: bool) -> None:
    """Raise ``done`` at some places to the given instants; ``once``: no place is listed twice."""
    if once:
        done[places] = np.maximum(done[places], end)
    else:
        np.maximum.at(done, places, end)


def _take_turns(turn: RoundTransfers, start: Floats, time: Floats) -> Floats:
    """Ends of transfers; several on one connection run in turn, which moves their ``start``."""
    end: Floats = start + time
    if len(turn.in_line) > 1:
        before = np.full((int(turn.pair.max()) + 1, start.shape[1]), -np.inf)
        for line in turn.in_line:
            pair = turn.pair[line]
            start[line] = np.maximum(start[line], before[pair])
            before[pair] = end[line] = start[line] + time[line]
    return end


def by_rank(
    turns: list[RoundTransfers], pace: TransferPace, enter: Floats, record: TransferRecorder | None
) -> Floats:
    """Round by round: a transfer starts when both its ranks have finished earlier rounds.

    Parameters
    ----------
    turns : list of RoundTransfers
        The rounds.
    pace : TransferPace
        Durations of transfers.
    enter : ndarray, shape `(num_places, num_groups)`
        When each place enters [s].
    record : TransferRecorder, optional
        Records the transfers.
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
    turns: list[RoundTransfers],
    plan: Plan,
    connections: Connections,
    pace: TransferPace,
    enter: Floats,
    record: TransferRecorder | None,
) -> Floats:
    """Chunk by chunk: a transfer starts when its chunks have arrived and its connection is free.

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


def _several(turn: RoundTransfers) -> tuple[Ints, Ints, Ints, Ints]:
    """Expand transfers into chunks: transfer, source and target chunk; first of each transfer."""
    counts = np.broadcast_to(turn.count, turn.src.shape)
    row = np.repeat(np.arange(len(counts)), counts)
    begins = np.cumsum(counts) - counts
    within = (np.arange(len(row)) - begins[row]) * turn.stride
    return row, turn.chunk[row] + within, turn.to[row] + within, begins


def _wait_for_chunks(start: Floats, arrived: Floats, turn: RoundTransfers) -> None:
    if isinstance(turn.count, int) and turn.count == 1:
        np.maximum(start, arrived[turn.src, turn.chunk], out=start)
        return
    row, chunk, _, begins = _several(turn)
    latest = np.maximum.reduceat(arrived[turn.src[row], chunk], begins, axis=0)
    np.maximum(start, latest, out=start)


def _arrive(arrived: Floats, turn: RoundTransfers, end: Floats) -> None:
    if isinstance(turn.count, int) and turn.count == 1:
        places = turn.dst * arrived.shape[1] + turn.to
        _meet(arrived.reshape(-1, arrived.shape[2]), places, end, turn.once)
        return
    row, _, to, _ = _several(turn)
    np.maximum.at(arrived, (turn.dst[row], to), end[row])


MAX_SPEEDS = 16
"""Distinct speeds of a ring's connections up to which a closed form is faster than rounds."""


# Rings: connection r ends where connection r + 1 begins -----------------------------------------


def ring(
    plan: Plan,
    connections: Connections,
    pace: TransferPace,
    enter: Floats,
    record: TransferRecorder | None,
) -> Floats:
    """A ring with equal rounds; in closed form where one exists.

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


def _round_by_round(
    plan: Plan, time: Floats, first: Floats, record: TransferRecorder | None
) -> Floats:
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
    """End of the last transfer of every connection, or None without a closed form.

    Walking back from that transfer, each step leads to the previous one on the connection or to the
    one
    that delivered its chunk. With equal links, j steps of the second kind lead to connection r - j
    and
    skip ``slices - 1`` transfers each, so that
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
        ends: Floats = best[n:] + rounds * time[0]
        return ends
    if plan.slices > 1:
        return None
    return _by_pattern(time, first, partial(_ring_of_speeds, rounds=rounds))


def _by_pattern(
    time: Floats, first: Floats, closed: Callable[[Floats, Floats], Floats | None]
) -> Floats | None:
    """Apply a closed form to each set of groups with equal connections; None if one fails."""
    if (time == time[:, :1]).all():
        return closed(time[:, 0], first)
    groups_by_pattern: dict[bytes, list[int]] = {}
    for group, column in enumerate(time.T):
        groups_by_pattern.setdefault(column.tobytes(), []).append(group)
    end = np.empty_like(first)
    for mine in groups_by_pattern.values():
        ends = closed(time[:, mine[0]], first[:, mine])
        if ends is None:
            return None
        end[:, mine] = ends
    return end


def _ring_of_speeds(time: Floats, first: Floats, rounds: int) -> Floats | None:
    """Closed form for the ring of several nodes, with connections of a few speeds.

    ``time`` is that of each connection, ``first`` its earliest start by group [s]; each connection
    has
    ``rounds`` transfers. Walking back as in `_closed`, a path of j steps passes j + 1 connections
    and
    stays ``rounds - 1 - j`` times, best on the slowest that it passes. With the ring unrolled, and
    C[i]
    the time of the connections before i, a path from s to r whose slowest connection takes t ends
    at
    ``first[s] + C[r + 1] - C[s] + (rounds - 1 - (r - s)) t``.
    For each t, every start counts from which a path passes a connection as slow as t; where it
    passes a
    slower one, this is a lower bound, which does not change the maximum. Only the last turn of the
    ring
    counts: another turn passes the slowest connection, and beyond it a path gains nothing over
    staying.
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
    """Cumulative time of the connections, as sums of a few products for exactness."""
    total = np.zeros(len(time) + 1)
    for t in speeds:
        total[1:] += np.cumsum(time == t) * t
    return total


def _latest(values: Floats, n: int) -> Floats:
    """Maximum over each of ``3 n`` values and the n - 1 before it; from n - 1 on."""
    blocks = values.reshape(3, n, -1)
    ahead = np.maximum.accumulate(blocks, axis=1).reshape(values.shape)
    back = np.maximum.accumulate(blocks[:, ::-1], axis=1)[:, ::-1].reshape(values.shape)
    latest = np.full_like(values, -np.inf)
    latest[n - 1 :] = np.maximum(ahead[n - 1 :], back[: 2 * n + 1])
    return latest


def chain(
    num_chunks: int, connections: Connections, pace: TransferPace, enter: Floats
) -> Floats | None:
    """A pipeline of chunks along a chain, in closed form; None for more than `MAX_SPEEDS` speeds.

    Walking back from the last chunk on connection p, a path leads over the connections before it to
    a
    connection q, passes each at least once, and stays ``num_chunks - 1`` times, best on the slowest
    that it passes:
    ``T[p] = max over q of first[q] + time[q] + ... + time[p] + (num_chunks - 1) slowest``.
    As in `_ring_of_speeds`, speed by speed. Parameters and result are those of `by_rank`.
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


# Streams ------------------------------------------------------------------------------------------

Times = Callable[[Launch, Floats], Floats]
"""Returns each rank's end of a collective at full speed from the ranks' begins [s]."""

Record = Callable[[Launch, Floats, Floats, Floats], None]
"""Receives a collective and each rank's instants: ready, entered its stream, done [s]."""


@dataclass
class Queued:
    """A collective in its stream.

    ``ready``, ``enter`` and ``end`` are each rank's earliest entry, actual entry, and end [s];
    ``behind`` are collectives of other streams that must end before; ``message`` is the time in its
    stream before it begins, a number or of shape `(num_runs, 1)` [s].
    """

    op: Launch
    ready: Floats
    enter: Floats
    end: Floats
    behind: list[Queued]
    message: float | Floats

    @property
    def begin(self) -> Floats:
        """Instant at which each rank is ready to take part, shape `(world_size,)` [s]."""
        return self.enter + self.message


class Slowing(NamedTuple):
    """A collective that slows compute down: its begin and end on each rank [s], and by how much."""

    begin: Floats
    end: Floats
    slowdown: float | Floats


class Streams:
    """The communication streams of ranks that run one script.

    While a collective runs, compute takes ``1 + slowdown`` times as long, by the one that began
    first; while compute runs, a collective takes ``1 + collective_slowdown`` times as long. The end
    of compute is unknown before the ranks wait: until then a collective counts as slowed down to
    its end, and a wait subtracts the part that ran without compute.

    The last axis of instants is the ranks. An axis before it holds independent runs of one script.
    """

    def __init__(
        self,
        of_collective: float | Floats,
        times: Times,
        record: Record,
        message: Callable[[Launch], float | Floats] = attrgetter("message"),
        of_compute: Callable[[Launch], float | Floats] = attrgetter("slowdown"),
    ) -> None:
        self.of_compute, self.of_collective = of_compute, of_collective
        self._slows_collectives = np.any(of_collective)
        self.times, self.record, self.message = times, record, message
        self._free: dict[int, Floats] = {}
        self._queues: dict[int, list[Queued]] = {}
        self._stream: dict[int, int] = {}
        self._calls: dict[int, Queued] = {}
        self._done: dict[int, Floats] = {}
        self._under_way: list[Slowing] = []
        self._sorted: list[Slowing] | None = None  # of those under way, until they change

    def launch(self, op: Launch, clock: Floats) -> None:
        """Queue a collective that every rank's compute stream launches at its clock [s]."""
        ready = clock + op.wait if op.wait else clock
        if self._slows_collectives:  # spans of its transfers would show the full speed
            op = op._replace(record=False)
        queue = self._queues.setdefault(op.stream, [])
        free = queue[-1].end if queue else self._free.get(op.stream)
        # A collective that was waited for has ended on the compute stream that launches this one.
        behind = [self._calls[call] for call in op.after if call in self._calls]
        queued = self._calls[op.call] = self._placed(op, ready, free, np.inf, behind)
        self._note(queued)
        if self._slows_collectives:
            queue.append(queued)
            self._stream[op.call] = op.stream
        else:
            self._leave(queued)

    def _note(self, queued: Queued) -> None:
        """Note a collective that slows compute down."""
        slowdown = self.of_compute(queued.op)
        if np.any(slowdown):
            self._under_way.append(Slowing(queued.begin, queued.end, slowdown))
            self._sorted = None

    def wait(self, calls: Sequence[int], clock: Floats) -> Floats:
        """Instant at which each rank continues after a wait, shape `(world_size,)` [s]."""
        stands_still = clock.max(axis=-1, keepdims=True)
        for call in calls:
            if call not in self._done:
                self._settle(self._stream.pop(call), call, stands_still)
            clock = np.maximum(clock, self._done.pop(call))
            del self._calls[call]
        return clock

    def are_free(self, clock: Floats) -> bool:
        """Whether no collective that slows compute down is running."""
        left = [transfer for transfer in self._under_way if (transfer.end > clock).any()]
        if len(left) < len(self._under_way):
            self._under_way, self._sorted = left, None
        return not left

    def stretched(self, clock: Floats, seconds: Floats) -> Floats:
        """Duration of work that runs concurrently with collectives, shape `(world_size,)` [s].

        ``clock`` is its start, ``seconds`` its duration without collectives.
        """
        if self.are_free(clock):
            return seconds
        now, left = clock, seconds
        for begin, end, slowdown in self._in_order():
            slow = 1 + slowdown
            alone = np.minimum(np.maximum(begin - now, 0.0), left)
            now, left = now + alone, left - alone
            beside = np.minimum(np.maximum((end - now) / slow, 0.0), left)
            now, left = now + beside * slow, left - beside
        return now + left - clock

    def _in_order(self) -> Sequence[Slowing]:
        """Intervals of running collectives, sorted by their begin on every rank."""
        if len({*self._free, *self._queues}) < 2:  # those of one stream follow each other
            return self._under_way
        if self._sorted is None:
            shape = self._under_way[0].begin.shape
            columns = [
                np.stack([np.broadcast_to(part, shape) for part in column])
                for column in zip(*self._under_way, strict=True)
            ]
            order = np.argsort(columns[0], axis=0, kind="stable")
            sorts = (np.take_along_axis(column, order, axis=0) for column in columns)
            self._sorted = [Slowing(*values) for values in zip(*sorts, strict=True)]
        return self._sorted

    def _placed(
        self,
        op: Launch,
        ready: Floats,
        free: Floats | None,
        until: float | Floats,
        behind: list[Queued],
    ) -> Queued:
        """Place a collective behind its predecessors; compute runs until an instant [s]."""
        enter = ready if free is None else np.maximum(ready, free)
        for other in behind:
            enter = np.maximum(enter, other.end)
        message = self.message(op)
        begin = enter + message
        end = self.times(op, begin)
        if self._slows_collectives:
            all_in = op.latest(begin)
            own = np.maximum(end - all_in, 0.0)
            beside = np.clip((until - all_in) / (1 + self.of_collective), 0.0, own)
            end = end + self.of_collective * beside
        return Queued(op, ready, enter, end, behind, message)

    def _leave(self, queued: Queued) -> None:
        op = queued.op
        self._free[op.stream] = self._done[op.call] = queued.end
        self.record(op, queued.ready, queued.enter, queued.end)

    def _settle(self, stream: int, call: int, until: Floats) -> None:
        """Finish a stream up to a collective while compute is idle from an instant on [s]."""
        queue = self._queues[stream]
        number = next(i for i, queued in enumerate(queue) if queued.op.call == call)
        for queued in queue[: number + 1]:
            op = queued.op
            for other in queued.behind:
                if other.op.call in self._stream:
                    self._settle(self._stream.pop(other.op.call), other.op.call, until)
            free = self._free.get(stream)
            settled = self._placed(op, queued.ready, free, until, queued.behind)
            queued.enter, queued.end = settled.enter, settled.end
            self._leave(queued)
            self._stream.pop(op.call, None)
        left = self._queues[stream] = queue[number + 1 :]
        free = self._free[stream]
        for place, queued in enumerate(left):
            placed = self._placed(queued.op, queued.ready, free, np.inf, queued.behind)
            queued.enter, queued.end = placed.enter, placed.end
            left[place], free = queued, queued.end
        self._under_way, self._sorted = [], None
        for several in self._queues.values():
            for queued in several:
                self._note(queued)


# VectorFabric -------------------------------------------------------------------------------------

MAX_KEPT_NBYTES = 2**25
"""Memory for results of collectives that may recur with the same arrivals [bytes]."""

ROUNDING = 1e-12
"""A wait below this fraction of the clock is a rounding error."""

NONE = Overheads()

FINE_RANKS = 2_000
"""Ranks above which uninterrupted work is one span; a span per layer would fill the memory."""


class VectorFabric:
    """Simulates a script for all ranks at once.

    Exact if no two transfers of the script's plans use a link at a time; with ``fixed``, links may
    be shared, and every transfer gets a fixed share of them (`Lockstep`).
    """

    def __init__(
        self,
        network: NetworkRoutes,
        slowdown: Slowdown,
        trace: TraceBuilder,
        fixed: bool = False,
        overheads: Overheads = NONE,
    ) -> None:
        self.network, self.slowdown, self.trace, self.fixed = network, slowdown, trace, fixed
        self.overheads = overheads
        self._now = network  # with the links' figures in the step of the current collective
        self._lockstep: dict[tuple[Plan, NetworkRoutes], Lockstep] = {}
        self._known: dict[tuple[Plan, NetworkRoutes, float, bytes], Floats] = {}

    def play(self, script: Iterator[ClockOp]) -> None:
        """Simulate the time of every operation of the script."""
        n = self.slowdown.world_size
        ranks = np.arange(n)
        clock = np.zeros(n)
        streams = Streams(
            self.overheads.collective_slowdown,
            self._ends,
            partial(record_collective, self.trace),
        )
        for op in script if n <= FINE_RANKS else merged(script):
            match op:
                case FusedWork() if self.slowdown.has_stops or not streams.are_free(clock):
                    for work in op.works():
                        clock = self._work(work, ranks, clock, streams)
                case FusedWork():
                    clock = self._stretch(op, ranks, clock)
                case ComputeWork():
                    clock = self._work(op, ranks, clock, streams)
                case Launch():
                    streams.launch(op, clock)
                case ClockWait():
                    clock = streams.wait(op.calls, clock)
                case ClockBarrier():
                    last = np.full(n, clock.max())
                    record_meeting(self.trace, op, clock, last)
                    clock = last
                case Feed():
                    clock = feed(self.trace, op, clock, ranks)
                case MemoryChange():
                    self.trace.hold(ranks, op.step, op.part, clock, op.nbytes)
                case _:
                    raise OperationError(f"{__name__}.VectorFabric", type(op))

    def _work(self, op: ComputeWork, ranks: Ints, clock: Floats, streams: Streams) -> Floats:
        """Simulate work that overlaps with collectives; return its end [s]."""
        end = self.slowdown.finish(clock, streams.stretched(clock, op.seconds), ranks)
        self.trace.add(ranks, op.step, COMPUTE_LANE, op.activity, op.name, clock, end, op.nbytes)
        return end

    def _stretch(self, op: FusedWork, ranks: Ints, clock: Floats) -> Floats:
        """Simulate fused work as if piece by piece; consecutive equal activities are one span."""
        ends = np.add.accumulate(np.concatenate([clock[None], op.seconds]))
        first, last = 0, len(op.activities)
        for place, activity in enumerate(op.activities, 1):
            if place == last or op.activities[place] != activity:
                begin, end = ends[first], ends[place]
                self.trace.add(ranks, op.step, COMPUTE_LANE, activity, "", begin, end)
                first = place
        last_end: Floats = ends[-1]
        return last_end

    def _ends(self, op: Launch, begin: Floats) -> Floats:
        """Each rank's end of a collective for which it is ready at ``begin`` [s]."""
        if op.seconds is not None and len(begin) > 1:
            end, members = begin.copy(), slice(None) if op.groups is None else op.groups
            end[members] = op.latest(begin)[members] + op.seconds
            return end
        self._now = self.network.at(op.step)
        # A rank's transfers end with its part in the collective: where only ends are asked for,
        # they need no spans.
        recorded = op if op.record and self.trace.keep else None
        return self.times(op.plan, op.nbytes, begin, recorded)

    def times(
        self, plan: Plan, nbytes: float, enter: Floats, recorded: Launch | None = None
    ) -> Floats:
        """Each rank's end of a collective, shape `(world_size,)` [s].

        ``nbytes`` is the whole buffer, ``enter`` each rank's entry [s]; transfers of the collective
        ``recorded`` get spans.
        """
        if plan.world_size == 1:
            return enter.copy()
        if recorded is not None:
            return self._played(plan, nbytes, enter, recorded)
        # Equal arrivals, up to a common delay, give equal ends.
        begin = float(enter.min())
        key = (plan, self._now, nbytes, (enter - begin).tobytes())
        if key not in self._known:
            if len(self._known) * 2 * enter.nbytes >= MAX_KEPT_NBYTES:
                self._known.clear()
            self._known[key] = self._played(plan, nbytes, enter - begin, None)
        return self._known[key] + begin

    def _played(self, plan: Plan, nbytes: float, enter: Floats, op: Launch | None) -> Floats:
        left: list[Floats] = []
        for number, part in enumerate(plan.everything):
            begin = enter
            for earlier in part.after:
                begin = np.maximum(begin, left[earlier])
            chunk_nbytes = nbytes / plan.num_chunks * len(part.spread)
            left.append(self._part(plan, number, part, chunk_nbytes, begin, op))
        end: Floats = np.maximum.reduce(left)
        return end

    def _part(
        self,
        plan: Plan,
        number: int,
        part: SubPlan,
        chunk_nbytes: float,
        begin: Floats,
        op: Launch | None,
    ) -> Floats:
        """When each rank leaves a part; a rank outside the part leaves at once."""
        connections = self._now.of_part(part)
        pace = self._pace(plan, number, connections, chunk_nbytes)
        members, n = part.members.T, len(begin)
        switches = np.full(max(int(members.max(initial=0)) + 1 - n, 0), -np.inf)
        enter = np.concatenate([begin, switches])[members]
        record = None if op is None else self._recorder(op, connections, chunk_nbytes)
        inner = part.plan
        done: Floats | None = None
        if inner.order == "ring":
            done = ring(inner, connections, pace, enter, record)
        elif inner.order == "rank":
            done = by_rank(self.network.turns(inner), pace, enter, record)
        elif inner.order == "chain" and record is None:
            done = chain(inner.num_chunks, connections, pace, enter)
        if done is None:
            turns = self.network.turns(inner)
            done = by_chunk(turns, inner, connections, pace, enter, record)
        left = begin.copy()
        are_ranks = members < n
        left[members[are_ranks]] = done[are_ranks]
        return left

    def _pace(
        self, plan: Plan, number: int, connections: Connections, chunk_nbytes: float
    ) -> TransferPace:
        if not self.fixed:
            return TransferPace(connections.alpha, chunk_nbytes / connections.bandwidth)
        here = plan, self._now
        if here not in self._lockstep:
            self._lockstep[here] = Lockstep(self._now, plan)
        whole = chunk_nbytes / len(plan.everything[number].spread)
        durations = self._lockstep[here].times(number, whole)
        if plan.everything[number].plan.order in REPEATING:
            return TransferPace(durations[0], np.zeros_like(durations[0]))
        return TransferPace(connections.alpha, np.zeros_like(connections.alpha), durations)

    def _recorder(
        self, op: Launch, connections: Connections, chunk_nbytes: float
    ) -> TransferRecorder:
        def record(pair: Ints, start: Floats, end: Floats, count: int | Ints) -> None:
            src, dst = connections.src[pair].reshape(-1), connections.dst[pair].reshape(-1)
            nbytes = np.broadcast_to(np.reshape(count, (-1, 1)) * chunk_nbytes, start.shape)
            record_transfers(
                self.trace, op, src, dst, start.reshape(-1), end.reshape(-1), nbytes.reshape(-1)
            )

        return record


def merged(script: Iterator[ClockOp]) -> Iterator[ClockOp]:
    """Join consecutive work of one activity, and drop changes of memory."""
    held: ComputeWork | None = None
    first = ""
    for op in script:
        if isinstance(op, MemoryChange):
            continue
        is_compute = isinstance(op, ComputeWork) and held is not None
        if is_compute and (op.step, op.activity) == (held.step, held.activity):  # type: ignore[union-attr]
            assert isinstance(op, ComputeWork)
            assert held is not None
            name = f"{first} ... {op.name}"
            seconds, nbytes = held.seconds + op.seconds, held.nbytes + op.nbytes
            held = ComputeWork(op.step, op.activity, name, seconds, nbytes)
            continue
        if held is not None:
            yield held
        held = op if isinstance(op, ComputeWork) else None
        first = op.name if isinstance(op, ComputeWork) else ""
        if held is None:
            yield op
    if held is not None:
        yield held


def feed(trace: TraceBuilder, op: Feed, clock: Floats, ranks: Ints) -> Floats:
    """Wait for each rank's next batch; return when it has arrived [s]."""
    there, end = op.pipeline.hand_over(op.number, op.samples[ranks], clock, ranks)
    for name, start, until in (("wait for the batch", clock, there), ("copy", there, end)):
        if (until > start).any():
            trace.add(ranks, op.step, COMPUTE_LANE, "input", name, start, until)
    return end if (end > clock).any() else clock


def record_meeting(trace: TraceBuilder, op: ClockBarrier, came: Floats, last: Floats) -> None:
    """Add spans of ranks that wait for the last one at a barrier [s]."""
    ranks = np.flatnonzero(last > came)
    if len(ranks):
        here = came[ranks], last[ranks]
        trace.add(ranks, op.step, COMM_LANE, "wait", "for the others", *here)


def record_transfers(
    trace: TraceBuilder,
    op: Launch,
    src: Ints,
    dst: Ints,
    start: Floats,
    end: Floats,
    nbytes: Floats,
) -> None:
    """Add a span for each transfer that a rank sends to another one."""
    sent = (src < len(op.plan.sends_per_rank)) & (src != dst)
    lane = FIRST_SEND_LANE + dst[sent]
    trace.add(
        src[sent],
        op.step,
        lane,
        "transfer",
        op.name,
        start[sent],
        end[sent],
        nbytes[sent],
    )


def record_collective(
    trace: TraceBuilder, op: Launch, ready: Floats, enter: Floats, end: Floats
) -> None:
    """Add the spans of a collective: each rank waits until all are ready, then takes part.

    ``ready`` is each rank's launch on the compute stream, ``enter`` its entry into the free
    communication stream [s]. A rank that is done before the last one is ready, as in a broadcast,
    has waited until then.
    """
    if op.alone(len(enter)):
        return
    ranks = np.arange(len(enter))
    latest = op.latest(ready)
    begin = np.minimum(np.maximum(enter, latest), end)
    waits = begin - enter > ROUNDING * latest
    begin = np.where(waits, begin, enter)
    name = f"{op.plan.collective} {op.name}"
    lane = FIRST_STREAM_LANE + op.stream - 1 if op.stream else COMM_LANE
    if waits.any():
        trace.add(ranks[waits], op.step, lane, "wait", name, enter[waits], begin[waits])
    sent = op.plan.sends_per_rank * op.nbytes / op.plan.num_chunks
    together = len(ranks) if op.groups is None else op.groups.shape[1]
    if op.groups is not None and op.groups.size < len(ranks):
        ranks = np.sort(op.groups, axis=None)
        begin, end, sent, ready = begin[ranks], end[ranks], sent[ranks], ready[ranks]
    call = CallSize(op.plan.collective, op.nbytes, together)
    trace.add(ranks, op.step, lane, "comm", name, begin, end, sent, call, ready)
