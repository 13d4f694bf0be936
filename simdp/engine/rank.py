"""The runtime Rank: one cohort of all ranks, which computes the numbers and yields the time."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simdp.collectives import Plan
from simdp.engine.compute.roofline import Roofline
from simdp.engine.ops import Launch, Op, Wait, Work
from simdp.engine.replicas import FlatBuffers, Replicas
from simdp.engine.slowdown import Slowdown
from simdp.results.trace import SETUP
from simdp.scenario import Scenario
from simdp.strategies.base import Bucket, Pending, Script
from simdp.workload.layers import Cost, Parameter
from simdp.workload.layers.base import cost
from simdp.workload.sampling import StepBatches

Floats = NDArray[np.float64]

MAX_TRANSFERS_PER_CALL = 2_000
MAX_TRANSFERS_PER_RUN = 100_000
"""A collective's transfers get spans of their own while there are no more than these."""


class FlatBucket(NamedTuple):
    """A bucket: its size, and its arrays where there are numerics."""

    nbytes: float
    buffers: FlatBuffers | None


class Call(NamedTuple):
    """A collective under way, by its number."""

    number: int


class StepRecord(NamedTuple):
    """What a step did to the numbers; None where there are none.

    Attributes
    ----------
    samples : int
        Of all ranks.
    loss : float or None
        Mean over all that the ranks' losses average.
    loss_per_rank : list of (float or None), or None
        Each rank's own mean.
    lr : float
        Learning rate.
    grad_norm : float or None
        Of rank 0's gradient, before the update.
    """

    samples: int
    loss: float | None
    loss_per_rank: list[float | None] | None
    lr: float
    grad_norm: float | None


