"""The event fabric: each rank is a SimPy process, each transfer an event."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from functools import partial
from itertools import tee
from typing import Any

import numpy as np
import simpy

from simdp.engine.clocks.flows import EventLoop, FlowLinks, SlowedClock
from simdp.engine.clocks.transfers import CollectiveTimes, FabricJob, Transfers
from simdp.engine.clocks.vector import (
    feed,
    record_collective,
    record_meeting,
    record_transfers,
)
from simdp.engine.ops import (
    ClockBarrier,
    ClockOp,
    ClockWait,
    ComputeWork,
    Feed,
    Launch,
    MemoryChange,
)
from simdp.errors import DeadlockError, OperationError
from simdp.results.trace import COMPUTE_LANE


class EventFabric:
    """Simulates scripts rank by rank."""

    def __init__(self, jobs: Sequence[FabricJob], transfers: type[Transfers] = Transfers) -> None:
        self.jobs, self.loop = jobs, EventLoop()
        self.transfers = transfers(self.loop, FlowLinks(self.loop, jobs[0].network.cluster))
        for job in jobs:
            for stream, plans in job.plans.items():
                for plan in plans:
                    self.transfers.lay(plan, job.network, (job, stream))
            if job.overheads.compute_slowdown:
                job.paces = [SlowedClock(self.loop) for _ in range(job.world_size)]
        self.transfers.wires.find_owners()

    # Ranks -------------------------------------------------------------------------------------

    def play(self, scripts: Sequence[Iterator[ClockOp]]) -> None:
        """Simulate one script per job on all of its ranks; each operation is drawn from it once."""
        self.play_each([tee(s, job.world_size) for job, s in zip(self.jobs, scripts, strict=True)])

    def play_each(self, scripts: Sequence[Sequence[Iterable[ClockOp]]]) -> None:
        """Simulate one script per rank of each job, until the first job is done.

        Raises
        ------
        DeadlockError
            Lists each rank that waits for an event that cannot happen.
        """
        processes = [
            [
                self.loop.process(self._run(job, rank, script))
                for rank, script in enumerate(of_ranks)
            ]
            for job, of_ranks in zip(self.jobs, scripts, strict=True)
        ]
        first = self.jobs[0]
        if len(self.jobs) == 1:
            self.loop.run()
        else:
            done = self.loop.all_of(processes[0])
            while (not done.processed or first.stuck()) and self.loop.peek() < np.inf:
                self.loop.step()
        if first.blocked or first.came or first.stuck():
            raise DeadlockError(first.explain())

    def _run(
        self, job: FabricJob, rank: int, script: Iterable[ClockOp]
    ) -> Generator[simpy.Event, Any, None]:
        """Simulate one rank; consecutive compute is one timeout."""
        clock, who, loop = 0.0, np.array([rank]), self.loop
        for op in script:
            if clock > loop.now and (
                job.paces or isinstance(op, Launch | ClockWait | ClockBarrier)
            ):
                yield loop.until(clock)
            match op:
                case ComputeWork():
                    seconds = op.seconds[rank : rank + 1]
                    if job.paces and seconds[0]:
                        there = yield job.paces[rank].timeout(float(seconds[0]))
                        seconds = np.array([there - clock])
                    end = float(job.slowdown.finish(np.array([clock]), seconds, who)[0])
                    here = rank, op.step, COMPUTE_LANE, op.activity, op.name
                    job.trace.add_one(*here, clock, end, op.nbytes)
                    clock = end
                case Launch():
                    self._submit(job, rank, op, clock)
                case ClockWait():
                    clock = yield from self._wait(job, rank, op, clock)
                case ClockBarrier():
                    clock = yield self._meet(job, rank, op, clock)
                case Feed():
                    clock = float(feed(job.trace, op, np.array([clock]), who)[0])
                case MemoryChange():
                    nbytes = np.atleast_1d(op.nbytes)  # of all ranks, or of each
                    if len(nbytes) > 1:
                        nbytes = nbytes[rank : rank + 1]
                    job.trace.hold(who, op.step, op.part, np.array([clock]), nbytes)
                case _:  # also `FusedWork`, which only the vectorised clock gets
                    raise OperationError(f"{__name__}.EventFabric", type(op))
        if clock > loop.now:
            yield loop.until(clock)

    def _wait(
        self, job: FabricJob, rank: int, op: ClockWait, clock: float
    ) -> Generator[simpy.Event, Any, float]:
        """Wait for collectives on a rank; return the instant at which it continues [s]."""
        for number in op.calls:
            call = job.calls.get(number)
            if call is None or rank not in call.ready:
                raise DeadlockError([f"rank {rank} waits for a collective that it never launched"])
            if job.launched:
                job.stand_still(rank, number)
        for number in op.calls:
            call = job.calls[number]
            end = call.end.get(rank)
            if end is None:
                job.blocked[rank] = call
                end = yield call.done(self.loop, rank)
                del job.blocked[rank]
            clock = max(clock, end)
        return clock

    def _meet(self, job: FabricJob, rank: int, op: ClockBarrier, clock: float) -> simpy.Event:
        """Enter a rank into a barrier; the last one releases all at the latest clock."""
        event = self.loop.event()
        job.came[rank] = (clock, event)
        if len(job.came) == job.world_size:
            came = np.array([job.came[r][0] for r in range(job.world_size)])
            last = float(came.max())
            record_meeting(job.trace, op, came, np.full(job.world_size, last))
            for _, waiting in job.came.values():
                waiting.succeed(last)
            job.came = {}
        return event

    def _submit(self, job: FabricJob, rank: int, op: Launch, ready: float) -> None:
        """Queue a collective on one of the rank's communication streams."""
        if op.call not in job.calls:
            everyone, line = range(job.world_size), (job, op.stream)
            left, slow = partial(self._finish, job), job.overheads.collective_slowdown
            call = self.transfers.call(op, everyone, job.network, line, left, slow)
            job.calls[op.call] = call
            if slow:
                job.launched.setdefault(op.stream, []).append(call)
        queue, call = job.queue(rank, op.stream), job.calls[op.call]
        ready += op.wait
        queue.append((call, ready))
        call.ready[rank] = ready
        if len(queue) == 1:
            self._begin(job, rank, op.stream)

    def _begin(self, job: FabricJob, rank: int, stream: int) -> None:
        call, ready = job.queue(rank, stream)[0]
        free = job.stream_free.get((rank, stream), 0.0)
        for number in call.op.after:
            end_of_other = job.calls[number].end.get(rank)
            if end_of_other is None:
                job.held_back.setdefault((number, rank), []).append(stream)
                return
            free = max(free, end_of_other)
        self.loop.at(max(ready, free) + call.op.message, self._enter, job, call, rank)

    def _enter(self, job: FabricJob, call: CollectiveTimes, rank: int, now: float) -> None:
        job.slow_down(rank, call, 1)
        self.transfers.come(call, rank, now)

    def _finish(self, job: FabricJob, call: CollectiveTimes, rank: int, now: float) -> None:
        """Take a rank out of a collective after its last transfer."""
        job.slow_down(rank, call, -1)
        stream = call.op.stream
        queue = job.queue(rank, stream)
        queue.popleft()
        job.stream_free[rank, stream] = now
        if call.is_done:
            self._record(job, call)
        if queue:
            self._begin(job, rank, stream)
        for other in job.held_back.pop((call.op.call, rank), ()):
            self._begin(job, rank, other)

    def _record(self, job: FabricJob, call: CollectiveTimes) -> None:
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
