"""Interprets operations as costs: seconds and bytes.

Steps of one plan over micro-batches of the same shapes cost the same work, up to the factors of
stragglers: it is rehearsed once, and only collectives, waits and updates are interpreted again.
Rehearsed steps do not depend on the network, so that runs that differ only in it share them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import cached_property
from typing import Any, NamedTuple, TypeVar, get_args

import numpy as np

from simdp.arrays import Bools, Floats
from simdp.collectives import Plan as Transfers
from simdp.collectives.direct import copies_from, copies_to
from simdp.engine import compression
from simdp.engine.collective import Launcher
from simdp.engine.compression import CompressionKernels
from simdp.engine.compression import seconds as kernels_seconds
from simdp.engine.compute.call_times import Columns, call_kernels, with_accumulation
from simdp.engine.compute.profile_times import Times, profiled_update
from simdp.engine.compute.roofline import Roofline
from simdp.engine.interpreters.footprints import Amount, Footprint, OuterFootprint
from simdp.engine.interpreters.records import Shapes, Stepping
from simdp.engine.ops import (
    BytesMoved,
    CallWork,
    ClockBarrier,
    ClockWait,
    ComputeWork,
    Feed,
    FusedWork,
    HostWork,
    Origin,
    Pipeline,
    RecordedPass,
    UpdateWork,
)
from simdp.engine.ops import ClockOp as Played
from simdp.engine.samples import BatchSamples
from simdp.engine.slowdown import SLOWED, Slowdown
from simdp.errors import OperationError
from simdp.results.trace import SETUP
from simdp.scenario.root import Scenario
from simdp.steps import ops
from simdp.steps.facts import num_trainable
from simdp.steps.ops import Concern, Handlers, HostCopy, Op, Unless
from simdp.steps.partition import Group
from simdp.steps.program import Plan, Program
from simdp.workload import Workload
from simdp.workload.sampling import StepBatches
from simdp.workload.step_costs import optimizer_nbytes_moved, update_seconds

Amounts = tuple[Amount, Amount, Amount]
"""Bytes moved by scaling; bytes moved by the optimizer; the optimizer's other device time [s]:
launches and matrix products.
"""


def beside_profiled_update(
    workload: Workload, roofline: Roofline, moved: Amount, beside: Amount
) -> Amount:
    """Device time of an update besides moving its bytes [s], from a profile if it has one.

    ``moved`` are the bytes that the optimizer moves on each rank; ``beside`` is the result without
    a profiled update.
    """
    update = profiled_update(workload, roofline)
    if update is None or not (whole := optimizer_nbytes_moved(workload)):
        return beside
    return update * (moved / whole) - roofline.updating(moved)


def update_works(
    step: int, stepping: Stepping, amounts: Amounts, roofline: Roofline, host: float
) -> Iterator[ComputeWork]:
    """Work of an update on the device, or on the host.

    ``host`` is a rank's share of the host's memory bandwidth if pieces are on the host [bytes/s];
    else 0.
    """
    scaled, moved, _ = amounts

    def work(name: str, nbytes: Amount, active: Floats) -> ComputeWork:
        busy = update_busy(name, amounts, roofline, host)
        part = UpdateWork(name, tuple(active.tolist()))
        return ComputeWork(step, "update", name, busy * active, float(np.max(nbytes)), part)

    if np.any(scaled):
        yield work("gradients", scaled, stepping.active)
    if np.any(moved) and stepping.taken.any():
        yield work("optimizer", moved, stepping.taken)


def update_busy(name: str, amounts: Amounts, roofline: Roofline, host: float) -> Floats:
    """Time of a part of an update on every rank [s]; arguments as for `update_works`."""
    scaled, moved, beside = amounts
    nbytes, longer = (scaled, 0.0) if name == "gradients" else (moved, beside)
    if host:
        return nbytes / host * np.ones(len(roofline.device))
    if name == "gradients":
        return roofline.moving(nbytes)
    return roofline.updating(nbytes) + longer


class OptimizerDemand(NamedTuple):
    """Bytes that an optimizer moves; its launches in a loop, and over lists; its FLOPs."""

    moved: Amount
    in_loop: Amount
    over_lists: Amount
    flops: Amount

    @classmethod
    def of(cls, kept: Footprint) -> OptimizerDemand:
        """That of a footprint."""
        return cls(
            kept.moved_by_optimizer(),
            kept.launched_by_optimizer(),
            kept.launched_over_lists(),
            kept.flops_of_optimizer(),
        )

    def beside_moving(self, roofline: Roofline, workload: Workload) -> Amount:
        """Device time besides moving the bytes [s]."""
        products = roofline.of_products(self.flops, workload)
        launch, moving = roofline.launch, roofline.updating(self.moved)
        seconds = update_seconds(moving, self.over_lists * launch, self.in_loop * launch)
        return seconds - moving + products


# Rehearsals ---------------------------------------------------------------------------------------

T = TypeVar("T")

MAX_REHEARSED = 64
"""Steps that are kept; padded batches keep producing new shapes."""


class WorkPiece(NamedTuple):
    """Consecutive work without any slowdown.

    ``seconds`` has shape `(num_works, world_size)`; ``is_slowed``, shape `(num_works, 1)`: whether
    stragglers slow it down; ``first`` is the index of the first forward or backward, which a pause
    precedes, or -1; ``origins`` are those of the works.
    """

    activities: tuple[str, ...]
    seconds: Floats
    is_slowed: Bools
    first: int
    origins: tuple[Origin, ...]

    def charged(self, step: int, factors: Floats, owed: Floats) -> FusedWork:
        """The work in a step, with its slowdown factors and pauses."""
        seconds = np.where(self.is_slowed, self.seconds * factors, self.seconds)
        if owed.any() and self.first >= 0:
            seconds[self.first] += owed
        return FusedWork(step, self.activities, seconds, self.origins)


Rehearsed = list[WorkPiece | Op]
"""A step: pieces of work, and the operations between them that are interpreted in each step."""


def piece(works: list[ComputeWork]) -> WorkPiece:
    """Join consecutive work."""
    activities = tuple(work.activity for work in works)
    passes = [i for i, name in enumerate(activities) if name in ("forward", "backward")]
    return WorkPiece(
        activities,
        np.array([work.seconds for work in works]),
        np.array([name in SLOWED for name in activities])[:, None],
        passes[0] if passes else -1,
        tuple(work.origin for work in works),
    )


class _WorkAlone(dict[type[Op], bool]):
    """Whether operations of a class cost at most work, the same in every step."""

    def __missing__(self, kind: type[Op]) -> bool:
        if not issubclass(kind, Op):
            raise OperationError(f"{__name__}.rehearse", kind)
        is_work, anew = (
            kind.concerns & Concern.WORK,
            kind.concerns & (Concern.TIME | Concern.FAULTS),
        )
        self[kind] = bool(is_work) or not (anew or kind is Unless)
        return self[kind]


_WORK_ALONE = _WorkAlone()


def rehearse(plan: Iterable[Op], cost: Callable[[Op], Iterable[Played]]) -> Rehearsed:
    """Join the work of a plan into pieces, at its cost without any slowdown."""
    pieces, works = list[WorkPiece | Op](), list[Any]()
    for op in plan:
        if _WORK_ALONE[type(op)]:
            works += cost(op)
            continue
        if works:
            pieces.append(piece(works))
            works = []
        pieces.append(op)
    return [*pieces, piece(works)] if works else pieces


class Rehearsals:
    """Rehearsed steps, and the amounts of an update."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[Any, Rehearsed]] = {}
        self._update: Any = None

    def update(self, make: Callable[[], T]) -> T:
        """Amounts of an update, computed once: they are the same in every step."""
        if self._update is None:
            self._update = make()
        update: T = self._update
        return update

    def find(self, key: Hashable) -> Rehearsed | None:
        """Return a rehearsed step, or None."""
        _, steps = self._known.get(key, (None, None))
        return steps

    def keep(self, key: Hashable, plan: object, steps: Rehearsed) -> None:
        """Keep a step, and its plan for the id in the key; drop the oldest if full."""
        if len(self._known) >= MAX_REHEARSED:
            del self._known[next(iter(self._known))]
        self._known[key] = (plan, steps)


