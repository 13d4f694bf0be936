"""The vectorised fabric: max-plus recurrences over whole rounds in NumPy.

All ranks run together, their clocks as arrays. Exact where no link is used by two transfers at
a time: then a transfer's time does not depend on any other transfer's.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from simdp.arrays import Floats, Ints
from simdp.cluster import Overheads
from simdp.collectives import Part, Plan
from simdp.engine.clocks import recurrences, rings
from simdp.engine.clocks.recurrences import Pace, Recorder
from simdp.engine.clocks.streams import Streams
from simdp.engine.network import Connections, Network
from simdp.engine.network.lockstep import REPEATING, Lockstep
from simdp.engine.ops import Feed, Hold, Launch, Meet, Op, Stretch, Wait, Work
from simdp.engine.slowdown import Slowdown
from simdp.results.blocks import Call
from simdp.results.trace import (
    COMM_LANE,
    COMPUTE_LANE,
    FIRST_SEND_LANE,
    FIRST_STREAM_LANE,
    TraceBuilder,
)

MAX_KEPT_NBYTES = 2**25
"""Memory for the results of collectives that may come again with the same arrivals."""

ROUNDING = 1e-12
"""A wait that is shorter than this part of the clock is what rounding makes of none."""

NONE = Overheads()

FINE_RANKS = 2_000
"""Beyond so many ranks, work that nothing interrupts is one span: a span a layer would fill the
memory with instants that nobody looks at."""


class VectorFabric:
    """Plays a script for all ranks at once.

    Parameters
    ----------
    network : Network
        Routes; no link may be used by two transfers of the script's plans at a time.
    slowdown : Slowdown
        When work ends that the stragglers delay.
    trace : TraceBuilder
        Takes the spans.
    fixed : bool
        Links may be shared; every transfer then gets a fixed share of them (`Lockstep`).
    overheads : Overheads
        How compute and collectives slow each other down; not at all, unless it is given.
    """

    def __init__(
        self,
        network: Network,
        slowdown: Slowdown,
        trace: TraceBuilder,
        fixed: bool = False,
        overheads: Overheads = NONE,
    ) -> None:
        self.network, self.slowdown, self.trace, self.fixed = network, slowdown, trace, fixed
        self.overheads = overheads
        self._now = network  # as its links are in the step of the collective that is played
        self._lockstep: dict[tuple[Plan, Network], Lockstep] = {}
        self._known: dict[tuple[Plan, Network, float, bytes], Floats] = {}

    def play(self, script: Iterator[Op]) -> None:
        """Charge the time of everything that the script yields."""
        n = self.slowdown.world_size
        ranks = np.arange(n)
        clock = np.zeros(n)
        streams = Streams(
            self.overheads.compute_slowdown,
            self.overheads.collective_slowdown,
            self._ends,
            partial(record_collective, self.trace),
        )
        for op in script if n <= FINE_RANKS else merged(script):
            match op:
                case Stretch() if self.slowdown.has_stops or not streams.are_free(clock):
                    for work in op.works():
                        clock = self._work(work, ranks, clock, streams)
                case Stretch():
                    clock = self._stretch(op, ranks, clock)
                case Work():
                    clock = self._work(op, ranks, clock, streams)
                case Launch():
                    streams.launch(op, clock)
                case Wait():
                    clock = streams.wait(op.calls, clock)
                case Meet():
                    last = np.full(n, clock.max())
                    record_meeting(self.trace, op, clock, last)
                    clock = last
                case Feed():
                    clock = feed(self.trace, op, clock, ranks)
                case Hold():
                    self.trace.hold(ranks, op.step, op.part, clock, op.nbytes)

    def _work(self, op: Work, ranks: Ints, clock: Floats, streams: Streams) -> Floats:
        """Charge work beside what is under way; tell when it is done [s]."""
        end = self.slowdown.finish(clock, streams.stretched(clock, op.seconds), ranks)
        self.trace.add(ranks, op.step, COMPUTE_LANE, op.activity, op.name, clock, end, op.nbytes)
        return end

    def _stretch(self, op: Stretch, ranks: Ints, clock: Floats) -> Floats:
        """Charge work in one piece, as if it came bit by bit; work of one kind is one span."""
        ends = np.add.accumulate(np.concatenate([clock[None], op.seconds]))
        first, last = 0, len(op.activities)
        for place, activity in enumerate(op.activities, 1):
            if place == last or op.activities[place] != activity:
                begin, end = ends[first], ends[place]
                self.trace.add(ranks, op.step, COMPUTE_LANE, activity, "", begin, end)
                first = place
        found: Floats = ends[-1]
        return found

    def _ends(self, op: Launch, begin: Floats) -> Floats:
        """When each rank is done with a collective that it is ready for at ``begin`` [s]."""
        if op.seconds is not None and len(begin) > 1:
            end, members = begin.copy(), slice(None) if op.groups is None else op.groups
            end[members] = op.latest(begin)[members] + op.seconds
            return end
        self._now = self.network.at(op.step)
        return self.times(op.plan, op.nbytes, begin, op if op.record else None)

    def times(
        self, plan: Plan, nbytes: float, enter: Floats, recorded: Launch | None = None
    ) -> Floats:
        """When each rank is done with a collective.

        Parameters
        ----------
        plan : Plan
            Who sends what to whom.
        nbytes : float
            The whole buffer [bytes].
        enter : ndarray, shape `(world_size,)`
            When each rank enters [s].
        recorded : Launch, optional
            The collective whose transfers get spans.

        Returns
        -------
        ndarray, shape `(world_size,)`
            When its last transfer, sent or received, is done [s].
        """
        if plan.world_size == 1:
            return enter.copy()
        if recorded is not None:
            return self._played(plan, nbytes, enter, recorded)
        # What arrives as before, if only later, leaves as before.
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
        part: Part,
        chunk_nbytes: float,
        begin: Floats,
        op: Launch | None,
    ) -> Floats:
        """When each rank leaves a part; a rank that has no place in it leaves at once."""
        connections = self._now.of_part(part)
        pace = self._pace(plan, number, connections, chunk_nbytes)
        members, n = part.members.T, len(begin)
        switches = np.full(max(int(members.max(initial=0)) + 1 - n, 0), -np.inf)
        enter = np.concatenate([begin, switches])[members]
        record = None if op is None else self._recorder(op, connections, chunk_nbytes)
        inner = part.plan
        done: Floats | None = None
        if inner.order == "ring":
            done = rings.ring(inner, connections, pace, enter, record)
        elif inner.order == "rank":
            done = recurrences.by_rank(self.network.turns(inner), pace, enter, record)
        elif inner.order == "chain" and record is None:
            done = rings.chain(inner.num_chunks, connections, pace, enter)
        if done is None:
            turns = self.network.turns(inner)
            done = recurrences.by_chunk(turns, inner, connections, pace, enter, record)
        left = begin.copy()
        are_ranks = members < n
        left[members[are_ranks]] = done[are_ranks]
        return left

    def _pace(self, plan: Plan, number: int, connections: Connections, chunk_nbytes: float) -> Pace:
        if not self.fixed:
            return Pace(connections.alpha, chunk_nbytes / connections.bandwidth)
        here = plan, self._now
        if here not in self._lockstep:
            self._lockstep[here] = Lockstep(self._now, plan)
        whole = chunk_nbytes / len(plan.everything[number].spread)
        each = self._lockstep[here].times(number, whole)
        if plan.everything[number].plan.order in REPEATING:
            return Pace(each[0], np.zeros_like(each[0]))
        return Pace(connections.alpha, np.zeros_like(connections.alpha), each)

    def _recorder(self, op: Launch, connections: Connections, chunk_nbytes: float) -> Recorder:
        def record(pair: Ints, start: Floats, end: Floats, count: int | Ints) -> None:
            src, dst = connections.src[pair].reshape(-1), connections.dst[pair].reshape(-1)
            nbytes = np.broadcast_to(np.reshape(count, (-1, 1)) * chunk_nbytes, start.shape)
            record_transfers(
                self.trace, op, src, dst, start.reshape(-1), end.reshape(-1), nbytes.reshape(-1)
            )

        return record


def merged(script: Iterator[Op]) -> Iterator[Op]:
    """Join work of one kind that nothing comes between; nobody looks at memory that closely."""
    held: Work | None = None
    first = ""
    for op in script:
        if isinstance(op, Hold):
            continue
        alike = isinstance(op, Work) and held is not None
        if alike and (op.step, op.activity) == (held.step, held.activity):  # type: ignore[union-attr]
            assert isinstance(op, Work)
            assert held is not None
            name = f"{first} ... {op.name}"
            seconds, nbytes = held.seconds + op.seconds, held.nbytes + op.nbytes
            held = Work(op.step, op.activity, name, seconds, nbytes)
            continue
        if held is not None:
            yield held
        held = op if isinstance(op, Work) else None
        first = op.name if isinstance(op, Work) else ""
        if held is None:
            yield op
    if held is not None:
        yield held


def feed(trace: TraceBuilder, op: Feed, clock: Floats, ranks: Ints) -> Floats:
    """Let ranks wait for their next batch, and tell when they have it [s]."""
    there, end = op.pipeline.hand_over(op.number, op.samples[ranks], clock, ranks)
    for name, start, until in (("wait for the batch", clock, there), ("copy", there, end)):
        if (until > start).any():
            trace.add(ranks, op.step, COMPUTE_LANE, "input", name, start, until)
    return end if (end > clock).any() else clock


def record_meeting(trace: TraceBuilder, op: Meet, came: Floats, last: Floats) -> None:
    """Add the spans of ranks that wait for the last one to come [s]."""
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
    """Add the spans of a collective: each rank waits for the slowest to be ready, then takes part.

    Parameters
    ----------
    trace : TraceBuilder
        Takes the spans.
    op : Launch
        The collective.
    ready, enter, end : ndarray, shape `(world_size,)`
        When each rank's compute stream asks for it, when its communication stream is free for it,
        and when it is done [s]. A rank that is done before the last one is ready, as in a
        broadcast, has waited until then.
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
    call = Call(op.plan.collective, op.nbytes, together)
    trace.add(ranks, op.step, lane, "comm", name, begin, end, sent, call, ready)
