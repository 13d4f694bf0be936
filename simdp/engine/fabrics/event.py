"""The event fabric: every transfer takes its turn in SimPy's event loop, over shared links.

A transfer starts when what it depends on has happened (see `simdp.collectives.base`). It holds its
connection for the latency of its route and then for its bytes: at the full bandwidth where nothing
else can use the route's links, else at a fair share of them (`flows`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import simpy
from numpy.typing import NDArray
from simpy.events import EventPriority

from simdp.collectives import Plan
from simdp.engine.fabrics.call import Call
from simdp.engine.fabrics.dependencies import Dependencies
from simdp.engine.fabrics.flows import Flows
from simdp.engine.fabrics.tape import Tape
from simdp.engine.fabrics.vector import record_collective
from simdp.engine.fabrics.wires import Wires
from simdp.engine.network import Network
from simdp.engine.ops import Launch, Op, Wait, Work
from simdp.engine.slowdown import Slowdown
from simdp.errors import DeadlockError
from simdp.results.trace import COMPUTE_LANE, FIRST_SEND_LANE, TraceBuilder

Ints = NDArray[np.int64]

LAST = cast(EventPriority, 2)
"""A SimPy priority after URGENT (0) and NORMAL (1): once everything else at an instant is done."""


class EventFabric:
    """Plays a script rank by rank.

    Parameters
    ----------
    network : Network
        Routes.
    plans : sequence of Plan
        Every plan that the script may launch; what their connections share decides which links
        need sharing at all.
    slowdown : Slowdown
        When work ends that the stragglers delay.
    trace : TraceBuilder
        Takes the spans.
    """

    def __init__(
        self, network: Network, plans: Sequence[Plan], slowdown: Slowdown, trace: TraceBuilder
    ) -> None:
        self.network, self.slowdown, self.trace = network, slowdown, trace
        self.env = simpy.Environment()
        self.world_size = network.cluster.world_size
        self._needs: dict[Plan, Dependencies] = {}
        self._calls: dict[int, Call] = {}
        self._streams: list[deque[tuple[Call, float]]] = [deque() for _ in range(self.world_size)]
        self._stream_free = [0.0] * self.world_size
        self._blocked: dict[int, Call] = {}
        self._due: dict[float, list[tuple[Callable[..., None], Any, int]]] = {}
        self._wires = Wires(network, plans)
        self._flows = Flows(self._wires.capacity, self._wires.longest)
        self._settling: float | None = None
        self._next_end = np.inf
        self.num_transfers = 0

    # Playing -----------------------------------------------------------------------------------

    def play(self, script: Iterator[Op]) -> None:
        """Play one script on every rank; it is asked for each of its operations once."""
        tape = Tape(script)
        self.play_each([tape.read() for _ in range(self.world_size)])

    def play_each(self, scripts: Sequence[Iterable[Op]]) -> None:
        """Play a script of its own on each rank.

        Raises
        ------
        DeadlockError
            Naming each rank that waits for something that will never happen.
        """
        for rank, script in enumerate(scripts):
            self.env.process(self._run(rank, script))
        self.env.run()
        stuck = [call for call in self._calls.values() if call.num_done < self.world_size]
        if self._blocked or stuck:
            raise DeadlockError(self._explain(stuck))

    def _run(self, rank: int, script: Iterable[Op]) -> Generator[simpy.Event, Any, None]:
        """One rank: its compute stream runs ahead of the event loop until it must wait."""
        clock = 0.0
        who = np.array([rank])
        for op in script:
            match op:
                case Work():
                    seconds = op.seconds[rank : rank + 1]
                    end = float(self.slowdown.finish(np.array([clock]), seconds, who)[0])
                    self.trace.add_one(
                        rank,
                        op.step,
                        COMPUTE_LANE,
                        op.activity,
                        op.name,
                        clock,
                        end,
                        op.nbytes,
                    )
                    clock = end
                case Launch():
                    self._submit(rank, op, clock)
                case Wait():
                    for number in op.calls:
                        call = self._calls.get(number)
                        if call is None or call.ready[rank] is None:
                            reason = f"rank {rank} waits for a collective that it never launched"
                            raise DeadlockError([reason])
                        end_of_rank = call.end[rank]
                        if end_of_rank is None:
                            event = call.waiting[rank] = self.env.event()
                            self._blocked[rank] = call
                            end_of_rank = yield event
                            del self._blocked[rank]
                        clock = max(clock, end_of_rank)

    def _submit(self, rank: int, op: Launch, ready: float) -> None:
        """Queue a collective on the rank's communication stream."""
        if op.call not in self._calls:
            if op.plan not in self._needs:
                self._needs[op.plan] = Dependencies(op.plan, self._wires.number)
            self._calls[op.call] = Call(op, self._needs[op.plan])
        stream = self._streams[rank]
        stream.append((self._calls[op.call], ready))
        self._calls[op.call].ready[rank] = ready
        if len(stream) == 1:
            self._begin(rank)

    def _begin(self, rank: int) -> None:
        call, ready = self._streams[rank][0]
        self._at(max(ready, self._stream_free[rank]), self._enter, call, rank)

    def _finish(self, call: Call, rank: int, now: float) -> None:
        """Let a rank leave a collective: it is done with all its transfers."""
        call.end[rank] = now
        call.num_done += 1
        stream = self._streams[rank]
        stream.popleft()
        self._stream_free[rank] = now
        if rank in call.waiting:
            call.waiting[rank].succeed(now)
        if call.num_done == self.world_size:
            self._record(call)
        if stream:
            self._begin(rank)

    def _record(self, call: Call) -> None:
        op, needs = call.op, call.needs
        enter, end = np.array(call.enter, dtype=float), np.array(call.end, dtype=float)
        record_collective(self.trace, op, np.array(call.ready, dtype=float), enter, end)
        if op.record and needs.src:
            self.trace.add(
                np.array(needs.src),
                op.step,
                FIRST_SEND_LANE + np.array(needs.dst),
                "transfer",
                op.name,
                np.array(call.start_of),
                np.array(call.end_of),
                call.chunk_nbytes,
            )
        # What the call needed while under way can go; its ends are still to be waited for.
        call.pending = call.gate_pending = call.touching = []
        call.start_of = call.end_of = []

    # Time --------------------------------------------------------------------------------------

    def _at(self, instant: float, action: Callable[..., None], call: Any, number: int) -> None:
        """Do something at an instant; what falls on one instant shares one SimPy event."""
        due = self._due.get(instant)
        if due is None:
            self._due[instant] = [(action, call, number)]
            delay = max(instant - self.env.now, 0.0)
            self.env.timeout(delay, instant).callbacks.append(self._fire)
        else:
            due.append((action, call, number))

    def _fire(self, event: simpy.Event) -> None:
        now = float(event.value)  # type: ignore[arg-type]
        for action, call, number in self._due.pop(now):
            action(call, number, now)

    # Transfers ---------------------------------------------------------------------------------

    def _enter(self, call: Call, rank: int, now: float) -> None:
        call.enter[rank] = now
        pending = call.pending
        if not call.touching[rank]:
            self._finish(call, rank, now)
            return
        for i in call.needs.first_of_rank[rank]:
            pending[i] -= 1
            if not pending[i]:
                self._start(call, i, now)

    def _start(self, call: Call, i: int, now: float) -> None:
        if call.start_of:
            call.start_of[i] = now
        connection, wires = call.needs.connection[i], self._wires
        alpha = wires.alpha[connection]
        if wires.own[connection]:
            delay = alpha + call.chunk_nbytes / wires.bandwidth[connection]
            self._at(now + delay, self._arrive, call, i)
        elif alpha:
            self._at(now + alpha, self._flow, call, i)
        else:
            self._flow(call, i, now)

    def _flow(self, call: Call, i: int, now: float) -> None:
        """Let a transfer's bytes flow over links that others may use, after its latency."""
        if call.chunk_nbytes == 0:
            self._arrive(call, i, now)
            return
        route = self._wires.route[call.needs.connection[i]]
        self._flows.join(route, call.chunk_nbytes, (call, i))
        self._settle_at(now)

    def _settle_at(self, now: float) -> None:
        """Share the links anew at this instant, once, after everything else that happens at it."""
        if self._settling != now:
            self._settling = now
            event = simpy.Event(self.env)
            event._ok, event._value = True, now
            event.callbacks.append(self._settle)
            self.env.schedule(event, priority=LAST)

    def _settle(self, event: simpy.Event) -> None:
        now = float(event.value)  # type: ignore[arg-type]
        self._settling = None

        def arrived(token: tuple[Call, int]) -> None:
            self._arrive(token[0], token[1], now)

        self._next_end = self._flows.settle(now, arrived)
        if self._next_end < np.inf:
            delay = max(self._next_end - self.env.now, 0.0)
            self.env.timeout(delay, self._next_end).callbacks.append(self._flow_ends)

    def _flow_ends(self, event: simpy.Event) -> None:
        if event.value == self._next_end:  # else the shares have changed since it was announced
            self._settle_at(event.value)

    def _arrive(self, call: Call, i: int, now: float) -> None:
        """A transfer is done: free its connection, and pass on what it brought."""
        needs, pending = call.needs, call.pending
        self.num_transfers += 1
        call.end_of[i] = now
        follower = needs.next_on_connection[i]
        if follower >= 0:
            pending[follower] -= 1
            if not pending[follower]:
                self._start(call, follower, now)
        gate = needs.gate_into[i]
        while gate >= 0:
            call.gate_pending[gate] -= 1
            if call.gate_pending[gate]:
                break
            for waiting in needs.behind_gate[gate]:
                pending[waiting] -= 1
                if not pending[waiting]:
                    self._start(call, waiting, now)
            gate = needs.next_gate[gate]
        touching = call.touching
        for rank in (needs.src[i], needs.dst[i]):
            touching[rank] -= 1
            if not touching[rank]:
                self._finish(call, rank, now)

    # Deadlock ----------------------------------------------------------------------------------

    def _explain(self, stuck: list[Call]) -> list[str]:
        """Say for each rank that cannot go on what it waits for."""
        lines = []
        for rank in range(self.world_size):
            call = self._blocked.get(rank)
            if call is None:
                inside = [c for c in stuck if c.enter[rank] is not None and c.end[rank] is None]
                if not inside:
                    continue
                call = inside[0]
            ahead = self._streams[rank][0][0]
            lines.append(f"rank {rank} waits {call.reason(rank, ahead)}")
        return lines
