"""The runtime Rank: one cohort of all ranks, which computes the numbers and yields the time."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simdp.collectives import Plan
from simdp.engine import payload
from simdp.engine.buffers import FlatBuffers
from simdp.engine.choice import Planner
from simdp.engine.compute import COMPUTE, Times
from simdp.engine.compute.columns import Columns
from simdp.engine.compute.roofline import Roofline
from simdp.engine.launcher import Launched, Launcher
from simdp.engine.ops import Feed, Meet, Op, Wait, Work
from simdp.engine.pipeline import Pipeline
from simdp.engine.record import StepRecord, mean_losses
from simdp.engine.replicas import Replicas
from simdp.engine.samples import Samples
from simdp.engine.slowdown import Slowdown
from simdp.results.trace import SETUP
from simdp.scenario import Scenario
from simdp.strategies.base import Bucket, Pending, Script, Tensor
from simdp.wiring import wiring_of
from simdp.workload.faults import Fault
from simdp.workload.layers import Buffer
from simdp.workload.layers.base import Synchronised
from simdp.workload.precision.rounding import numpy_dtype
from simdp.workload.sampling import StepBatches
from simdp.workload.step_costs import (
    gradient_nbytes_moved,
    optimizer_launches,
    optimizer_nbytes_moved,
)

Array = NDArray[Any]
Floats = NDArray[np.float64]


class FlatBucket(NamedTuple):
    """A bucket: its size on the wire, and its arrays where there are numerics."""

    nbytes: float
    compressed: bool
    names: tuple[str, ...]
    buffers: FlatBuffers | None


class Cohort:
    """All ranks of a run, doing the same work in step; what a strategy calls its rank.

    Parameters
    ----------
    scenario : Scenario
        One point.
    slowdown : Slowdown
        The cluster's stragglers.
    planner : Planner
        Plans its collectives.
    times : Times, optional
        What it found of compute in a run with the same workload and devices, if that is known.

    Attributes
    ----------
    records : list of StepRecord
        One per finished step.
    launcher : Launcher
        Starts its collectives.
    """

    def __init__(
        self,
        scenario: Scenario,
        slowdown: Slowdown,
        planner: Planner,
        times: Times | None = None,
    ) -> None:
        self.scenario, self.slowdown = scenario, slowdown
        workload, cluster = scenario.workload, scenario.cluster
        self.world_size = cluster.world_size
        self.step = SETUP
        self.graph = workload.graph
        self.parameters, self.buffers = self.graph.parameters, self.graph.buffers
        self.ready_order, self.unused = self.graph.ready_order, self.graph.unused
        self.itemsize, self.overheads = workload.gradient_itemsize, cluster.overheads
        if isinstance(cluster.device, list) or cluster.ranks_per_device > 1:
            self.roofline = Roofline(cluster.devices(), sharers=cluster.sharers())
        else:
            self.roofline = Roofline([cluster.device], self.world_size)
        self.times = times or COMPUTE[workload.compute.kind](workload, self.roofline)
        self.samples = Samples(scenario)
        self.replicas = Replicas(scenario, self.samples) if scenario.numerics else None
        self.records: list[StepRecord] = []
        self._sizes = {tensor.name: tensor.num_elements for tensor in self.parameters}
        self._has_loss = len(self.times.names) > len(self.graph.calls)
        self._factors = np.ones(self.world_size)
        self._owed = np.zeros(self.world_size)
        self.launcher = Launcher(scenario.collectives, planner)
        self._per_launch = np.full(self.world_size, cluster.overheads.launch)
        self._per_hook = np.full(self.world_size, cluster.overheads.hook)
        self._per_step = np.full(self.world_size, workload.host.step)
        self._pipeline, self._num_fed = None, 0
        if workload.input:
            self._pipeline = Pipeline(workload.input, self.world_size, cluster.local_size)
        self._batches = StepBatches([], np.zeros((0, self.world_size), dtype=np.int64))
        self._losses: list[Floats] = []
        self._scales = self._counts = np.zeros((0, self.world_size))

    # The run -----------------------------------------------------------------------------------

    def run(self, progress: Callable[[int], None] | None = None) -> Iterator[Op]:
        """The whole run as one script: the setup, then every step."""
        strategy, workload = self.scenario.strategy, self.scenario.workload
        yield from strategy.setup(self)
        if self.launcher.num_calls:  # it left the ranks at different times
            yield Meet(SETUP)
        batches = workload.batches(self.world_size, self.scenario.seed, self.scenario.base)
        for step, step_batches in enumerate(batches):
            self._begin(step, step_batches)
            if workload.host.step:
                yield self._host("step", self._per_step)
            yield from strategy.train_step(self)
            if progress is not None:
                progress(step + 1)

    def _begin(self, step: int, batches: StepBatches) -> None:
        self.step, self._batches, self._losses = step, batches, []
        if self.replicas:
            self.replicas.step = step
            if step == 1:  # DDP sorts gradients into other buckets after the first step
                self.replicas.forget_flat_buffers()
        self._factors = self.slowdown.factors(step)
        self._owed = self.slowdown.lost(step)

    @property
    def num_reduced_before(self) -> int:
        """See `simdp.strategies.base.Rank`."""
        return self.step + self.scenario.workload.model.timed

    @property
    def node_bandwidth(self) -> float:
        """See `simdp.strategies.base.Rank`."""
        return wiring_of(self.scenario.cluster).inter_bandwidth

    @property
    def num_micro_steps(self) -> int:
        """Micro-steps of the current step."""
        return len(self._batches.micro)

    @property
    def closes_epoch(self) -> bool:
        """Whether the current step is the last one of its epoch, or of the run."""
        return self._batches.closes_epoch

    def active(self, micro_step: int | None = None) -> list[bool]:
        """See `simdp.strategies.base.Rank`."""
        sizes = self._batches.sizes
        there = (sizes.sum(axis=0) if micro_step is None else sizes[micro_step]) > 0
        found: list[bool] = there.tolist()
        return found

    def scale_losses(self, by_shard: bool) -> None:
        """See `simdp.strategies.base.Rank`."""
        sizes = self._batches.sizes.astype(float)
        counts = self.replicas.counts(self._batches) if self.replicas else sizes
        if by_shard:
            self._scales = counts * self.world_size / max(counts.sum(), 1.0)
        else:
            self._scales = sizes / np.maximum(sizes.sum(axis=0), 1.0)
        self._counts = counts

    # Compute -----------------------------------------------------------------------------------

    def forward(self, micro_step: int) -> Script:
        """See `simdp.strategies.base.Rank`."""
        if self._pipeline:
            samples = self._batches.sizes[micro_step].astype(float)
            yield Feed(self.step, self._num_fed, samples, self._pipeline)
            self._num_fed += 1
        if self.replicas:
            parts, scales = self._batches.micro[micro_step], self._scales[micro_step]
            self._losses.append(self.replicas.forward(parts, scales, self._gather))
        seconds = self._seconds("forward", micro_step)
        for number, call in enumerate(self.graph.calls):
            yield self._work("forward", number, seconds)
            if isinstance(call.layer, Synchronised):
                elements = call.layer.exchanged_elements()[0] * self.world_size
                yield from self._exchange("all_gather", elements, number)
        if self._has_loss:
            yield self._work("forward", len(self.graph.calls), seconds)

    def backward(self, micro_step: int, hook: Callable[[str], Script] | None = None) -> Script:
        """See `simdp.strategies.base.Rank`."""
        if self.replicas:
            self.replicas.backward(self._add)
            for fault in self._faults() if micro_step == 0 else ():
                self.replicas.inject(fault.rank, fault.value)
        seconds = self._seconds("backward", micro_step)
        tails = self._seconds("tail", micro_step) if any(self.times.tails) else seconds
        if self._has_loss:
            yield self._work("backward", len(self.graph.calls), seconds)
        for number in reversed(range(len(self.graph.calls))):
            layer = self.graph.calls[number].layer
            if isinstance(layer, Synchronised):
                elements = layer.exchanged_elements()[1]
                yield from self._exchange("all_reduce", elements, number)
            yield self._work("backward", number, seconds)
            if hook is not None:
                for ready in self.graph.ready_at[number]:
                    yield from hook(ready)
            if self.times.tails[number]:
                yield self._work("backward", number, tails)

    def ready_times(self, micro_step: int = 0) -> list[float]:
        """See `simdp.strategies.base.Rank`."""
        parts, hook = self._batches.micro[micro_step], self.overheads.hook
        shapes = self.samples.shapes(parts)
        slowest = self.times.seconds("backward", parts.sizes, *shapes).seconds.max(axis=1)
        tails = np.zeros(len(slowest))
        if any(self.times.tails):
            tails = self.times.seconds("tail", parts.sizes, *shapes).seconds.max(axis=1)
        clock, found = float(slowest[-1]) if self._has_loss else 0.0, list[float]()
        for number in reversed(range(len(self.graph.calls))):
            clock += float(slowest[number])
            for _ in self.graph.ready_at[number]:
                clock += hook
                found.append(clock)
            clock += float(tails[number])
        return found

    def _faults(self) -> list[Fault]:
        """What goes wrong in the current step."""
        inject = self.scenario.workload.inject
        return [fault for fault in inject if fault.happens(self.step + 1, self.world_size)]

    def _seconds(self, activity: str, micro_step: int) -> Columns:
        parts = self._batches.micro[micro_step]
        return self.times.seconds(activity, parts.sizes, *self.samples.shapes(parts))

    def _work(self, activity: str, number: int, times: Columns) -> Work:
        seconds = times.of(number) * self._factors
        if self._owed.any():  # pauses come with the first work of a step
            seconds, self._owed = seconds + self._owed, np.zeros(self.world_size)
        return Work(self.step, activity, self.times.names[number], seconds)

    def update(self, active: Sequence[bool] | None = None) -> Script:
        """See `simdp.strategies.base.Rank`."""
        there = np.ones(self.world_size) if active is None else np.array(active, dtype=float)
        record = self._record(there)
        self.records.append(record)
        workload = self.scenario.workload
        nbytes = gradient_nbytes_moved(workload)
        if nbytes:
            yield self._update_work("gradients", nbytes, there)
        nbytes = optimizer_nbytes_moved(workload)
        if nbytes and not record.skipped:
            launches = optimizer_launches(workload)
            yield self._update_work("optimizer", nbytes, there, launches)

    def _update_work(self, name: str, nbytes: float, active: Floats, num_launches: int = 0) -> Work:
        seconds = (self.roofline.moving(nbytes) + num_launches * self.roofline.launch) * active
        return Work(self.step, "update", name, seconds, nbytes)

    def _record(self, active: Floats) -> StepRecord:
        workload, step = self.scenario.workload, self.step + 1
        samples = int(self._batches.sizes.sum())
        lr = workload.learning_rate(workload.optimizer.lr, step, self.world_size)
        scaled = workload.precision.scaler() is not None
        if not self.replicas:
            skipped = bool(self._faults()) if scaled else None
            return StepRecord(samples, None, None, lr, None, None, skipped)
        scale = self.replicas.trainer.loss_scale(0) if scaled else None
        done = self.replicas.update(step, [bool(there) for there in active])
        mean, per_rank = mean_losses(self._losses, self._counts)
        skipped = done.skipped if scaled else None
        return StepRecord(samples, mean, per_rank, lr, done.norm, scale, skipped)

    # Communication -----------------------------------------------------------------------------

    def bucket(self, names: Sequence[str], compress: str | None = None) -> FlatBucket:
        """See `simdp.strategies.base.Rank`."""
        workload = self.scenario.workload
        dtype = compress or workload.precision.gradient_dtype(workload.dtype)
        elements = sum(self._sizes[name] for name in names)
        buffers = self.replicas.flat_buffers(names, dtype) if self.replicas else None
        nbytes = float(elements * numpy_dtype(dtype).itemsize)
        return FlatBucket(nbytes, compress is not None, tuple(names), buffers)

    def fill(self, bucket: Bucket, name: str, divisor: float, copies: bool) -> Script:
        """See `simdp.strategies.base.Rank`."""
        assert isinstance(bucket, FlatBucket)
        if self.replicas and bucket.buffers:
            self.replicas.fill(bucket.buffers.views(name), name, divisor, bucket.compressed)
        if self.overheads.hook:
            yield self._host("hook", self._per_hook)
        if copies:
            yield self._copy(name, self._sizes[name] * self.itemsize)

    def _host(self, name: str, seconds: Floats) -> Work:
        return Work(self.step, "host", name, seconds * self._factors)

    def empty(self, bucket: Bucket, copies: bool, divisor: float = 1.0) -> Script:
        """See `simdp.strategies.base.Rank`."""
        assert isinstance(bucket, FlatBucket)
        if self.replicas and bucket.buffers:
            self.replicas.empty(bucket.buffers, divisor)
        if copies:
            elements = sum(self._sizes[name] for name in bucket.names)
            yield self._copy("gradients", float(elements * self.itemsize))

    def _copy(self, name: str, nbytes: float) -> Work:
        return Work(self.step, "copy", name, self.roofline.moving(2 * nbytes), 2 * nbytes)

    def all_reduce(
        self, bucket: Bucket, label: str, wait: float = 0.0
    ) -> Generator[Any, None, Launched]:
        """See `simdp.strategies.base.Rank`."""
        assert isinstance(bucket, FlatBucket)
        plan = self.launcher.plan("all_reduce", bucket.nbytes)
        if bucket.buffers:
            payload.run(plan, bucket.buffers.flat)
        return (yield from self._launch(plan, bucket.nbytes, label, wait))

    def all_reduce_seconds(self, nbytes: float) -> float:
        """See `simdp.strategies.base.Rank`."""
        return self.launcher.predicted("all_reduce", nbytes)

    def all_reduce_bytes(self, nbytes: float, label: str) -> Generator[Any, None, Launched]:
        """See `simdp.strategies.base.Rank`."""
        plan = self.launcher.plan("all_reduce", nbytes)
        return (yield from self._launch(plan, nbytes, label))

    def _launch(
        self, plan: Plan, nbytes: float, label: str, wait: float = 0.0
    ) -> Generator[Any, None, Launched]:
        if self.overheads.launch:
            yield self._host("launch", self._per_launch)
        return (yield from self.launcher.launch(self.step, plan, nbytes, label, wait))

    def broadcast(self, tensors: Sequence[Tensor], label: str, root: int = 0) -> Script:
        """See `simdp.strategies.base.Rank`."""
        nbytes = float(sum(tensor.num_elements * self.itemsize_of(tensor) for tensor in tensors))
        plan = self.launcher.plan("broadcast", nbytes, root)
        if self.replicas:
            self.replicas.broadcast([tensor.name for tensor in tensors], plan)
        call = yield from self._launch(plan, nbytes, label)
        yield from self.wait([call])

    def itemsize_of(self, tensor: Tensor) -> int:
        """See `simdp.strategies.base.Rank`."""
        workload = self.scenario.workload
        if isinstance(tensor, Buffer):
            return 8 if tensor.integer else workload.itemsize
        return numpy_dtype(workload.precision.weight_dtype(workload.dtype)).itemsize

    def wait(self, pending: Sequence[Pending]) -> Script:
        """See `simdp.strategies.base.Rank`."""
        numbers = tuple(call.number for call in pending if isinstance(call, Launched))
        if numbers:
            yield Wait(numbers)

    # What synchronised layers exchange ---------------------------------------------------------

    def _exchange(self, collective: str, elements: int, number: int) -> Script:
        nbytes = float(elements * self.scenario.workload.itemsize)
        plan, label = self.launcher.plan(collective, nbytes), self.times.names[number]
        call = yield from self._launch(plan, nbytes, f"{label} statistics")
        yield from self.wait([call])

    def _gather(self, parts: list[Array]) -> list[Array]:
        rows = np.stack(parts)
        return [rows] * self.world_size

    def _add(self, parts: list[Array]) -> list[Array]:
        flat = [part.copy() for part in parts]
        nbytes = float(parts[0].size * self.scenario.workload.itemsize)
        payload.run(self.launcher.plan("all_reduce", nbytes), flat)
        return flat
