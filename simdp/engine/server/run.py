"""Simulates the parameter server and its workers.

Here each rank runs its own part (`Worker`), messages share links (`Messages`), and the use of a
gradient depends on its arrival (`updates`). The numbers (`Learning`) follow the clock, so that
equal seeds give equal bits.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import simpy

from simdp.collectives import Plan, Round, SubPlan
from simdp.collectives.plans import even_offsets
from simdp.engine.clocks.clock import Clock, Fabric
from simdp.engine.clocks.flows import LAST, EventLoop, FlowLinks, Wires, turn_of
from simdp.engine.clocks.vector import record_meeting
from simdp.engine.collective import Planner
from simdp.engine.compute.profile_times import Times
from simdp.engine.interpreters.memory import OBSERVED_STEPS
from simdp.engine.network import NetworkRoutes
from simdp.engine.network.traffic import Traffic
from simdp.engine.ops import ClockBarrier, ComputeWork, Feed, MemoryChange
from simdp.engine.run import Run, RunOutput
from simdp.engine.server.updates import (
    UPDATES,
    Action,
    Holdings,
    Learning,
    Losses,
    ServerTape,
    Tapes,
    tapes_of_rank,
)
from simdp.engine.slowdown import Slowdown
from simdp.engine.state import WHOLE, Segment
from simdp.errors import OperationError, ScenarioError
from simdp.results.metrics import StepRecord, mean_losses
from simdp.results.trace import COMM_LANE, COMPUTE_LANE, SETUP, TraceBuilder
from simdp.scenario.root import Scenario
from simdp.workload.precision import numpy_dtype
from simdp.workload.sampling import StepBatches
from simdp.workload.schedules.base import Progress
from simdp.workload.step_costs import (
    gradient_nbytes_moved,
    optimizer_flops,
    optimizer_launches,
    optimizer_list_launches,
    optimizer_nbytes_moved,
    update_seconds,
)


@dataclass
class ServerStep:
    """Record of a step in progress.

    ``samples`` are those of the applied gradients; ``losses`` of the workers with an applied
    gradient, empty without numerics; ``lr`` and ``norm`` are of the update with the gradient of
    ``first``, the lowest of these workers; ``adds``: losses are sums.
    """

    samples: int = 0
    losses: dict[int, Losses] = field(default_factory=dict)
    first: int | None = None
    lr: float = 0.0
    norm: float | None = None
    adds: bool = False

    def add(
        self, rank: int, samples: int, lost: Losses | None, lr: float, norm: float | None
    ) -> None:
        """Record that a worker's gradient was applied."""
        self.samples += samples
        if lost is not None:
            self.losses[rank] = lost
        if self.first is None or rank < self.first:
            self.first, self.lr, self.norm = rank, lr, norm

    def record(self, world_size: int) -> StepRecord:
        """Return the record; a worker without an applied gradient has no loss."""
        if not self.losses:
            return StepRecord(self.samples, None, None, self.lr, None, None, None)
        num_micro = max(len(lost.counts) for lost in self.losses.values())
        losses, counts = np.zeros((2, num_micro, world_size))
        for rank, lost in self.losses.items():
            losses[:, rank], counts[:, rank] = lost
        mean, losses_of_ranks = mean_losses(list(losses), counts, self.adds)
        return StepRecord(self.samples, mean, losses_of_ranks, self.lr, self.norm, None, None)


@dataclass
class Deeds:
    """Counters of the server.

    ``begun`` gradients are later applied or dropped; ``busy`` is the time of the updates [s];
    ``staleness`` is the number of applied gradients by staleness.
    """

    updates: int = 0
    begun: int = 0
    applied: int = 0
    dropped: int = 0
    busy: float = 0.0
    staleness: dict[int, int] = field(default_factory=dict)

    def apply(self, staleness: int) -> None:
        """Count an applied gradient."""
        self.applied += 1
        self.staleness[staleness] = self.staleness.get(staleness, 0) + 1

    def summary(self, rank: int, simulated: float) -> dict[str, Any]:
        """The server's part of result.json; see `Result.server`."""
        total = sum(value * count for value, count in self.staleness.items())
        largest = max(self.staleness)
        return {
            "rank": rank,
            "updates": self.updates,
            "utilization": self.busy / simulated if simulated else 0.0,
            "applied": self.applied,
            "dropped": self.dropped,
            "under_way": self.begun - self.applied - self.dropped,
            "staleness": {
                "mean": total / self.applied,
                "max": largest,
                "histogram": [self.staleness.get(value, 0) for value in range(largest + 1)],
            },
        }


def _one_transfer() -> Iterator[Round]:
    zero, dst = np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64)
    yield Round(zero, dst, zero, reduce=False)


