"""Transfers of a collective call and their dependencies.

A transfer starts once its dependencies are met (see `simdp.collectives.plans`). It occupies its
connection for the latency of its route and then for its bytes: at full bandwidth where nothing else
can use the route's links, else at a fair share of them (`flows`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import pairwise

import numpy as np
import simpy

from simdp.arrays import Ints
from simdp.cluster.hardware import Overheads
from simdp.collectives import Plan, SubPlan
from simdp.collectives.plans import Round, expand
from simdp.engine.clocks.flows import EventLoop, Figures, FlowLinks, SlowedClock, Wires
from simdp.engine.network import NetworkRoutes
from simdp.engine.network.traffic import beside
from simdp.engine.ops import Launch
from simdp.engine.slowdown import Slowdown
from simdp.results.trace import TraceBuilder


class Dependencies:
    """The order that a plan imposes on the transfers of a part, numbered as they are listed.

    Transfers of one connection take turns. A transfer reads from a *place*: a chunk of its source,
    or, in plans with rank order, its two ranks. The arrivals at a place in one round open a *gate*;
    gates of later rounds open after those of earlier ones, and a transfer waits for the last gates
    of its places before its own round. So the number of dependencies grows linearly with the number
    of transfers, even where thousands of transfers meet. Vertices from ``num_ranks`` on are
    switches, which need not enter.

    Attributes
    ----------
    src, dst, connection, count : list of int
        Ends, number of the connection, and chunks of each transfer.
    pending : list of int
        Number of open conditions of each transfer: its ranks' entry (if it is the first on its
        connection) or its predecessor there, and gates.
    next_on_connection : list of int
        The transfer that follows on the same connection, or -1.
    gates_into : list of tuple of int
        The gates that each transfer's arrival leads to.
    gate_pending, next_gate, behind_gate : lists
        Of each gate: number of open conditions, the following gate or -1, and the waiting
        transfers.
    first_of_rank, touching : dict
        The transfers that wait for each rank to enter; number of transfers of each rank.
    """

    def __init__(
        self, part: SubPlan, connection: Mapping[tuple[int, int, int], int], num_ranks: int
    ) -> None:
        self.num_ranks = num_ranks
        self.src: list[int] = []
        self.dst: list[int] = []
        self.count: list[int] = []
        self.connection: list[int] = []
        self.pending: list[int] = []
        self.next_on_connection: list[int] = []
        self.gates_into: list[tuple[int, ...]] = []
        self.gate_pending: list[int] = []
        self.next_gate: list[int] = []
        self.behind_gate: list[list[int]] = []
        self.first_of_rank: dict[int, list[int]] = {}
        self.touching: dict[int, int] = {}
        last_on: dict[int, int] = {}
        gate_of: dict[int, int] = {}  # the last gate of each place
        for transfers in part.plan.rounds():
            first = len(self.src)
            leaves, lands = self._list(part, transfers, connection)
            for i, needed in enumerate(leaves, first):  # sees the gates of earlier rounds only
                self._take_turn(i, last_on)
                for place in needed:
                    gate = gate_of.get(place)
                    if gate is not None:
                        self.pending[i] += 1
                        self.behind_gate[gate].append(i)
            opened: dict[int, int] = {}
            for reached in lands:
                for place in reached:
                    if place not in opened:
                        opened[place] = self._new_gate(gate_of.get(place))
                    self.gate_pending[opened[place]] += 1
                self.gates_into.append(tuple([opened[place] for place in reached]))
            gate_of.update(opened)

    def _list(
        self, part: SubPlan, transfers: Round, connection: Mapping[tuple[int, int, int], int]
    ) -> tuple[list[list[int]], list[list[int]]]:
        """Number the transfers of a round in every group; return their source and target places."""
        groups = len(part.members)
        src = part.members[:, transfers.src].reshape(-1).tolist()
        dst = part.members[:, transfers.dst].reshape(-1).tolist()
        self.src += src
        self.dst += dst
        counts = np.broadcast_to(transfers.num_chunks, transfers.src.shape)
        self.count += np.tile(counts, groups).tolist()
        channel = np.tile(np.broadcast_to(transfers.channel, counts.shape), groups).tolist()
        self.connection += [connection[ends] for ends in zip(src, dst, channel, strict=True)]
        self.pending += [0] * len(src)
        self.next_on_connection += [-1] * len(src)
        if part.plan.order == "rank":
            places = [list(pair) for pair in zip(src, dst, strict=True)]
            return places, places
        moves, slots = expand(transfers), part.plan.num_slots
        ends = np.cumsum(counts)
        leaves, lands = [], []
        for group in range(groups):
            base = group * part.plan.num_vertices
            leaves += _cut(((base + moves.src) * slots + moves.chunk).tolist(), ends)
            lands += _cut(((base + moves.dst) * slots + moves.to).tolist(), ends)
        return leaves, lands

    def _take_turn(self, i: int, last_on: dict[int, int]) -> None:
        ranks = [v for v in (self.src[i], self.dst[i]) if v < self.num_ranks]
        for rank in ranks:
            self.touching[rank] = self.touching.get(rank, 0) + 1
        before = last_on.get(self.connection[i])
        if before is None:
            for rank in ranks:
                self.first_of_rank.setdefault(rank, []).append(i)
                self.pending[i] += 1
        else:
            self.next_on_connection[before] = i
            self.pending[i] += 1
        last_on[self.connection[i]] = i

    def _new_gate(self, before: int | None) -> int:
        gate = len(self.gate_pending)
        self.gate_pending.append(0 if before is None else 1)
        self.next_gate.append(-1)
        self.behind_gate.append([])
        if before is not None:
            self.next_gate[before] = gate
        return gate


def _cut(values: list[int], ends: Ints) -> list[list[int]]:
    """Cut a list into pieces that end at some positions."""
    if len(ends) == len(values):
        return [[value] for value in values]
    return [values[begin:end] for begin, end in pairwise([0, *ends.tolist()])]


# CollectiveTimes ----------------------------------------------------------------------------------


class Leg:
    """Open conditions of each transfer of a part, counted down in copies of its `Dependencies`."""

    def __init__(self, number: int, needs: Dependencies, chunk_nbytes: float, record: bool) -> None:
        self.number, self.needs, self.chunk_nbytes = number, needs, chunk_nbytes
        self.pending = needs.pending.copy()
        self.gate_pending = needs.gate_pending.copy()
        self.touching = needs.touching.copy()
        self.start_of = [0.0] * len(needs.src) if record else []
        self.end_of = [0.0] * len(needs.src) if record else []


class Groups:
    """Process groups of a collective, where its timing depends on all members' arrival.

    A complete group is slowed down by the fraction ``slow`` until `run_free`.
    """

    def __init__(
        self, op: Launch, ranks: Sequence[int], slow: float, pace: Callable[[], SlowedClock]
    ) -> None:
        self._members = [list(ranks)] if op.groups is None else op.groups.tolist()
        self._of = {rank: group for group, several in enumerate(self._members) for rank in several}
        self._missing = [len(several) for several in self._members]
        self._slow, self._runs_free = 1.0 + slow, False
        self._paces = [pace() for _ in self._members] if slow else []
        self.num_waiting = 0

    def come(self, rank: int) -> tuple[Sequence[int], SlowedClock | None]:
        """Enter a rank; return its group's ranks if that is complete now, and the group's pace."""
        group = self._of.get(rank)
        if group is None:
            return [rank], None
        pace = self._paces[group] if self._paces else None
        self._missing[group] -= 1
        if self._missing[group]:
            return (), pace
        if pace is not None and not self._runs_free:
            pace.change(self._slow)
        return self._members[group], pace

    def pace_of(self, vertex: int) -> SlowedClock:
        """Pace of transfers from a rank, or from a switch, which has the first group's."""
        return self._paces[self._of.get(vertex, 0)]

    def run_free(self) -> None:
        """End the slowdown: compute is idle from now on."""
        self._runs_free = True
        for pace in self._paces:
            pace.change(1.0)


