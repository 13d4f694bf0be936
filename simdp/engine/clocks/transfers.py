"""Transfers: collectives that are played transfer by transfer in the loop, over shared links.

A transfer starts when what it depends on has happened (see `simdp.collectives.plans.plan`). It
holds its connection for the latency of its route and then for its bytes: at the full bandwidth
where nothing else can use the route's links, else at a fair share of them (`links`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from simdp.collectives import Plan
from simdp.engine.clocks.call import Call, Groups, Leg
from simdp.engine.clocks.dependencies import Dependencies
from simdp.engine.clocks.links import Links
from simdp.engine.clocks.loop import Loop
from simdp.engine.clocks.pace import Pace
from simdp.engine.clocks.wires import Wires
from simdp.engine.network import Network
from simdp.engine.network.sharing import beside
from simdp.engine.ops import Launch

Left = Callable[[Call, int, float], None]
"""Told of each rank that leaves a collective, and when [s]."""

Where = tuple[Call, Leg]


class Transfers:
    """Plays collectives.

    Parameters
    ----------
    loop : Loop
        Where.
    links : Links
        Over which they go.
    """

    def __init__(self, loop: Loop, links: Links) -> None:
        self.loop, self.links, self.wires = loop, links, Wires(links)
        self._needs: dict[tuple[Hashable, Plan], list[Dependencies]] = {}

    def call(
        self,
        op: Launch,
        ranks: Sequence[int],
        network: Network,
        line: Hashable,
        left: Left | None = None,
        slow: float = 0.0,
    ) -> Call:
        """Prepare a collective, which begins on each rank when that comes (`come`).

        Parameters
        ----------
        op : Launch
            The collective; its plan, bytes, and whether to record its transfers.
        ranks : sequence of int
            Who takes part.
        network : Network
            Routes its transfers.
        line : hashable
            Collectives of one line follow each other on every rank.
        left : callable, optional
            Told of each rank that leaves it; others wait for `Call.done`.
        slow : float
            The part by which it takes longer from when all have come until `Groups.run_free`.
        """
        timed = op.seconds is not None
        needs = [] if timed else self._dependencies(op.plan, network, line)
        groups = Groups(op, ranks, slow, self._pace) if timed or slow else None
        call = Call(op, ranks, needs, groups, left)
        if not timed:
            call.figures = self.wires.at(network, op.step)
        return call

    def _pace(self) -> Pace:
        return Pace(self.loop, self.links.share_anew)

    def _dependencies(self, plan: Plan, network: Network, line: Hashable) -> list[Dependencies]:
        if (line, plan) not in self._needs:
            n = plan.world_size
            self._needs[line, plan] = [
                Dependencies(part, self.wires.lay((line, number), network, part, n), n)
                for part, number in zip(plan.everything, lines_of(plan), strict=True)
            ]
        return self._needs[line, plan]

    def lay(self, plan: Plan, network: Network, line: Hashable) -> None:
        """Lay the connections of a plan; see `Wires.lay`."""
        for part, number in zip(plan.everything, lines_of(plan), strict=True):
            self.wires.lay((line, number), network, part, plan.world_size)

    def come(self, call: Call, rank: int, now: float) -> None:
        """Let a rank begin with a collective, now."""
        legs = call.come(rank, now)
        if call.groups is not None:
            complete, pace = call.groups.come(rank)
            if call.op.seconds is not None:
                self._time(call, complete, pace, now)
                return
        self._enter(call, legs, rank, now)

    def _time(self, call: Call, ranks: Sequence[int], pace: Pace | None, now: float) -> None:
        """Let ranks, if they are all of their group, be done when the collective's time is over."""
        seconds = 0.0 if len(call.ranks) == 1 else call.op.seconds or 0.0
        for rank in ranks:
            if pace is None:
                self.loop.at(now + seconds, call.finish, rank)
            else:
                pace.after(seconds, call.finish, rank)

    def _enter(self, call: Call, legs: list[Leg], rank: int, now: float) -> None:
        for leg in legs:
            if not leg.touching.get(rank):
                self._leave(call, leg, rank, now)
                continue
            pending = leg.pending
            for i in leg.needs.first_of_rank.get(rank, ()):
                pending[i] -= 1
                if not pending[i]:
                    self._start((call, leg), i, now)

    def _leave(self, call: Call, leg: Leg, rank: int, now: float) -> None:
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
            nbytes = leg.chunk_nbytes * leg.needs.count[i]
            seconds += nbytes / figures.bandwidth[connection]
            following = self._arrive
        if where[0].groups is not None:
            where[0].groups.pace_of(leg.needs.src[i]).after(seconds, following, where, i)
        elif seconds:
            self.loop.at(now + seconds, following, where, i)
        else:
            following(where, i, now)

    def _flow(self, where: Where, i: int, now: float) -> None:
        """Let a transfer's bytes flow over links that others may use, after its latency."""
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
        """A transfer is done: free its connection, and pass on what it brought."""
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
    """Sort a plan's parts into lines, numbered from 0, such that those of one follow each other."""
    lines: list[int] = []  # of each line: its parts, as bits
    found: list[int] = []
    for number, others in enumerate(beside(plan.everything)):
        free = (k for k, parts in enumerate(lines) if not parts & others)
        line = next(free, len(lines))
        if line == len(lines):
            lines.append(0)
        lines[line] |= 1 << number
        found.append(line)
    return found
