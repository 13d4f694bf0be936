"""Updates of the parameter server: order, staleness, weights.

A run without numbers produces the operations of a step for all ranks; each worker runs its part
when it reaches that step. A worker runs a whole step ahead of the clock, while messages arrive at
the server's device, so that memory is ordered by instants afterwards (`Holdings`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from simdp.arrays import Array, Floats
from simdp.engine.interpreters.memory import MemoryLedger, Taken
from simdp.engine.interpreters.records import RecordsInterpreter
from simdp.engine.ops import ClockOp, ComputeWork, MemoryChange
from simdp.engine.payload import of_rank
from simdp.engine.replicas import Replicas
from simdp.engine.run import Run
from simdp.engine.samples import BatchSamples
from simdp.engine.state import State
from simdp.engine.trainer import Trainer
from simdp.results.memory import MEMORY_PARTS
from simdp.results.trace import SETUP, TraceBuilder
from simdp.scenario.root import Scenario
from simdp.steps.ops import Op, Update
from simdp.steps.program import Program
from simdp.strategies.base import ServerOptions
from simdp.workload.precision import rounded
from simdp.workload.sampling import StepBatches
from simdp.workload.schedules.base import Progress

T = TypeVar("T")

MAX_TAPES = 16
"""Steps with kept operations; workers that are further apart have them computed again."""


class ServerTape(NamedTuple):
    """A step of every worker: work from pull to push; memory changes around an update."""

    work: list[ClockOp]
    before: list[MemoryChange]
    after: list[MemoryChange]


class Tapes:
    """The steps of a run; where it ``learns``, with the indices of their samples."""

    def __init__(self, run: Run, learns: bool) -> None:
        self._run, scenario = run, run.scenario
        workload, n = scenario.workload, run.world_size
        self.num_steps = workload.num_steps(n, scenario.base)
        self._batches = workload.batches(
            n, scenario.seed, scenario.base, has_indices=learns or run.samples.has_indices
        )
        self._dealt: dict[int, StepBatches] = {}
        self._num_dealt = 0
        self._kept: dict[int, ServerTape] = {}
        self.model = _holds(SETUP, run.memory.model())

    def batches(self, step: int) -> StepBatches:
        """Batches of a step."""
        while step >= self._num_dealt:
            self._dealt[self._num_dealt] = next(self._batches)
            self._num_dealt += 1
        return self._dealt[step]

    def tape(self, step: int) -> ServerTape:
        """Operations of a step."""
        if step not in self._kept:
            if len(self._kept) == MAX_TAPES:
                del self._kept[next(iter(self._kept))]
            self._kept[step] = self._made(step)
        return self._kept[step]

    def _made(self, step: int) -> ServerTape:
        run = self._run
        work = list(run.step(step, self.batches(step)))
        launch = run.scenario.cluster.overheads.launch
        if launch:
            work.append(ComputeWork(step, "host", "launch", launch * run.slowdown.factors(step)))
        before = _holds(step, run.memory.before(Update()))
        return ServerTape(work, before, _holds(step, run.memory.after(Update())))

    def forget(self, step: int) -> None:
        """Drop all steps before one."""
        _drop(self._dealt, step)
        _drop(self._kept, step)


def _holds(step: int, taken: Taken) -> list[MemoryChange]:
    return [MemoryChange(step, part, nbytes) for part, nbytes in taken]


def _drop(kept: dict[int, T], step: int) -> None:
    for number in [number for number in kept if number < step]:
        del kept[number]


def tapes_of_rank(hold: MemoryChange, rank: int) -> float:
    """One rank's change of memory [bytes]."""
    nbytes = hold.nbytes
    return float(nbytes[rank] if isinstance(nbytes, np.ndarray) else nbytes)


# Updates ------------------------------------------------------------------------------------------

Action = Callable[[float], None]
"""Called with the instant [s]."""


class Yard(Protocol):
    """Actions available to `Updates`; see `simdp.engine.server.run.ServerRun`."""

    @property
    def num_steps(self) -> int:
        """Number of gradients of each worker, or of synchronous updates."""

    def begin(self, rank: int, step: int, now: float) -> None:
        """Start a worker's computation and push of its gradient of a step."""

    def pull(self, rank: int, now: float) -> None:
        """Send the newest weights to a worker."""

    def update(self, ranks: Sequence[int], now: float, done: Action) -> None:
        """Apply the mean of some gradients, which have arrived; then call ``done``."""

    def drop(self, rank: int, step: int) -> None:
        """Drop a gradient that has arrived; its worker moves to the given step."""

    def has_samples(self, rank: int, step: int) -> bool:
        """Whether a worker has samples in a step."""

    def leave_out(self, rank: int, step: int) -> None:
        """Move a worker to a step in which it computes nothing."""

    def finish_step(self, step: int, oldest: int) -> None:
        """Record that no more gradients of a step, or of one before it, will be applied.

        ``oldest`` is the first step that a worker may still begin.
        """

    def waited(self, rank: int, name: str, begin: float, end: float) -> None:
        """Record a worker's wait with its reason [s]."""


