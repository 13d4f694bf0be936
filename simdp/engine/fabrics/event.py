"""The event fabric: every transfer takes its turn in SimPy's event loop, over shared links.

A transfer starts when what it depends on has happened (see `simdp.collectives.plans.plan`). It
holds its connection for the latency of its route and then for its bytes: at the full bandwidth
where nothing else can use the route's links, else at a fair share of them (`flows`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import simpy
from simpy.events import EventPriority

from simdp.collectives import Plan
from simdp.engine.fabrics.call import Call, Leg
from simdp.engine.fabrics.dependencies import Dependencies
from simdp.engine.fabrics.flows import Flows
from simdp.engine.fabrics.job import Job, lines_of
from simdp.engine.fabrics.tape import Tape
from simdp.engine.fabrics.vector import (
    feed,
    record_collective,
    record_meeting,
    record_transfers,
)
from simdp.engine.fabrics.wires import Wires
from simdp.engine.ops import Feed, Hold, Launch, Meet, Op, Wait, Work
from simdp.errors import DeadlockError
from simdp.results.trace import COMPUTE_LANE

LAST = cast(EventPriority, 2)
"""A SimPy priority after URGENT (0) and NORMAL (1): once everything else at an instant is done."""

Where = tuple[Job, Call, Leg]
"""A leg of a collective of a job."""


class EventFabric:
    """Plays scripts rank by rank.

    Parameters
    ----------
    jobs : sequence of Job
        Who plays; ranks of different jobs meet on links only.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = jobs
        self.env = simpy.Environment()
        lines = [(job, line, parts) for job in jobs for line, parts in job.lines.items()]
        self._wires = Wires(
            jobs[0].network.cluster,
            [(job.network, parts, job.world_size) for job, _, parts in lines],
        )
        self._line = {(job, line): number for number, (job, line, _) in enumerate(lines)}
        self._needs: dict[tuple[Job, Plan, int], list[Dependencies]] = {}
        self._flows = Flows(self._wires.capacity, self._wires.longest)
        self._due: dict[float, list[tuple[Callable[..., None], Any, int]]] = {}
        self._settling: float | None = None
        self._next_end = np.inf

    # Playing -----------------------------------------------------------------------------------

    def play(self, scripts: Sequence[Iterator[Op]]) -> None:
        """Play one script per job on every rank of it; it is asked for each operation once."""
        each = []
        for job, script in zip(self.jobs, scripts, strict=True):
            tape = Tape(script)
            each.append([tape.read() for _ in range(job.world_size)])
        self.play_each(each)

    def play_each(self, scripts: Sequence[Sequence[Iterable[Op]]]) -> None:
        """Play a script of its own on each rank of each job, until the first job is done.

        Raises
        ------
        DeadlockError
            Naming each rank that waits for something that will never happen.
        """
        processes = [
            [self.env.process(self._run(job, rank, script)) for rank, script in enumerate(of_ranks)]
            for job, of_ranks in zip(self.jobs, scripts, strict=True)
        ]
        first = self.jobs[0]
        if len(self.jobs) == 1:
            self.env.run()
        else:
            done = self.env.all_of(processes[0])
            while (not done.processed or first.stuck()) and self.env.peek() < np.inf:
                self.env.step()
        if first.blocked or first.came or first.stuck():
            raise DeadlockError(first.explain())

    def _run(self, job: Job, rank: int, script: Iterable[Op]) -> Generator[simpy.Event, Any, None]:
        """One rank: its compute stream runs ahead of the event loop until it must wait."""
        clock = 0.0
        who = np.array([rank])
        for op in script:
            match op:
                case Work():
                    seconds = op.seconds[rank : rank + 1]
                    end = float(job.slowdown.finish(np.array([clock]), seconds, who)[0])
                    job.trace.add_one(
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
                    self._submit(job, rank, op, clock)
                case Wait():
                    for number in op.calls:
                        call = job.calls.get(number)
                        if call is None or rank not in call.ready:
                            reason = f"rank {rank} waits for a collective that it never launched"
                            raise DeadlockError([reason])
                        end_of_rank = call.end.get(rank)
                        if end_of_rank is None:
                            event = call.waiting[rank] = self.env.event()
                            job.blocked[rank] = call
                            end_of_rank = yield event
                            del job.blocked[rank]
                        clock = max(clock, end_of_rank)
                case Meet():
                    clock = yield self._meet(job, rank, op, clock)
                case Feed():
                    clock = float(feed(job.trace, op, np.array([clock]), who)[0])
                case Hold():
                    nbytes = np.broadcast_to(op.nbytes, job.world_size)[rank : rank + 1]
                    job.trace.hold(who, op.step, op.part, np.array([clock]), nbytes)

    def _meet(self, job: Job, rank: int, op: Meet, clock: float) -> simpy.Event:
        """Note that a rank has come; the last one lets all go on at the latest clock."""
        event = self.env.event()
        job.came[rank] = (clock, event)
        if len(job.came) == job.world_size:
            came = np.array([job.came[r][0] for r in range(job.world_size)])
            last = float(came.max())
            record_meeting(job.trace, op, came, np.full(job.world_size, last))
            for _, waiting in job.came.values():
                waiting.succeed(last)
            job.came = {}
        return event

    def _submit(self, job: Job, rank: int, op: Launch, ready: float) -> None:
        """Queue a collective on one of the rank's communication streams."""
        if op.call not in job.calls:
            job.calls[op.call] = Call(op, range(job.world_size), self._dependencies(job, op))
        queue, call = job.queue(rank, op.stream), job.calls[op.call]
        ready += op.wait
        queue.append((call, ready))
        call.ready[rank] = ready
        if len(queue) == 1:
            self._begin(job, rank, op.stream)

    def _dependencies(self, job: Job, op: Launch) -> list[Dependencies]:
        key = (job, op.plan, op.stream)
        if key not in self._needs:
            lines = lines_of(op.plan, op.stream)
            self._needs[key] = [
                Dependencies(part, self._wires.number[self._line[job, line]], job.world_size)
                for part, line in zip(op.plan.everything, lines, strict=True)
            ]
        return self._needs[key]

    def _begin(self, job: Job, rank: int, stream: int) -> None:
        call, ready = job.queue(rank, stream)[0]
        free = job.stream_free.get((rank, stream), 0.0)
        for number in call.op.after:
            end_of_other = job.calls[number].end.get(rank)
            if end_of_other is None:
                job.held_back.setdefault((number, rank), []).append(stream)
                return
            free = max(free, end_of_other)
        self._at(max(ready, free) + call.op.message, self._enter, (job, call), rank)

    def _finish(self, job: Job, call: Call, rank: int, now: float) -> None:
        """Let a rank leave a collective: it is done with all its transfers."""
        call.end[rank] = now
        stream = call.op.stream
        queue = job.queue(rank, stream)
        queue.popleft()
        job.stream_free[rank, stream] = now
        if rank in call.waiting:
            call.waiting[rank].succeed(now)
        if call.is_done:
            self._record(job, call)
        if queue:
            self._begin(job, rank, stream)
        for other in job.held_back.pop((call.op.call, rank), ()):
            self._begin(job, rank, other)

    def _record(self, job: Job, call: Call) -> None:
        op = call.op
        ready, enter, end = (
            np.array([instants[rank] for rank in call.ranks])
            for instants in (call.ready, call.enter, call.end)
        )
        record_collective(job.trace, op, ready, enter - op.message, end)
        for leg in call.legs if op.record else ():
            needs = leg.needs
            record_transfers(
                job.trace,
                op,
                np.array(needs.src, dtype=np.int64),
                np.array(needs.dst, dtype=np.int64),
                np.array(leg.start_of),
                np.array(leg.end_of),
                leg.chunk_nbytes * np.array(needs.count, dtype=float),
            )
        call.forget()

    # Time --------------------------------------------------------------------------------------

    def _at(self, instant: float, action: Callable[..., None], what: Any, number: int) -> None:
        """Do something at an instant; what falls on one instant shares one SimPy event."""
        due = self._due.get(instant)
        if due is None:
            self._due[instant] = [(action, what, number)]
            delay = max(instant - self.env.now, 0.0)
            self.env.timeout(delay, instant).callbacks.append(self._fire)
        else:
            due.append((action, what, number))

    def _fire(self, event: simpy.Event) -> None:
        now = float(event.value)  # type: ignore[arg-type]
        for action, what, number in self._due.pop(now):
            action(what, number, now)

    # Transfers ---------------------------------------------------------------------------------

    def _enter(self, what: tuple[Job, Call], rank: int, now: float) -> None:
        job, call = what
        self._enter_legs(job, call, call.come(rank, now), rank, now)

    def _enter_legs(self, job: Job, call: Call, legs: list[Leg], rank: int, now: float) -> None:
        for leg in legs:
            if not leg.touching.get(rank):
                self._leave(job, call, leg, rank, now)
                continue
            pending = leg.pending
            for i in leg.needs.first_of_rank.get(rank, ()):
                pending[i] -= 1
                if not pending[i]:
                    self._start((job, call, leg), i, now)

    def _leave(self, job: Job, call: Call, leg: Leg, rank: int, now: float) -> None:
        entered = call.leave(rank, leg)
        if entered is None:
            self._finish(job, call, rank, now)
        elif entered:
            self._enter_legs(job, call, entered, rank, now)

    def _start(self, where: Where, i: int, now: float) -> None:
        leg, wires = where[2], self._wires
        if leg.start_of:
            leg.start_of[i] = now
        connection = leg.needs.connection[i]
        alpha = wires.alpha[connection]
        if wires.own[connection]:
            nbytes = leg.chunk_nbytes * leg.needs.count[i]
            self._at(now + (alpha + nbytes / wires.bandwidth[connection]), self._arrive, where, i)
        elif alpha:
            self._at(now + alpha, self._flow, where, i)
        else:
            self._flow(where, i, now)

    def _flow(self, where: Where, i: int, now: float) -> None:
        """Let a transfer's bytes flow over links that others may use, after its latency."""
        leg = where[2]
        nbytes = leg.chunk_nbytes * leg.needs.count[i]
        if nbytes == 0:
            self._arrive(where, i, now)
            return
        self._flows.join(self._wires.route[leg.needs.connection[i]], nbytes, (where, i))
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

        def arrived(token: tuple[Where, int]) -> None:
            self._arrive(token[0], token[1], now)

        self._next_end = self._flows.settle(now, arrived)
        if self._next_end < np.inf:
            delay = max(self._next_end - self.env.now, 0.0)
            self.env.timeout(delay, self._next_end).callbacks.append(self._flow_ends)

    def _flow_ends(self, event: simpy.Event) -> None:
        if event.value == self._next_end:  # else the shares have changed since it was announced
            self._settle_at(event.value)

    def _arrive(self, where: Where, i: int, now: float) -> None:
        """A transfer is done: free its connection, and pass on what it brought."""
        job, call, leg = where
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
                    self._leave(job, call, leg, rank, now)