Cost = Iterator[Played]
"""Operations for the clocks."""


Collective = (
    ops.AllReduce
    | ops.ReduceScatter
    | ops.AllGather
    | ops.Broadcast
    | ops.Average
    | ops.GatherTogether
    | ops.ReduceTogether
    | ops.CopyOut
)
"""Operations that start a collective on a communication stream."""


class Costs:
    """Cost of every operation on each rank.

    ``rehearsals`` are of this run or of one that differs only in its network.
    """

    handlers = Handlers[Callable[[Any, Any], Cost]](Concern.WORK | Concern.TIME)

    def __init__(
        self,
        scenario: Scenario,
        program: Program,
        slowdown: Slowdown,
        launcher: Launcher,
        times: Times,
        roofline: Roofline,
        samples: BatchSamples,
        footprint: Footprint,
        shapes: Shapes,
    ) -> None:
        workload, self._cluster = scenario.workload, (cluster := scenario.cluster)
        self._scenario = scenario
        self._workload, self._facts, self._slowdown = workload, program.facts, slowdown
        self._launcher, self._times, self._roofline = launcher, times, roofline
        self._samples, self._footprint, self._shapes = samples, footprint, shapes
        self._one_host = scenario.strategy.host_of(workload, cluster.world_size)
        self._one_process, self._program = scenario.strategy.in_one_process, program
        n = self._world_size = cluster.world_size
        self._num_calls, self._overheads = len(program.facts.graph.calls), cluster.overheads
        self._has_loss_of_pieces, self._eager = False, workload.compute.runs_eagerly
        on_host, host = scenario.strategy.updates_on_host, cluster.host.memory_bandwidth
        self._host_bandwidth = on_host * host / cluster.local_size
        self._pipeline, self._num_fed = None, 0
        if workload.input:
            # Under one process, batches go to one device.
            sharers = 1 if program.scatters else cluster.local_size
            self._pipeline = Pipeline(workload.input, n, sharers)
        self.rehearsals, self._step = Rehearsals(), SETUP
        self._batches = StepBatches([], np.zeros((0, n), dtype=np.int64))
        self._factors, self._owed = np.ones(n), np.zeros(n)
        self._tags: dict[int, int] = {}
        self._columns: dict[tuple[str, int], tuple[Columns, RecordedPass]] = {}
        self._passes: dict[Hashable, RecordedPass] = {}

    def begin(self, step: int, shown: int, batches: StepBatches) -> Cost:
        """Begin a step with its batches; its collectives are numbered from 0.

        ``shown`` is the step's number for the clocks.
        """
        self._step, self._batches = shown, batches
        self._factors, self._owed = self._slowdown.factors(step), self._slowdown.lost(step)
        self._tags.clear()
        self._columns.clear()
        self._passes.clear()
        if seconds := self._workload.host.before_step(self._cluster.local_size):
            yield self._host("step", seconds)

    def read(self, op: ops.Op, stepping: Stepping | None) -> Cost:
        """Yield the cost of an operation; that of an update depends on its ``stepping``."""
        if stepping is not None:
            amounts = self.rehearsals.update(self.per_update)
            return update_works(self._step, stepping, amounts, self._roofline, self._host_bandwidth)
        handler = self.handlers[type(op)]
        return iter(()) if handler is None else handler(self, op)

    def rehearsed(self, plan: Plan) -> Rehearsed:
        """The rehearsed plan of the current step, from an earlier step if possible."""
        known, micro = self.rehearsals, self._batches.micro
        shapes = [self._samples.looked_at(parts) for parts in micro]
        key = (
            id(plan),
            self._batches.sizes.tobytes(),
            tuple(rehearsed.key for rehearsed in shapes),
        )
        rehearsed = known.find(key)
        if rehearsed is None:
            rehearsed = self._rehearse(plan)
            known.keep(key, plan, rehearsed)
        return rehearsed

    def _rehearse(self, plan: Plan) -> Rehearsed:
        factors, owed = self._factors, self._owed
        self._factors, self._owed = np.ones(self._world_size), np.zeros(self._world_size)
        rehearsed = rehearse(plan, lambda op: list(self.read(op, None)))
        self._factors, self._owed = factors, owed
        return rehearsed

    def charged(self, part: WorkPiece) -> FusedWork:
        """A piece of work in the current step."""
        stretch = part.charged(self._step, self._factors, self._owed)
        if part.first >= 0:
            self._owed = np.zeros(self._world_size)
        return stretch

    # Compute -------------------------------------------------------------------------------------

    def _seconds(self, activity: str, micro: int) -> tuple[Columns, RecordedPass]:
        if (activity, micro) not in self._columns:
            parts, adds = self._batches.micro[micro], micro and activity == "backward"
            adds = adds and self._eager and self._program.partition is None
            looked_at = self._samples.looked_at(parts)
            made = RecordedPass(activity, parts.sizes, looked_at, bool(adds))
            recorded = self._passes.setdefault(made.key, made)
            self._columns[activity, micro] = self.seconds_of(recorded), recorded
        return self._columns[activity, micro]

    def seconds_of(
        self, recorded: RecordedPass, times: Times | None = None, roofline: Roofline | None = None
    ) -> Columns:
        """Time of every call of a pass, without stragglers; on other devices if they are given."""
        columns = (times or self._times).seconds(
            recorded.activity, recorded.batch, *recorded.looked_at
        )
        if recorded.accumulates:
            columns = with_accumulation(columns, self._workload, roofline or self._roofline)
        return columns

    def _work(
        self, activity: str, number: int, times: Columns, of: RecordedPass | None = None
    ) -> ComputeWork:
        seconds = times.of(number) * self._factors
        if self._owed.any():  # pauses come with the first work of a step
            seconds, self._owed = seconds + self._owed, np.zeros(self._world_size)
        origin = None if of is None else CallWork(of, number)
        name = self._times.names[number]
        return ComputeWork(self._step, activity, name, seconds, origin=origin)

    def _host(self, name: str, seconds: float) -> ComputeWork:
        return ComputeWork(self._step, "host", name, seconds * self._factors, origin=HostWork())

    def _feed(self, samples: Floats) -> Cost:
        if self._pipeline:
            yield Feed(self._step, self._num_fed, samples, self._pipeline)
            self._num_fed += 1

    @handlers(ops.Batch)
    def _batch(self, op: ops.Batch) -> Cost:
        self._has_loss_of_pieces = False
        sizes = self._batches.sizes[op.micro].astype(float)
        if op.root is not None:
            sizes = (np.arange(self._world_size) == op.root) * float(sizes.sum())
        return self._feed(sizes)

    @handlers(ops.Forward)
    def _forward(self, op: ops.Forward) -> Cost:
        if op.call >= self._num_calls and not self._shapes.has_loss:
            return
        work = self._work("forward", op.call, *self._seconds("forward", op.micro))
        if op.gil and not self._one_host.operator:
            there = self._batches.sizes[op.micro] > 0
            held_up = op.gil * max(int(there.sum()) - 1, 0) * self._roofline.launch * there
            seconds = work.seconds + self._num_launches[op.call] * held_up * self._factors
            work = work._replace(seconds=seconds, origin=None)
        self._has_loss_of_pieces |= op.call == self._num_calls
        yield work

    @cached_property
    def _num_launches(self) -> list[int]:
        """Kernels that forward launches for each call, and for the loss."""
        if self._workload.model.timed or self._workload.cuda_graphs:  # no launches per kernel
            return [0] * (self._num_calls + 1)
        shapes = self._workload.model.known_shapes()
        return [len(kernels) for kernels in call_kernels(self._workload, "forward", shapes)]

    @handlers(ops.Backward)
    def _backward(self, op: ops.Backward) -> Cost:
        begins = not self._one_process or self._has_loss_of_pieces
        if op.call < self._num_calls or (self._shapes.has_loss and begins):
            yield self._work("backward", op.call, *self._seconds("backward", op.micro))

    @handlers(ops.Tail)
    def _tail(self, op: ops.Tail) -> Cost:
        yield self._work("backward", op.call, *self._seconds("tail", op.micro))

    def per_update(self, roofline: Roofline | None = None) -> Amounts:
        """Amounts of an update; on other devices if they are given."""
        scaled, demand = self._update_demand
        roofline = roofline or self._roofline
        beside = demand.beside_moving(roofline, self._workload)
        return (
            scaled,
            demand.moved,
            beside_profiled_update(self._workload, roofline, demand.moved, beside),
        )

    @cached_property
    def _update_demand(self) -> tuple[Amount, OptimizerDemand]:
        kept = self._footprint
        return kept.moved_by_scaling(), OptimizerDemand.of(kept)

    def update_seconds(self, name: str, roofline: Roofline) -> Floats:
        """Time of a part of an update on other devices [s]."""
        return update_busy(name, self.per_update(roofline), roofline, self._host_bandwidth)

    @handlers(ops.StartOuter)
    def _start_outer(self, op: ops.StartOuter) -> Cost:
        elements = num_trainable(self._facts)
        yield self._copied("global weights", float(elements * self._workload.itemsize))

    @handlers(ops.OuterUpdate)
    def _outer_update(self, op: ops.OuterUpdate) -> Cost:
        demand = OptimizerDemand.of(OuterFootprint(self._scenario, self._facts, op.optimizer))
        moved, beside = demand.moved, demand.beside_moving(self._roofline, self._workload)
        seconds = self._roofline.updating(moved) + beside
        yield ComputeWork(self._step, "update", "outer optimizer", seconds, float(np.max(moved)))

    def _copied(self, name: str, nbytes: float) -> ComputeWork:
        moved, busy = 2 * nbytes, self._roofline.moving(2 * nbytes)
        return ComputeWork(self._step, "copy", name, busy, moved, BytesMoved(moved))

    @handlers(ops.Copy, ops.Unshard)
    def _copy(self, op: ops.Copy | ops.Unshard) -> Cost:
        yield self._copied(op.name, op.nbytes)

    @handlers(HostCopy)
    def _host_copy(self, op: HostCopy) -> Cost:
        seconds = np.full(self._world_size, self._cluster.host.copying(op.nbytes))
        yield ComputeWork(self._step, "copy", op.name, seconds, op.nbytes, HostWork())

    @handlers(ops.FillBucket)
    def _fill(self, op: ops.FillBucket) -> Cost:
        if self._overheads.hook:
            yield self._host("hook", self._overheads.hook)
        if op.is_copied:
            yield self._copied(op.name, self._facts.sizes[op.name] * self._facts.itemsize)

    @handlers(ops.Take)
    def _take(self, op: ops.Take) -> Cost:
        if op.is_copied:
            nbytes = self._facts.num_elements(op.bucket.names) * self._facts.itemsize
            yield self._copied("gradients", float(nbytes))

    # Collectives ---------------------------------------------------------------------------------

    def _launch(
        self,
        tag: int | None,
        collective: str,
        label: str,
        nbytes: float,
        group: Group = None,
        root: int = 0,
        wait: float = 0.0,
        after: tuple[int, ...] = (),
        delay: float = 0.0,
        copied: float = 0.0,
    ) -> Cost:
        called = ops.CollectiveCall(collective, root, group, nbytes)
        self._program.require(called, self._launcher.stream_of(group))
        plan = self._launcher.plan(collective, nbytes, root, group)
        if self._overheads.launch:
            yield self._host("launch", self._overheads.launch)
        launch = self._launcher.launch(
            self._step, plan, nbytes, label, wait, group, after, delay, copied
        )
        yield launch
        if tag is None:
            yield ClockWait((launch.call,))
        else:
            self._tags[tag] = launch.call

    @handlers(ops.Exchange)
    def _exchange(self, op: ops.Exchange) -> Cost:
        label = f"{self._times.names[op.call]} statistics"
        return self._launch(None, op.collective, label, op.nbytes)

    @handlers(*get_args(Collective))
    def _collective(self, op: Collective | ops.Reduce) -> Cost:
        called = op.called
        copied = getattr(op, "copied", 0.0)
        return self._launch(
            *(op.tag, called.collective, op.label, called.nbytes, called.group, called.root),
            wait=getattr(op, "wait", 0.0) + float(self._roofline.moving(copied).max()),
            after=tuple(self._tags[tag] for tag in getattr(op, "after", ())),
            delay=self._delay(getattr(op, "before", None)),
            copied=copied,
        )

    @handlers(ops.Reduce)
    def _reduce(self, op: ops.Reduce) -> Cost:
        assert isinstance(op.group, tuple), "a group of one process lists its devices"
        if len(op.group) > 1:
            yield from self._collective(op)

    @handlers(ops.Wait)
    def _wait(self, op: ops.Wait) -> Cost:
        calls = tuple(self._tags[tag] for tag in op.tags if tag in self._tags)
        if calls:
            yield ClockWait(calls)

    @handlers(ops.Meet)
    def _meet(self, op: ops.Meet) -> Cost:
        yield ClockBarrier(self._step)

    # Compression ---------------------------------------------------------------------------------

    def _kernel_seconds(self, kernels: Iterable[CompressionKernels]) -> Floats:
        dtype = self._workload.precision.gradient_dtype(self._workload.dtype)
        return kernels_seconds(kernels, self._roofline, dtype)

    def _delay(self, before: ops.Unpack | ops.OrthogonalizeBucket | HostCopy | None) -> float:
        """Time that a collective's stream is busy before it begins, on the slowest device [s]."""
        if before is None:
            return 0.0
        match before:
            case HostCopy():
                return self._cluster.host.copying(before.nbytes)
            case ops.Unpack():
                kernels = compression.unpacking(before.factoring)
            case ops.OrthogonalizeBucket():
                kernels = compression.turning(before.factoring, self._facts.itemsize)
            case _:
                raise OperationError(f"{__name__}.Costs before a collective", type(before))
        return float(self._kernel_seconds(kernels).max())

    @handlers(*compression.KINDS)
    def _compressed(self, op: compression.Compression) -> Cost:
        name, kernels = compression.work_of(op, self._facts.itemsize, self._world_size)
        yield ComputeWork(self._step, "compress", name, self._kernel_seconds(kernels))

    # One process ---------------------------------------------------------------------------------

    def _copies(self, plan: Transfers, nbytes: float, label: str) -> Cost:
        """Copy between devices, and wait for the copies."""
        if plan.num_transfers:
            launch = self._launcher.copy(self._step, plan, nbytes, label)
            yield launch
            yield ClockWait((launch.call,))

    @handlers(ops.Scatter)
    def _scatter(self, op: ops.Scatter) -> Cost:
        sizes = self._batches.sizes[op.micro]
        nbytes = float(sizes.sum() * self._shapes.nbytes_of(op.name, op.micro))
        return self._copies(copies_from(0, tuple(sizes.tolist())), nbytes, op.name)

    @handlers(ops.Replicate)
    def _replicate(self, op: ops.Replicate) -> Cost:
        per_module = self._one_host.replicate or 0.0
        seconds = per_module * self._facts.graph.num_modules * len(op.devices)
        if seconds:
            there = np.isin(np.arange(self._world_size), op.devices)
            yield ComputeWork(self._step, "host", "replicate", seconds * there * self._factors)

    @handlers(ops.Gather)
    def _gather(self, op: ops.Gather) -> Cost:
        pieces, nbytes = self._shapes.gathered(op.micro, op.losses)
        label = "losses" if op.losses else "outputs"
        return self._copies(copies_to(op.root, pieces), nbytes, label)

    @handlers(ops.LossOfAll)
    def _loss_of_all(self, op: ops.LossOfAll) -> Cost:
        if self._shapes.has_loss:
            yield self._loss_work("forward", op.micro, op.root)

    @handlers(ops.HandBack)
    def _hand_back(self, op: ops.HandBack) -> Cost:
        if not op.losses and self._shapes.has_loss:
            yield self._loss_work("backward", op.micro, op.root)
        pieces, nbytes = self._shapes.gathered(op.micro, op.losses)
        yield from self._copies(copies_from(op.root, pieces), nbytes, "output gradients")

    def _loss_work(self, activity: str, micro: int, root: int) -> ComputeWork:
        """Work of one rank on the loss of the whole micro-batch."""
        parts = self._batches.micro[micro]
        shapes, which = self._samples.shapes(parts)
        everything = (np.arange(self._world_size) == root) * int(parts.sizes.sum())
        equal_shapes = np.full_like(which, which[int(np.argmax(parts.sizes))])
        times = self._times.seconds(activity, everything, shapes, equal_shapes)
        return self._work(activity, self._num_calls, times)