_MESSAGE = Plan("message", 2, 1, 0, _one_transfer, even_offsets(1))


def message(src: int, dst: int, world_size: int) -> Plan:
    """Plan a message: one chunk, from one rank to another."""
    zero = np.zeros(1, dtype=np.int64)
    part = SubPlan(_MESSAGE, np.array([[src, dst]]), zero, 1, zero, ())
    return Plan("message", world_size, 1, src, lambda: iter(()), even_offsets(1), parts=(part,))


class Messages:
    """Sends messages between the server's device and the others.

    ``before`` is the software time before the bytes of a message move [s].
    """

    def __init__(
        self,
        loop: EventLoop,
        network: NetworkRoutes,
        server: int,
        world_size: int,
        before: float,
        traffic: Traffic,
    ) -> None:
        self._loop, self._traffic, self._before = loop, traffic, before
        others = [rank for rank in range(world_size) if rank != server]
        pairs = [(r, server) for r in others] + [(server, r) for r in others]
        self._plans = {pair: message(*pair, world_size) for pair in pairs}
        self._links = FlowLinks(loop, network.cluster)
        self._wires = Wires(self._links)
        self._wire = {
            pair: self._wires.lay(pair, network, plan.everything[0], world_size)[*pair, 0]
            for pair, plan in self._plans.items()
        }
        self._wires.find_owners()

    def carry(
        self, src: int, dst: int, step: int, nbytes: float
    ) -> Generator[simpy.Event, Any, float]:
        """Send a message between the server and a rank; return its arrival [s].

        It arrives at once if both ends are on one device.
        """
        loop, turn = self._loop, turn_of(src)
        now = loop.now
        if src == dst:
            return float((yield loop.until(now, turn)))
        wire, plan = self._wire[src, dst], self._plans[src, dst]
        begin = now + self._before + self._wires.alpha[wire]
        if self._wires.own[wire] or not nbytes:
            end = yield loop.until(begin + nbytes / self._wires.bandwidth[wire], turn)
        else:
            yield loop.until(begin, turn)
            end = yield self._links.flow(self._wires.route[wire], nbytes)
        launched = self._traffic.launched
        launched[step, plan] = launched.get((step, plan), 0.0) + nbytes
        return float(end)


@dataclass
class Worker:
    """A rank that computes gradients."""

    rank: int
    finished: list[float]
    """End of each synchronous step [s], shared with `Updates`; empty if asynchronous."""
    last: int
    """The last step."""
    step: int = SETUP
    """Its current one, of the ``batches``."""
    batches: StepBatches | None = None
    version: int = 0
    """Number of updates in its weights."""
    came: float = 0.0
    """Arrival of its gradient at the server [s]."""
    is_late: bool = False
    """Whether it was dropped."""
    pushing: float | None = None
    """Start of the push of its gradient [s]."""
    lost: Losses | None = None
    """Its losses in the step."""
    of_update: list[MemoryChange] = field(default_factory=list)
    """Memory changes of an update in its step."""
    _fed: int = 0
    _rows: list[tuple[str, str, float, float, float]] = field(default_factory=list)

    @property
    def num_samples(self) -> int:
        """Samples of its step."""
        assert self.batches is not None, "it has begun a step"
        return int(self.batches.sizes[:, self.rank].sum())

    @property
    def shown_step(self) -> int:
        """Its step, at most the last one that is reported."""
        return min(self.step, self.last)

    def play(self, tape: ServerTape, now: float, slowdown: Slowdown, holdings: Holdings) -> float:
        """Simulate its part of a step; return the end [s]."""
        clock, who = now, np.array([self.rank])
        self.of_update = tape.before + tape.after
        for op in tape.work:
            match op:
                case ComputeWork():
                    seconds = op.seconds[self.rank : self.rank + 1]
                    end = float(slowdown.finish(np.array([clock]), seconds, who)[0])
                    self._rows.append((op.activity, op.name, clock, end, op.nbytes))
                    clock = end
                case Feed():
                    samples, at = op.samples[who], np.array([clock])
                    there, end_of = op.pipeline.hand_over(self._fed, samples, at, who)
                    self._fed += 1
                    self._waits_for_input(clock, float(there[0]), float(end_of[0]))
                    clock = float(end_of[0])
                case MemoryChange():
                    holdings.hold(self.rank, op.step, op.part, tapes_of_rank(op, self.rank), clock)
                case _:
                    raise OperationError(f"{__name__}.Worker", type(op))
        return clock

    def _waits_for_input(self, clock: float, there: float, end: float) -> None:
        for name, start, until in (("wait for the batch", clock, there), ("copy", there, end)):
            if until > start:
                self._rows.append(("input", name, start, until, 0.0))

    def record(self, trace: TraceBuilder, until: float = np.inf) -> None:
        """Add the spans of its work up to an instant [s]."""
        for activity, name, start, end, nbytes in self._rows:
            if start < until or start == end:
                here = self.step_at(start), COMPUTE_LANE, activity, name
                trace.add_one(self.rank, *here, start, min(end, until), nbytes)
        self._rows.clear()

    def step_at(self, instant: float) -> int:
        """The global step at an instant [s]; for a late worker not the one that it began."""
        return min(max(self.step, bisect_right(self.finished, instant)), self.last)

    def pushed(self, trace: TraceBuilder, end: float, nbytes: float = 0.0) -> None:
        """Add the span of its gradient's push, up to an instant [s]."""
        if self.pushing is not None and end > self.pushing:
            here = self.step_at(self.pushing), COMM_LANE, "comm", "push"
            trace.add_one(self.rank, *here, self.pushing, end, nbytes)

    def communicated(
        self,
        trace: TraceBuilder,
        activity: str,
        name: str,
        start: float,
        end: float,
        nbytes: float = 0.0,
    ) -> None:
        """Add a span of messages or of waiting, unless it is empty."""
        if end > start or nbytes:
            trace.add_one(self.rank, self.shown_step, COMM_LANE, activity, name, start, end, nbytes)