class Cohort:
    """All ranks of a run, doing the same work in step; what a strategy calls its rank.

    Parameters
    ----------
    scenario : Scenario
        One point.
    slowdown : Slowdown
        The cluster's stragglers.

    Attributes
    ----------
    records : list of StepRecord
        One per finished step.
    """

    def __init__(self, scenario: Scenario, slowdown: Slowdown) -> None:
        self.scenario, self.slowdown = scenario, slowdown
        workload, cluster = scenario.workload, scenario.cluster
        self.world_size = cluster.world_size
        self.step = SETUP
        self.parameters: list[Parameter] = workload.model.parameters()
        self.ready_order: list[str] = workload.model.ready_order()
        self.itemsize = workload.itemsize
        self.layers = workload.model.layers()
        self.roofline = Roofline(cluster.devices(), workload.dtype)
        self.replicas = Replicas(scenario, self.world_size) if scenario.numerics else None
        self.records: list[StepRecord] = []
        self._nbytes = {p.name: p.num_elements * self.itemsize for p in self.parameters}
        self._seconds: dict[tuple[str, int, bytes], Floats] = {}
        self._factors = np.ones(self.world_size)
        self._owed = np.zeros(self.world_size)
        self._num_calls = self._num_recorded = 0
        self._batches = StepBatches([], np.zeros((0, self.world_size), dtype=np.int64))
        self._losses: list[Floats] = []
        self._scales = self._counts = np.zeros((0, self.world_size))

    # The run -----------------------------------------------------------------------------------

    def run(self, progress: Callable[[int], None] | None = None) -> Iterator[Op]:
        """The whole run as one script: the setup, then every step."""
        strategy, workload = self.scenario.strategy, self.scenario.workload
        yield from strategy.setup(self)
        batches = workload.batches(self.world_size, self.scenario.seed, self.scenario.base)
        for step, step_batches in enumerate(batches):
            self._begin(step, step_batches)
            yield from strategy.train_step(self)
            if progress is not None:
                progress(step + 1)

    def _begin(self, step: int, batches: StepBatches) -> None:
        self.step, self._batches, self._losses = step, batches, []
        if step <= 1 and self.replicas:  # the setup's and the first step's buckets are gone by now
            self.replicas.forget_buffers()
        self._factors = self.slowdown.factors(step)
        self._owed = self.slowdown.lost(step)

    @property
    def num_micro_steps(self) -> int:
        """Micro-steps of the current step."""
        return len(self._batches.micro)

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
        if self.replicas:
            parts = self._batches.micro[micro_step]
            self._losses.append(self.replicas.forward(parts, self._scales[micro_step]))
        batch = self._batches.sizes[micro_step]
        for number, layer in enumerate(self.layers):
            yield self._compute("forward", layer.name, number, batch)
        yield self._compute("forward", "loss", len(self.layers), batch)

    def backward(self, micro_step: int, hook: Callable[[str], Script] | None = None) -> Script:
        """See `simdp.strategies.base.Rank`."""
        if self.replicas:
            self.replicas.backward()
        batch = self._batches.sizes[micro_step]
        yield self._compute("backward", "loss", len(self.layers), batch)
        for number in reversed(range(len(self.layers))):
            layer = self.layers[number]
            yield self._compute("backward", layer.name, number, batch)
            if hook is not None:
                for ready in layer.ready_order():
                    yield from hook(ready)

    def _compute(self, activity: str, name: str, layer: int, batch: NDArray[np.int64]) -> Work:
        key = (activity, layer, batch.tobytes())
        if key not in self._seconds:
            self._seconds[key] = self.roofline.seconds(
                self._cost(activity, layer, batch.astype(float))
            )
        seconds = self._seconds[key] * self._factors
        if self._owed.any():  # pauses come with the first work of a step
            seconds, self._owed = seconds + self._owed, np.zeros(self.world_size)
        return Work(self.step, activity, name, seconds)

    def _cost(self, activity: str, layer: int, batch: Floats) -> Cost:
        if layer == len(self.layers):  # the loss: prediction and target in, a gradient out
            width = float(prod(self.scenario.workload.model.output_shape()))
            return cost(batch, 4 * width, 2 * width * self.itemsize, 1)
        if activity == "forward":
            return self.layers[layer].forward_cost(batch, self.itemsize)
        return self.layers[layer].backward_cost(batch, self.itemsize, layer > 0)

    def update(self) -> Script:
        """See `simdp.strategies.base.Rank`."""
        norm = self.replicas.update(self.step) if self.replicas else None
        loss, per_rank = self._mean_losses()
        lr = self.scenario.workload.optimizer.lr
        samples = int(self._batches.sizes.sum())
        self.records.append(StepRecord(samples, loss, per_rank, lr, norm))
        num_elements = sum(p.num_elements for p in self.parameters)
        nbytes = self.scenario.workload.optimizer.nbytes_moved(num_elements, self.itemsize)
        if nbytes:
            yield Work(self.step, "update", "optimizer", self.roofline.moving(nbytes), nbytes)

    def _mean_losses(self) -> tuple[float | None, list[float | None] | None]:
        if not self.replicas:
            return None, None
        losses = np.where(self._counts > 0, self._losses, 0.0)  # nan where there is no loss
        totals = (losses * self._counts).sum(axis=0)
        counts = self._counts.sum(axis=0)
        mean = float(totals.sum() / counts.sum()) if counts.sum() else None
        return mean, [
            float(total / count) if count else None
            for total, count in zip(totals, counts, strict=True)
        ]

    # Communication -----------------------------------------------------------------------------

    def bucket(self, names: Sequence[str]) -> FlatBucket:
        """See `simdp.strategies.base.Rank`."""
        buffers = self.replicas.buffers(names) if self.replicas else None
        return FlatBucket(float(sum(self._nbytes[name] for name in names)), buffers)

    def fill(self, bucket: Bucket, name: str, factor: float, copies: bool) -> Script:
        """See `simdp.strategies.base.Rank`."""
        assert isinstance(bucket, FlatBucket)
        if self.replicas and bucket.buffers:
            self.replicas.fill(bucket.buffers.views(name), name, factor)
        if copies:
            yield self._copy(name, self._nbytes[name])

    def empty(self, bucket: Bucket, copies: bool) -> Script:
        """See `simdp.strategies.base.Rank`."""
        assert isinstance(bucket, FlatBucket)
        if self.replicas and bucket.buffers:
            for name in bucket.buffers.names():
                for rank, view in enumerate(bucket.buffers.views(name)):
                    self.replicas.gradients[rank][name] = view
        if copies:
            yield self._copy("gradients", bucket.nbytes)

    def _copy(self, name: str, nbytes: float) -> Work:
        return Work(self.step, "copy", name, self.roofline.moving(2 * nbytes), 2 * nbytes)

    def all_reduce(self, bucket: Bucket, label: str) -> Generator[Any, None, Call]:
        """See `simdp.strategies.base.Rank`."""
        assert isinstance(bucket, FlatBucket)
        plan = self.scenario.collectives.all_reduce.plan(self.world_size, bucket.nbytes)
        if bucket.buffers:
            bucket.buffers.communicate(plan)
        return (yield from self._launch(plan, bucket.nbytes, label))

    def all_reduce_bytes(self, nbytes: float, label: str) -> Generator[Any, None, Call]:
        """See `simdp.strategies.base.Rank`."""
        plan = self.scenario.collectives.all_reduce.plan(self.world_size, nbytes)
        return (yield from self._launch(plan, nbytes, label))

    def broadcast_parameters(self, names: Sequence[str], label: str) -> Script:
        """See `simdp.strategies.base.Rank`."""
        nbytes = float(sum(self._nbytes[name] for name in names))
        plan = self.scenario.collectives.broadcast.plan(self.world_size, nbytes)
        if self.replicas:
            buffers = self.replicas.buffers(names)
            weights = [
                [self.replicas.weights[rank][name] for rank in range(self.world_size)]
                for name in names
            ]
            for name, tensors in zip(names, weights, strict=True):
                for view, tensor in zip(buffers.views(name), tensors, strict=True):
                    view[...] = tensor
            buffers.communicate(plan)
            for name, tensors in zip(names, weights, strict=True):
                for view, tensor in zip(buffers.views(name), tensors, strict=True):
                    tensor[...] = view
        call = yield from self._launch(plan, nbytes, label)
        yield from self.wait([call])

    def _launch(self, plan: Plan, nbytes: float, label: str) -> Generator[Any, None, Call]:
        number = self._num_calls
        self._num_calls += 1
        transfers = int(plan.sends_per_rank.sum())
        record = transfers <= MAX_TRANSFERS_PER_CALL
        record &= self._num_recorded + transfers <= MAX_TRANSFERS_PER_RUN
        self._num_recorded += transfers * record
        yield Launch(self.step, label, number, plan, nbytes, record)
        return Call(number)

    def wait(self, pending: Sequence[Pending]) -> Script:
        """See `simdp.strategies.base.Rank`."""
        numbers = tuple(call.number for call in pending if isinstance(call, Call))
        if numbers:
            yield Wait(numbers)