class CollectiveTimes:
    """Each rank's instants in a collective: launched (``ready``), entered, done [s].

    ``figures`` is None for a collective with a given duration.
    """

    def __init__(
        self,
        op: Launch,
        ranks: Sequence[int],
        needs: Sequence[Dependencies],
        groups: Groups | None = None,
        left: Callable[[CollectiveTimes, int, float], None] | None = None,
    ) -> None:
        self.op, self.ranks, self.groups, self._left_by = op, ranks, groups, left
        chunk = op.nbytes / op.plan.num_chunks
        parts = op.plan.everything if needs else ()
        self.legs = [
            Leg(number, of_part, chunk * len(part.spread), op.record)
            for number, (part, of_part) in enumerate(zip(parts, needs, strict=True))
        ]
        self._after = [len(part.after) for part in parts]
        self.followers = [
            [later for later, part in enumerate(parts) if number in part.after]
            for number in range(len(parts))
        ]
        self.ready = dict[int, float]()
        self.enter = dict[int, float]()
        self.end = dict[int, float]()
        self.figures: Figures | None = None
        self._waiting = dict[int, simpy.Event]()
        self._unmet = dict[int, list[int]]()
        self._left = dict[int, int]()

    @property
    def is_done(self) -> bool:
        """Whether every rank has left."""
        return len(self.end) == len(self.ranks)

    def come(self, rank: int, now: float) -> list[Leg]:
        """Enter a rank; return the legs that it enters at once."""
        self.enter[rank] = now
        self._unmet[rank] = self._after.copy()
        self._left[rank] = len(self.legs)
        return [leg for leg, unmet in zip(self.legs, self._unmet[rank], strict=True) if not unmet]

    def leave(self, rank: int, leg: Leg) -> list[Leg] | None:
        """Take a rank out of a leg; return the legs that it enters now, None after the last one."""
        self._left[rank] -= 1
        if not self._left[rank]:
            return None
        unmet, entered = self._unmet[rank], []
        for later in self.followers[leg.number]:
            unmet[later] -= 1
            if not unmet[later]:
                entered.append(self.legs[later])
        return entered

    def finish(self, rank: int, now: float) -> None:
        """Take a rank out of the collective."""
        self.end[rank] = now
        waiting = self._waiting.pop(rank, None)
        if waiting is not None:
            waiting.succeed(now)
        if self._left_by is not None:
            self._left_by(self, rank, now)

    def done(self, env: simpy.Environment, rank: int) -> simpy.Event:
        """Create the event of a rank's end, which is still to come; its value is the instant."""
        event = self._waiting[rank] = env.event()
        return event

    def forget(self) -> None:
        """Drop the state of the transfers; the ends are kept for waits."""
        self.legs, self.groups, self._unmet, self._left = [], None, {}, {}

    def reason(self, rank: int, ahead: CollectiveTimes) -> str:
        """Explain why a rank is blocked; ``ahead`` is the first collective of its stream."""
        what = f"in {self.title()}"
        if rank not in self.enter:
            return f"{what}, behind {ahead.title()}"
        # A plan's transfers depend on earlier ones only, so that only a rank can be missing.
        absent = [r for r in self.ranks if r not in self.enter]
        listed = ", ".join(map(str, absent[:8])) + (" ..." if len(absent) > 8 else "")
        return f"{what} for rank{'s' if len(absent) > 1 else ''} {listed} to enter"

    def title(self) -> str:
        """Return the collective's name for messages."""
        return f"{self.op.plan.collective} {self.op.name!r}"