class ServerRun:
    """A run in which every rank is a worker, with the server on the device of one of them.

    An update runs at the speed of the server's device, on a stream of its own, which does not delay
    the worker there. Its spans appear on the ranks with the applied gradients.

    Parameters
    ----------
    run : Run
        All ranks, without numerics: operations and durations. It receives the records.
    learning : Learning or None
        The numbers, if they are computed.
    trace, traffic
        Receive the spans and the messages.
    progress : callable, optional
        Called with the number of finished steps.
    stop_after : int, optional
        Number of finished steps after which the run stops.

    Attributes
    ----------
    server : int
        The rank with the server on its device.
    num_steps : int
        Of every worker.
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
        options = run.scenario.strategy.server_options
        assert options is not None, "a strategy with a server has its options"
        self._run, self._learning, self._trace = run, learning, trace
        self._progress, self.server = progress, options.rank
        self._tapes, n = Tapes(run, learning is not None), run.world_size
        self.num_steps = self._tapes.num_steps
        self._loop, self._holdings = EventLoop(), Holdings(n)
        self._messages = Messages(
            self._loop,
            run.launcher.planner.network,
            self.server,
            n,
            run.scenario.cluster.overheads.before_collective(2),
            traffic,
        )
        self.updates = UPDATES[options.updates](options, self, n)
        self._last = (stop_after or self.num_steps) - 1
        finished, last = self.updates.finished, self._last
        self.workers = [Worker(rank, finished, last) for rank in range(n)]
        self.deeds = Deeds()
        self._steps: dict[int, ServerStep] = {}
        self._inbox: list[int] = []
        self._pulling, self._has_started = 0, False
        self._sent: dict[int, float] = {}  # by the server, in each step
        self._pulled_at: dict[int, float] = {}  # by the worker on the server's device
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
        """Simulate the whole run, and give the ranks its results; return its end [s]."""
        for worker in self.workers:
            self._take_model(worker.rank)
            self.pull(worker.rank, 0.0)
        stop = self._last + 1 < self.num_steps
        while self._pulling or not self.updates.are_done:
            self._loop.step()
            if stop and len(self._run.numbers.records) > self._last:
                break
        end = self._loop.now
        for worker in self.workers:  # unfinished work after the last update
            worker.record(self._trace, end)
            worker.pushed(self._trace, end)
        self._count_pulls()
        self._run.memory.ledger = self._holdings.ledger(self._trace, end)
        if self._learning is not None:
            self._learning.finish(self.server)
        return end

    # Workers -------------------------------------------------------------------------------------

    def begin(self, rank: int, step: int, now: float) -> None:
        """See `simdp.engine.server.updates.Yard`."""
        worker = self.workers[rank]
        worker.step, worker.batches = step, self._tapes.batches(step)
        self.deeds.begun += 1
        self._loop.process(self._work(worker, now))

    def _work(self, worker: Worker, now: float) -> Generator[simpy.Event, Any, None]:
        """Compute a worker's gradient, and push it."""
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
        """Process all gradients that arrived at an instant."""
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
        """Send the newest weights to a worker."""
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
        """Record the bytes that the server sent in each step, at the end of that step."""
        worker, here = self.workers[self.server], 0.0
        for step in sorted({*self._sent, *self._pulled_at}):
            worker.step, here = step, self._pulled_at.get(step, here)
            nbytes = self._sent.get(step, 0.0)
            worker.communicated(self._trace, "comm", "pull", here, here, nbytes)

    def _start(self, now: float) -> None:
        """Start all workers once all have their first weights."""
        self._has_started = True
        came = np.array([worker.came for worker in self.workers])
        record_meeting(self._trace, ClockBarrier(SETUP), came, np.full(len(came), now))
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

    # Server --------------------------------------------------------------------------------------

    def update(self, ranks: Sequence[int], now: float, done: Action) -> None:
        """See `simdp.engine.server.updates.Yard`."""
        workers = [self.workers[rank] for rank in ranks]
        for worker in workers:
            worker.communicated(self._trace, "wait", "for the server", worker.came, now)
        clock, roofline = now, self._run.roofline
        workload = self._run.scenario.workload
        for name, nbytes, (over_lists, in_loop), flops in self._parts(len(ranks)):
            launch, moving = roofline.launch, roofline.updating(nbytes)
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
        """Parts of an update: name, bytes moved, launches, FLOPs of products.

        Launches are those over lists of tensors, and those of a loop over tensors.
        """
        workload = self._run.scenario.workload
        read_and_written = (num_gradients + 1) * (num_gradients > 1) * self._gradient_nbytes
        parts = [
            ("average", read_and_written, (0, 0), 0.0),
            ("gradients", gradient_nbytes_moved(workload), (0, 0), 0.0),
            (
                "optimizer",
                optimizer_nbytes_moved(workload),
                (optimizer_list_launches(workload), optimizer_launches(workload)),
                optimizer_flops(workload),
            ),
        ]
        return [part for part in parts if part[1]]

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
            step = self._steps.setdefault(worker.step, ServerStep(adds=workload.loss.adds))
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
        """Allocate a worker's model; on the server's rank also the server's."""
        for op in self._tapes.model:
            nbytes = tapes_of_rank(op, rank) * (op.part != "optimizer_state")
            self._holdings.hold(rank, SETUP, op.part, nbytes, 0.0)
            if rank == self.server and op.part != "buffers":
                self._holdings.hold(rank, SETUP, op.part, tapes_of_rank(op, rank), 0.0)

    def _keep_message(self, worker: Worker, sign: int, now: float) -> None:
        """Allocate or free the server's buffer of a gradient, kept from push to update."""
        if worker.step < OBSERVED_STEPS:
            nbytes = sign * self._run.memory.footprint.room([self._gradient_nbytes])
            self._holdings.hold(self.server, worker.step, "buckets", nbytes, now)

    def _give_gradient(self, worker: Worker, now: float) -> None:
        for op in worker.of_update:
            if op.part == "gradients":
                self._holdings.hold(
                    worker.rank, op.step, op.part, tapes_of_rank(op, worker.rank), now
                )

    def _keep_update(self, workers: Sequence[Worker], begin: float, end: float) -> None:
        """Allocate an update's memory besides the gradients; free its temporaries at the end."""
        server = self.server
        for op in workers[0].of_update:
            nbytes, once = tapes_of_rank(op, server), op.part == "optimizer_state"
            if op.part == "temporary" or (once and self.deeds.updates == 0):
                at = begin if nbytes > 0 else end
                self._holdings.hold(server, op.step, op.part, nbytes, at)
        for worker in workers:
            if worker.rank == server:
                self._give_gradient(worker, end)
            else:
                self._keep_message(worker, -1, end)


