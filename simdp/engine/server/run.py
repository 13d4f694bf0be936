"""ServerRun: workers and their server on one clock, which decides whose gradient comes first."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np
import simpy

from simdp.engine.clocks.loop import LAST, Loop, turn_of
from simdp.engine.clocks.vector import record_meeting
from simdp.engine.network.traffic import Traffic
from simdp.engine.ops import Meet
from simdp.engine.readers.memory import OBSERVED_STEPS
from simdp.engine.run import Run
from simdp.engine.server.holdings import Holdings
from simdp.engine.server.learning import Learning
from simdp.engine.server.messages import Messages
from simdp.engine.server.report import Deeds, Step
from simdp.engine.server.tapes import Tapes, of_rank
from simdp.engine.server.updates import UPDATES, Action
from simdp.engine.server.workers import Worker
from simdp.results.trace import COMPUTE_LANE, SETUP, TraceBuilder
from simdp.strategies.parameter_server import ParameterServer
from simdp.workload.precision.rounding import numpy_dtype
from simdp.workload.schedules.base import Progress
from simdp.workload.step_costs import (
    gradient_nbytes_moved,
    optimizer_flops,
    optimizer_launches,
    optimizer_list_launches,
    optimizer_nbytes_moved,
    update_seconds,
)


class ServerRun:
    """A run: every rank a worker, and the server on the device of one of them.

    An update is worked out at the pace of the server's device memory, on a stream of its own, which
    does not disturb the worker there. Its spans stand on the ranks that wait for it: those whose
    gradients it takes.

    Parameters
    ----------
    run : Run
        All ranks, without numerics: what they do, and for how long. It takes the records.
    learning : Learning or None
        The numbers, if there are any.
    trace : TraceBuilder
        Takes the spans.
    traffic : Traffic
        Takes the messages.
    progress : callable, optional
        Called with the number of finished steps.
    stop_after : int, optional
        Finished steps after which it stops.

    Attributes
    ----------
    server : int
        The rank whose device holds the server.
    num_steps : int
        Of every worker.
    workers : list of Worker
        By rank.
    updates : Updates
        What the server does with gradients.
    deeds : Deeds
        What it has done.
    """

    def __init__(
        self,
        run: Run,
        learning: Learning | None,
        trace: TraceBuilder,
        traffic: Traffic,
        progress: Callable[[int], None] | None,
        stop_after: int | None = None,
    ) -> None:
        strategy = run.scenario.strategy
        assert isinstance(strategy, ParameterServer), "only these have a server"
        self._run, self._learning, self._trace = run, learning, trace
        self._progress, self.server = progress, strategy.server
        self._tapes, n = Tapes(run), run.world_size
        self.num_steps = self._tapes.num_steps
        self._loop, self._holdings = Loop(), Holdings(n)
        self._messages = Messages(
            self._loop,
            run.launcher.planner.network,
            self.server,
            n,
            run.scenario.cluster.overheads.before_collective(2),
            traffic,
        )
        self.updates = UPDATES[strategy.updates](strategy, self, n)
        self._last = (stop_after or self.num_steps) - 1
        finished, last = self.updates.finished, self._last
        self.workers = [Worker(rank, finished, last) for rank in range(n)]
        self.deeds = Deeds()
        self._steps: dict[int, Step] = {}
        self._inbox: list[int] = []
        self._pulling, self._has_started = 0, False
        self._sent: dict[int, float] = {}  # by the server, in each step
        self._pulled_at: dict[int, float] = {}  # by the worker beside it
        self._count_bytes()

    def _count_bytes(self) -> None:
        workload, graph = self._run.scenario.workload, self._run.program.facts.graph
        learned = set(graph.ready_order)
        sizes = {p.name: p.num_elements for p in graph.parameters}
        stored = numpy_dtype(workload.precision.weight_dtype(workload.dtype)).itemsize
        elements = sum(size for name, size in sizes.items() if name in learned)
        self._gradient_nbytes = float(elements * workload.gradient_itemsize)
        self._weight_nbytes = float(sum(sizes.values()) * stored)

    def play(self) -> float:
        """Play the whole run, and give the ranks what came of it; tell when it ends [s]."""
        for worker in self.workers:
            self._take_model(worker.rank)
            self.pull(worker.rank, 0.0)
        stop = self._last + 1 < self.num_steps
        while self._pulling or not self.updates.are_done:
            self._loop.step()
            if stop and len(self._run.numbers.records) > self._last:
                break
        end = self._loop.now
        for worker in self.workers:  # those who come too late for the last update
            worker.record(self._trace, end)
            worker.pushed(self._trace, end)
        self._count_pulls()
        self._run.memory.ledger = self._holdings.ledger(self._trace, end)
        if self._learning is not None:
            self._learning.finish(self.server)
        return end

    # What workers do ---------------------------------------------------------------------------

    def begin(self, rank: int, step: int, now: float) -> None:
        """See `simdp.engine.server.updates.Yard`."""
        worker = self.workers[rank]
        worker.step, worker.batches = step, self._tapes.batches(step)
        self.deeds.begun += 1
        self._loop.process(self._work(worker, now))

    def _work(self, worker: Worker, now: float) -> Generator[simpy.Event, Any, None]:
        """A worker computes a gradient, and pushes it."""
        tape = self._tapes.tape(worker.step)
        done = worker.play(tape, now, self._run.slowdown, self._holdings)
        now = yield self._loop.until(done, turn_of(worker.rank))
        worker.record(self._trace)
        worker.pushing = now
        if self._learning is not None:
            assert worker.batches is not None, "it has begun a step"
            worker.lost = self._learning.compute(worker.rank, worker.step, worker.batches)
        if worker.rank != self.server:
            self._keep_message(worker, 1, now)
        nbytes = self._gradient_nbytes
        now = yield from self._messages.carry(worker.rank, self.server, worker.step, nbytes)
        if worker.rank != self.server:
            worker.pushed(self._trace, now, self._gradient_nbytes)
            self._give_gradient(worker, now)
        worker.came, worker.pushing = now, None
        if not self._inbox:
            self._loop.in_turn(now, LAST, self._open)
        self._inbox.append(worker.rank)

    def _open(self, now: float) -> None:
        """Look at all gradients that have come at an instant."""
        ranks, self._inbox = sorted(self._inbox), []
        self.updates.came(ranks, now)

    def pull(self, rank: int, now: float) -> None:
        """See `simdp.engine.server.updates.Yard`."""
        worker = self.workers[rank]
        if worker.is_late:
            self.waited(rank, "for the update", worker.came, now)
        worker.is_late, worker.version = False, self.deeds.updates
        if self._learning is not None:
            self._learning.pull(rank)
        self._pulling += 1
        if rank != self.server:
            self._sent[worker.step] = self._sent.get(worker.step, 0.0) + self._weight_nbytes
        self._loop.process(self._pull(worker, now))

    def _pull(self, worker: Worker, since: float) -> Generator[simpy.Event, Any, None]:
        """A worker gets the newest weights."""
        nbytes = self._weight_nbytes
        now = yield from self._messages.carry(self.server, worker.rank, worker.step, nbytes)
        self._pulling -= 1
        worker.communicated(self._trace, "comm", "pull", since, now)
        if worker.rank == self.server:
            self._pulled_at[worker.step] = now
        if not self._has_started:
            worker.came = now
            if not self._pulling:
                self._start(now)
        else:
            self.updates.pulled(worker.rank, now)

    def _count_pulls(self) -> None:
        """Note on the server's rank what it has sent in each step, at the end of that step."""
        worker, here = self.workers[self.server], 0.0
        for step in sorted({*self._sent, *self._pulled_at}):
            worker.step, here = step, self._pulled_at.get(step, here)
            nbytes = self._sent.get(step, 0.0)
            worker.communicated(self._trace, "comm", "pull", here, here, nbytes)

    def _start(self, now: float) -> None:
        """All workers have their first weights: let them begin together."""
        self._has_started = True
        came = np.array([worker.came for worker in self.workers])
        record_meeting(self._trace, Meet(SETUP), came, np.full(len(came), now))
        for worker in self.workers:
            self.updates.start(worker.rank, now)

    def waited(self, rank: int, name: str, begin: float, end: float) -> None:
        """See `simdp.engine.server.updates.Yard`."""
        self.workers[rank].communicated(self._trace, "wait", name, begin, end)

    def has_samples(self, rank: int, step: int) -> bool:
        """See `simdp.engine.server.updates.Yard`."""
        return bool(self._tapes.batches(step).sizes[:, rank].any())

    def leave_out(self, rank: int, step: int) -> None:
        """See `simdp.engine.server.updates.Yard`."""
        self.workers[rank].step = step

    # What the server does ----------------------------------------------------------------------

    def update(self, ranks: Sequence[int], now: float, done: Action) -> None:
        """See `simdp.engine.server.updates.Yard`."""
        workers = [self.workers[rank] for rank in ranks]
        for worker in workers:
            worker.communicated(self._trace, "wait", "for the server", worker.came, now)
        clock, roofline = now, self._run.roofline
        workload = self._run.scenario.workload
        for name, nbytes, (over_lists, in_loop), flops in self._parts(len(ranks)):
            launch, moving = roofline.launch, roofline.moving(nbytes)
            seconds = update_seconds(moving, over_lists * launch, in_loop * launch)
            seconds = np.asarray(seconds + roofline.of_products(flops, workload))
            end = clock + float(seconds[self.server])
            for worker in workers:
                here = worker.rank, worker.shown_step, COMPUTE_LANE, "update", name
                self._trace.add_one(*here, clock, end, nbytes)
            clock = end
        self.deeds.busy += clock - now
        self._keep_update(workers, now, clock)
        self._loop.at(clock, self._updated, workers, done)

    def _updated(self, workers: Sequence[Worker], done: Action, now: float) -> None:
        self._apply(workers)
        done(now)

    def _parts(self, num_gradients: int) -> list[tuple[str, float, tuple[int, int], float]]:
        """What an update consists of: name, bytes moved, launches, FLOPs of products.

        Launches are those over lists of tensors, and those of a loop over tensors.
        """
        workload = self._run.scenario.workload
        read_and_written = (num_gradients + 1) * (num_gradients > 1) * self._gradient_nbytes
        found = [
            ("average", read_and_written, (0, 0), 0.0),
            ("gradients", gradient_nbytes_moved(workload), (0, 0), 0.0),
            (
                "optimizer",
                optimizer_nbytes_moved(workload),
                (optimizer_list_launches(workload), optimizer_launches(workload)),
                optimizer_flops(workload),
            ),
        ]
        return [part for part in found if part[1]]

    def _apply(self, workers: Sequence[Worker]) -> None:
        workload, n = self._run.scenario.workload, self._run.world_size
        for worker in workers:
            self.deeds.apply(self.deeds.updates - worker.version)
        self.deeds.updates += 1
        number, norm = self.deeds.updates, None
        if self._learning is not None:
            norm = self._learning.update([worker.rank for worker in workers], number)
        lr = workload.learning_rate(workload.optimizer.lr, Progress(number), n)
        for worker in workers:
            step = self._steps.setdefault(worker.step, Step(adds=workload.loss.adds))
            step.add(worker.rank, worker.num_samples, worker.lost, lr, norm)

    def drop(self, rank: int, step: int) -> None:
        """See `simdp.engine.server.updates.Yard`."""
        worker = self.workers[rank]
        worker.is_late = True
        self.deeds.dropped += 1
        if self._learning is not None:
            self._learning.forget(rank)
        if rank != self.server:
            self._keep_message(worker, -1, worker.came)
        else:
            self._give_gradient(worker, worker.came)
        worker.step = step

    def finish_step(self, step: int, oldest: int) -> None:
        """See `simdp.engine.server.updates.Yard`."""
        self._run.numbers.records.append(self._steps.pop(step).record(self._run.world_size))
        self._tapes.forget(oldest)
        if self._progress is not None:
            self._progress(step + 1)

    # Memory ------------------------------------------------------------------------------------

    def _take_model(self, rank: int) -> None:
        """A worker's own model; and the server's beside it, with the master weights."""
        for op in self._tapes.model:
            nbytes = of_rank(op, rank) * (op.part != "optimizer_state")
            self._holdings.hold(rank, SETUP, op.part, nbytes, 0.0)
            if rank == self.server and op.part != "buffers":
                self._holdings.hold(rank, SETUP, op.part, of_rank(op, rank), 0.0)

    def _keep_message(self, worker: Worker, sign: int, now: float) -> None:
        """The server has room for a gradient from when it is sent until it is done with it."""
        if worker.step < OBSERVED_STEPS:
            nbytes = sign * self._run.memory.footprint.room([self._gradient_nbytes])
            self._holdings.hold(self.server, worker.step, "buckets", nbytes, now)

    def _give_gradient(self, worker: Worker, now: float) -> None:
        for op in worker.of_update:
            if op.part == "gradients":
                self._holdings.hold(worker.rank, op.step, op.part, of_rank(op, worker.rank), now)

    def _keep_update(self, workers: Sequence[Worker], begin: float, end: float) -> None:
        """What an update keeps beside the gradients, and what it gives back at its end."""
        server = self.server
        for op in workers[0].of_update:
            nbytes, once = of_rank(op, server), op.part == "optimizer_state"
            if op.part == "temporary" or (once and self.deeds.updates == 0):
                at = begin if nbytes > 0 else end
                self._holdings.hold(server, op.step, op.part, nbytes, at)
        for worker in workers:
            if worker.rank == server:
                self._give_gradient(worker, end)
            else:
                self._keep_message(worker, -1, end)