Left = Callable[[CollectiveTimes, int, float], None]
"""Called with the collective, each rank that leaves it, and the instant [s]."""

Where = tuple[CollectiveTimes, Leg]


class Transfers:
    """Simulates collectives."""

    def __init__(self, loop: EventLoop, links: FlowLinks) -> None:
        self.loop, self.links, self.wires = loop, links, Wires(links)
        self._needs: dict[tuple[Hashable, Plan], list[Dependencies]] = {}

    def call(
        self,
        op: Launch,
        ranks: Sequence[int],
        network: NetworkRoutes,
        line: Hashable,
        left: Left | None = None,
        slow: float = 0.0,
    ) -> CollectiveTimes:
        """Prepare a collective; `come` begins it on each rank.

        Collectives of one ``line`` run one after the other on every rank. Each rank that leaves is
        passed to ``left``. ``slow`` is the relative slowdown from the arrival of all ranks until
        `Groups.run_free`.
        """
        timed = op.seconds is not None
        needs = [] if timed else self._dependencies(op.plan, network, line)
        groups = Groups(op, ranks, slow, self._pace) if timed or slow else None
        call = CollectiveTimes(op, ranks, needs, groups, left)
        if not timed:
            call.figures = self.wires.at(network, op.step)
        return call

    def _pace(self) -> SlowedClock:
        return SlowedClock(self.loop, self.links.share_anew)

    def _dependencies(
        self, plan: Plan, network: NetworkRoutes, line: Hashable
    ) -> list[Dependencies]:
        if (line, plan) not in self._needs:
            n = plan.world_size
            self._needs[line, plan] = [
                Dependencies(part, self.wires.lay((line, number), network, part, n), n)
                for part, number in zip(plan.everything, lines_of(plan), strict=True)
            ]
        return self._needs[line, plan]

    def lay(self, plan: Plan, network: NetworkRoutes, line: Hashable) -> None:
        """Number the connections of a plan; see `Wires.lay`."""
        for part, number in zip(plan.everything, lines_of(plan), strict=True):
            self.wires.lay((line, number), network, part, plan.world_size)

    def come(self, call: CollectiveTimes, rank: int, now: float) -> None:
        """Begin a collective on a rank, now."""
        legs = call.come(rank, now)
        if call.groups is not None:
            complete, pace = call.groups.come(rank)
            if call.op.seconds is not None:
                self._time(call, complete, pace, now)
                return
        self._enter(call, legs, rank, now)

    def _time(
        self, call: CollectiveTimes, ranks: Sequence[int], pace: SlowedClock | None, now: float
    ) -> None:
        """Schedule the end of a complete group after the collective's given duration."""
        seconds = 0.0 if len(call.ranks) == 1 else call.op.seconds or 0.0
        for rank in ranks:
            if pace is None:
                self.loop.at(now + seconds, call.finish, rank)
            else:
                pace.after(seconds, call.finish, rank)

    def _enter(self, call: CollectiveTimes, legs: list[Leg], rank: int, now: float) -> None:
        for leg in legs:
            if not leg.touching.get(rank):
                self._leave(call, leg, rank, now)
                continue
            pending = leg.pending
            for i in leg.needs.first_of_rank.get(rank, ()):
                pending[i] -= 1
                if not pending[i]:
                    self._start((call, leg), i, now)

    def _leave(self, call: CollectiveTimes, leg: Leg, rank: int, now: float) -> None:
        entered = call.leave(rank, leg)
        if entered is None:
            call.finish(rank, now)
        elif entered:
            self._enter(call, entered, rank, now)

    def _start(self, where: Where, i: int, now: float) -> None:
        leg, figures = where[1], where[0].figures
        assert figures is not None, "it is played, not timed"
        if leg.start_of:
            leg.start_of[i] = now
        connection = leg.needs.connection[i]
        seconds = figures.alpha[connection]
        following = self._flow
        if self.wires.own[connection]:
            seconds += leg.chunk_nbytes * leg.needs.count[i] / figures.bandwidth[connection]
            following = self._arrive
        if where[0].groups is not None:
            where[0].groups.pace_of(leg.needs.src[i]).after(seconds, following, where, i)
        elif seconds:
            self.loop.at(now + seconds, following, where, i)
        else:
            following(where, i, now)

    def _flow(self, where: Where, i: int, now: float) -> None:
        """Start the flow of a transfer over links that others may use, after its latency."""
        (call, leg), pace = where, None
        nbytes = leg.chunk_nbytes * leg.needs.count[i]
        if nbytes == 0:
            self._arrive(where, i, now)
            return
        if call.groups is not None:
            pace = call.groups.pace_of(leg.needs.src[i])
        assert call.figures is not None, "it is played, not timed"
        route = call.figures.route[leg.needs.connection[i]]
        self.links.join(route, nbytes, self._arrive, where, i, pace=pace)

    def _arrive(self, where: Where, i: int, now: float) -> None:
        """End a transfer: release its connection, and start the transfers that depend on it."""
        call, leg = where
        needs, pending = leg.needs, leg.pending
        if leg.end_of:
            leg.end_of[i] = now
        follower = needs.next_on_connection[i]
        if follower >= 0:
            pending[follower] -= 1
            if not pending[follower]:
                self._start(where, follower, now)
        for gate in needs.gates_into[i]:
            while gate >= 0:
                leg.gate_pending[gate] -= 1
                if leg.gate_pending[gate]:
                    break
                for waiting in needs.behind_gate[gate]:
                    pending[waiting] -= 1
                    if not pending[waiting]:
                        self._start(where, waiting, now)
                gate = needs.next_gate[gate]
        touching = leg.touching
        for rank in (needs.src[i], needs.dst[i]):
            if rank < needs.num_ranks:
                touching[rank] -= 1
                if not touching[rank]:
                    self._leave(call, leg, rank, now)