def play_with_server(
    scenario: Scenario,
    trace: TraceBuilder,
    fabric: Fabric | None = None,
    progress: Callable[[int], None] | None = None,
    times: Times | None = None,
    segment: Segment = WHOLE,
) -> RunOutput:
    """Simulate a scenario with a server; as `simdp.engine.simulate.play`.

    Raises
    ------
    ScenarioError
        If ``fabric="vector"``; or if the run continues on another cluster, where messages would
        arrive in another order.
    """
    if fabric == "vector":
        raise ScenarioError(["fabric 'vector' cannot simulate a server; use 'event' or 'auto'."])
    if segment.past is not None and not segment.goes_on:
        raise ScenarioError(
            [
                "cluster: a run with a server cannot resume on another cluster, since messages "
                "in flight depend on it; use the same one."
            ]
        )
    cluster, traffic = scenario.cluster, Traffic()
    slowdown, planner = Slowdown(cluster, scenario.seed), Planner(cluster)
    timed = scenario.model_copy(update={"numerics": False})
    ranks = Run(timed, slowdown, planner, times)
    learning = None
    if scenario.numerics:
        ranks.numbers = learning = Learning(scenario, ranks.program, segment.past)
    run = ServerRun(ranks, learning, trace, traffic, progress, segment.stop_after)
    end = run.play()
    why = "messages to the server come when they come"
    clock = Clock("event", why, planner.network, [], slowdown, trace)
    server = run.deeds.summary(run.server, end)
    return RunOutput(ranks, clock, traffic, server)