class Updates(ABC):
    """Rule by which the server applies gradients.

    ``busy``: an update is running; ``finished`` are the ends of the synchronous steps [s].
    """

    def __init__(self, options: ServerOptions, yard: Yard, world_size: int) -> None:
        self.options, self.yard, self.world_size = options, yard, world_size
        self.busy, self.finished = False, list[float]()

    @abstractmethod
    def start(self, rank: int, now: float) -> None:
        """Start a worker, which has the first weights."""

    @abstractmethod
    def came(self, ranks: Sequence[int], now: float) -> None:
        """Process the gradients that arrived from some workers at an instant, in order of rank."""

    @abstractmethod
    def pulled(self, rank: int, now: float) -> None:
        """Continue a worker, which has new weights."""

    @property
    @abstractmethod
    def are_done(self) -> bool:
        """Whether no gradient is left to apply."""


class Synchronous(Updates):
    """One update with the first gradients of a step; later ones are dropped.

    With backups, a worker without samples skips a step: otherwise its gradient of zeros would
    arrive first and replace one with information.
    """

    def __init__(self, options: ServerOptions, yard: Yard, world_size: int) -> None:
        super().__init__(options, yard, world_size)
        self.version = 0
        self._taken: list[int] = []
        self._late: list[int] = []
        self._idle: dict[int, float] = {}  # workers without samples: start of their wait
        self._of = [0] * world_size  # the version that each worker has pulled
        self._wanted = self._of_step(0)

    def _of_step(self, step: int) -> int:
        """Number of gradients in an update."""
        first = self.world_size - self.options.backup
        return min(first, sum(self._takes_part(rank, step) for rank in range(self.world_size)))

    def _takes_part(self, rank: int, step: int) -> bool:
        return not self.options.backup or self.yard.has_samples(rank, step)

    def start(self, rank: int, now: float) -> None:
        self._begin(rank, now)

    def _begin(self, rank: int, now: float) -> None:
        step = self._of[rank]
        if self._takes_part(rank, step):
            self.yard.begin(rank, step, now)
            return
        self.yard.leave_out(rank, step)
        if step == self.version:
            self._idle[rank] = now
        else:
            self._pull(rank, now)

    def came(self, ranks: Sequence[int], now: float) -> None:
        for rank in ranks:
            if self._of[rank] == self.version and len(self._taken) < self._wanted:
                self._taken.append(rank)
                continue
            self.yard.drop(rank, min(self.version, self.yard.num_steps - 1))
            if len(self._taken) == self._wanted:  # an update with newer weights is running
                self._late.append(rank)
            else:
                self._pull(rank, now)
        if len(self._taken) == self._wanted and not self.busy:
            self.busy = True
            self.yard.update(sorted(self._taken), now, self._updated)

    def _updated(self, now: float) -> None:
        self.busy, self.version = False, self.version + 1
        self.finished.append(now)
        self.yard.finish_step(self.version - 1, min(self._of))
        for rank, since in self._idle.items():
            self.yard.waited(rank, "for the update", since, now)
        ranks = sorted([*self._taken, *self._late, *self._idle])
        self._taken, self._late, self._idle = [], [], {}
        if not self.are_done:
            self._wanted = self._of_step(self.version)
        for rank in ranks:
            self._pull(rank, now)

    def _pull(self, rank: int, now: float) -> None:
        self._of[rank] = self.version
        self.yard.pull(rank, now)

    def pulled(self, rank: int, now: float) -> None:
        if not self.are_done:
            self._begin(rank, now)

    @property
    def are_done(self) -> bool:
        return self.version == self.yard.num_steps