def lines_of(plan: Plan) -> list[int]:
    """Assign a plan's parts to lines, numbered from 0, so that those of a line run in sequence."""
    lines: list[int] = []  # of each line: its parts, as bits
    line_of_part: list[int] = []
    for number, others in enumerate(beside(plan.everything)):
        line = next((k for k, parts in enumerate(lines) if not parts & others), len(lines))
        if line == len(lines):
            lines.append(0)
        lines[line] |= 1 << number
        line_of_part.append(line)
    return line_of_part


NONE = Overheads()


class FabricJob:
    """A job's inputs and state in the event fabric; its ranks are numbered from 0.

    Only links that several connections of its ``plans`` use are shared.
    """

    def __init__(
        self,
        network: NetworkRoutes,
        plans: Mapping[int, Sequence[Plan]],
        slowdown: Slowdown,
        trace: TraceBuilder,
        overheads: Overheads = NONE,
    ) -> None:
        self.network, self.slowdown, self.trace = network, slowdown, trace
        self.world_size = slowdown.world_size
        self.plans, self.overheads = plans, overheads
        self.paces: list[SlowedClock] = []  # of the ranks' compute, if anything slows it down
        # collectives that slow compute down on each rank, in the order of their begin
        self.under_way: list[dict[int, float]] = [{} for _ in range(self.world_size)]
        self.launched: dict[
            int, list[CollectiveTimes]
        ] = {}  # by stream, if compute slows them down
        self._waited: dict[tuple[int, int], int] = {}
        self.calls: dict[int, CollectiveTimes] = {}
        self.blocked: dict[int, CollectiveTimes] = {}
        self.came: dict[int, tuple[float, simpy.Event]] = {}  # to the current barrier
        self._queues: dict[tuple[int, int], deque[tuple[CollectiveTimes, float]]] = {}
        self.stream_free: dict[tuple[int, int], float] = {}
        self.held_back: dict[tuple[int, int], list[int]] = {}
        """By collective and rank still in it: streams with a next collective that waits for it."""

    def queue(self, rank: int, stream: int) -> deque[tuple[CollectiveTimes, float]]:
        """Collectives queued on a rank's stream, the running one first."""
        return self._queues.setdefault((rank, stream), deque())

    def slow_down(self, rank: int, call: CollectiveTimes, change: int) -> None:
        """Note a collective that begins or ends on a rank, and set the pace of its compute."""
        if self.paces and call.op.slowdown:
            under_way = self.under_way[rank]
            if change > 0:
                under_way[call.op.call] = call.op.slowdown
            else:
                del under_way[call.op.call]
            self.paces[rank].change(1.0 + next(iter(under_way.values()), 0.0))

    def stand_still(self, rank: int, number: int) -> None:
        """Mark a rank as waiting for a collective, and so for all earlier ones of its stream.

        Compute counts as slowing a collective down until all ranks wait for it, even where one is
        idle in between because it waits for another collective: `streams` does the same.
        """
        stream = self.calls[number].op.stream
        line, first = self.launched[stream], self._waited.get((rank, stream), 0)
        here = line.index(self.calls[number]) + 1
        self._waited[rank, stream] = max(first, here)
        for call in line[first:here]:
            for earlier in call.op.after:
                self.stand_still(rank, earlier)
            if call.groups is not None:
                call.groups.num_waiting += 1
                if call.groups.num_waiting == self.world_size:
                    call.groups.run_free()

    def _missing(self) -> str:
        """List the ranks that have not reached a barrier."""
        absent = [str(rank) for rank in range(self.world_size) if rank not in self.came]
        listed = ", ".join(absent[:8]) + (" ..." if len(absent) > 8 else "")
        return f"rank{'s' if len(absent) > 1 else ''} {listed}"

    def stuck(self) -> list[CollectiveTimes]:
        """Collectives that some ranks have not left."""
        return [call for call in self.calls.values() if not call.is_done]

    def explain(self) -> list[str]:
        """Return one line per blocked rank with the reason."""
        stuck, lines = self.stuck(), []
        for rank in range(self.world_size):
            call = self.blocked.get(rank)
            if rank in self.came:
                lines.append(f"rank {rank} waits for {self._missing()} to come")
                continue
            if call is None:
                inside = [c for c in stuck if rank in c.enter and rank not in c.end]
                if not inside:
                    continue
                call = inside[0]
            ahead = self.queue(rank, call.op.stream)[0][0]
            lines.append(f"rank {rank} waits {call.reason(rank, ahead)}")
        return lines