class Asynchronous(Updates):
    """One update per gradient, in order of arrival."""

    def __init__(self, options: ServerOptions, yard: Yard, world_size: int) -> None:
        super().__init__(options, yard, world_size)
        self._queue: deque[int] = deque()
        self._done = [0] * world_size  # steps
        self._ahead: dict[int, float] = {}  # waiting workers: start of their wait
        self._slowest = 0

    def start(self, rank: int, now: float) -> None:
        self._begin(rank, now)

    def _begin(self, rank: int, now: float) -> None:
        if self._done[rank] == self.yard.num_steps:
            return
        if self.yard.has_samples(rank, self._done[rank]):
            self.yard.begin(rank, self._done[rank], now)
        else:
            self.yard.leave_out(rank, self._done[rank])
            self._go_on(rank, now)

    def came(self, ranks: Sequence[int], now: float) -> None:
        self._queue += ranks
        self._next(now)

    def _next(self, now: float) -> None:
        if self._queue and not self.busy:
            self.busy, rank = True, self._queue.popleft()
            self.yard.update([rank], now, partial(self._applied, rank))

    def _applied(self, rank: int, now: float) -> None:
        self.busy = False
        self._go_on(rank, now)
        self._next(now)

    def _go_on(self, rank: int, now: float) -> None:
        """End a worker's step: it pulls, and so do workers that waited for it."""
        self._done[rank] += 1
        slowest = min(self._done)
        if slowest > self._slowest:
            self.yard.finish_step(slowest - 1, slowest)
        self._slowest = slowest
        self._ahead[rank] = now
        for other in sorted(self._ahead):
            if self._may_go_on(other):
                since = self._ahead.pop(other)
                self.yard.waited(other, "for the slowest", since, now)
                self.yard.pull(other, now)

    def _may_go_on(self, rank: int) -> bool:
        limit = self.options.max_staleness
        done = self._done[rank]
        return limit is None or done - self._slowest <= limit or done == self.yard.num_steps

    def pulled(self, rank: int, now: float) -> None:
        self._begin(rank, now)

    @property
    def are_done(self) -> bool:
        return self._slowest == self.yard.num_steps


UPDATES: dict[str, type[Updates]] = {"asynchronous": Asynchronous, "synchronous": Synchronous}
"""Rules by ``strategy.updates``."""


class Losses(NamedTuple):
    """A worker's losses in a step by micro-step, nan without samples; numbers of averaged items."""

    losses: Floats
    counts: Floats


class Learning(RecordsInterpreter):
    """Weights and optimizer state of the server; weights, buffers and gradients of the workers.

    Results depend on the order of calls, which the clock determines. So a continued run first
    returns the results in the state's log, call by call, and then loads the state.
    """

    replicas: Replicas

    def __init__(self, scenario: Scenario, program: Program, past: State | None = None) -> None:
        super().__init__(scenario, program)
        self._past = past
        self._left: dict[int, dict[str, Array]] = {}
        self.replicas = Replicas(scenario, BatchSamples(scenario))
        drawn = self._workload.initial_weights(scenario.seed, 0, scenario.base)
        self._trainer = Trainer(scenario, [{name: drawn[name] for name in self.replicas.shapes}])
        self._wire = self._workload.precision.gradient_dtype(self._workload.dtype)

    @property
    def trainer(self) -> Trainer:
        """The server's weights and its optimizer."""
        return self._trainer

    def read(self, op: Op) -> None:
        """Ignore all operations: the server starts the workers' computation itself."""

    def state_dict(self) -> dict[str, Array]:
        state = {f"server/{key}": kept for key, kept in self._trainer.state_dict(None).items()}
        for rank, own in enumerate(self.replicas.weights):
            weights = self._left.get(rank, own)
            state |= {f"{rank}/weights/{name}": value for name, value in weights.items()}
        for rank, own in enumerate(self.replicas.buffers):
            state |= {f"{rank}/buffers/{name}": value for name, value in own.items()}
        for rank, own in enumerate(self.replicas.gradients):
            state |= {f"{rank}/gradients/{name}": value for name, value in own.items()}
        return state

    def finish(self, rank: int) -> None:
        """Give a rank the newest weights as the result; the state keeps its own."""
        self._left[rank] = self.replicas.weights[rank]
        self.replicas.weights[rank] = self._trainer.weights[0]

    def load_state_dict(self, state: State) -> None:
        arrays = state.arrays
        mine = {key[7:]: kept for key, kept in arrays.items() if key.startswith("server/")}
        self._trainer.load_state_dict(mine)
        for rank, weights in enumerate(self.replicas.weights):
            for part, own in (("weights", weights), ("buffers", self.replicas.buffers[rank])):
                for name, value in own.items():
                    value[...] = of_rank(arrays, rank, f"{part}/{name}", value.shape)
            self.replicas.gradients[rank] = {
                name: arrays[f"{rank}/gradients/{name}"].copy()
                for name in self.replicas.shapes
                if f"{rank}/gradients/{name}" in arrays
            }

    def _answered(self, work: Callable[[], object]) -> Any:
        """Return the next result of the log, or compute and log it."""
        past = self._past
        if past is not None and len(self.log) < len(past.log):
            self.log.append(past.log[len(self.log)])
            return self.log[-1]
        if past is not None:
            self._past = None
            self.load_state_dict(past)
        with np.errstate(all="ignore"):  # as in a run of synchronous ranks
            self.log.append(work())
        return self.log[-1]

    def pull(self, rank: int) -> None:
        """Replace a worker's weights by the server's."""
        self._answered(lambda: self._pull(rank))

    def _pull(self, rank: int) -> None:
        for name, newest in self._trainer.weights[0].items():
            self.replicas.weights[rank][name][...] = newest

    def compute(self, rank: int, step: int, batches: StepBatches) -> Losses:
        """Compute a worker's gradient of a step from its pulled weights."""
        losses = self._answered(lambda: self._compute(rank, step, batches))
        return Losses(*(np.array(column, dtype=float) for column in losses))

    def _compute(self, rank: int, step: int, batches: StepBatches) -> list[list[float]]:
        replicas, losses, counts = self.replicas, [], []
        sizes = batches.sizes[:, rank].astype(float)
        adds = self._workload.loss.adds
        scales = np.ones(len(sizes)) if adds else sizes / max(sizes.sum(), 1.0)
        replicas.step = step
        for parts, scale in zip(batches.micro, scales.tolist(), strict=True):
            part = parts[rank]
            losses.append(replicas.run_one(rank, part, scale))
            counts.append(self._workload.loss.count(replicas.samples.target(part)))
            if len(losses) == 1:
                self._go_wrong(rank, step)
        return [list(map(float, losses)), list(map(float, counts))]

    def _go_wrong(self, rank: int, step: int) -> None:
        for fault in self._workload.inject:
            if fault.rank == rank and fault.happens(step + 1, self.replicas.world_size):
                self.replicas.inject(rank, fault.value)

    def update(self, ranks: Sequence[int], number: int) -> float:
        """Apply the mean of some workers' gradients, added in the given order, and drop them.

        ``number`` is that of the update, from 1. Returns the norm of the mean, before clipping.
        """
        return float(self._answered(lambda: self._update(ranks, number)))

    def _update(self, ranks: Sequence[int], number: int) -> float:
        total: dict[str, Array] = {}
        for rank in ranks:
            for name, gradient in self.replicas.gradients[rank].items():
                share = gradient * gradient.dtype.type(1.0 / len(ranks))
                share = rounded(share, self._wire)  # sent in 16 bits, and added in 32
                total[name] = total[name] + share if name in total else share
            self.replicas.gradients[rank] = {}
        (done,) = self._trainer.update([total], Progress(number), [True])
        assert done is not None, "the only slot is active"
        return done.norm

    def forget(self, rank: int) -> None:
        """Drop a worker's gradient."""
        self._answered(lambda: self.replicas.gradients.__setitem__(rank, {}))


TakenBytes = tuple[float, int, int, float]
"""Instant [s], step, index in `MEMORY_PARTS`, and change [bytes]."""


class Holdings:
    """Changes of all ranks' memory, in any order."""

    def __init__(self, world_size: int) -> None:
        self._taken: list[list[TakenBytes]] = [[] for _ in range(world_size)]

    def hold(self, rank: int, step: int, part: str, nbytes: float, now: float) -> None:
        """Record an allocation of a rank at an instant; negative if freed."""
        if nbytes:
            self._taken[rank].append((now, step, MEMORY_PARTS.index(part), nbytes))

    def ledger(self, trace: TraceBuilder, end: float) -> MemoryLedger:
        """Apply all changes up to an instant [s]: the peaks, and their breakdown."""
        at_peak = np.zeros((len(MEMORY_PARTS), len(self._taken)))
        for rank, taken in enumerate(self._taken):
            taken.sort(key=lambda change: change[0])
            who, now, peak = np.array([rank]), [0.0] * len(MEMORY_PARTS), 0.0
            for instant, step, part, nbytes in taken:
                if instant > end:
                    break
                trace.hold(who, step, MEMORY_PARTS[part], np.array([instant]), nbytes)
                now[part] += nbytes
                if sum(now) > peak:
                    peak = sum(now)
                    at_peak[:, rank] = now
        ledger = MemoryLedger(len(self._taken))
        for name, row in zip(MEMORY_PARTS, at_peak, strict=True):
            ledger.hold(name, row)
        return ledger
