"""Ranks: the state of a cohort, and the small services that its rooms share."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from simdp.arrays import Floats
from simdp.collectives import Plan
from simdp.engine.choice import Planner
from simdp.engine.cohort.keeping import Keeping
from simdp.engine.compute import COMPUTE, Times
from simdp.engine.compute.columns import Columns
from simdp.engine.compute.roofline import Roofline
from simdp.engine.launcher import Launched, Launcher
from simdp.engine.ops import Feed, Wait, Work
from simdp.engine.pipeline import Pipeline
from simdp.engine.record import StepRecord
from simdp.engine.replicas import Replicas
from simdp.engine.samples import Samples
from simdp.engine.slowdown import Slowdown
from simdp.results.trace import SETUP
from simdp.scenario import Scenario
from simdp.scenario.wiring import wiring_of
from simdp.strategies.base import Pending, Script, Tensor
from simdp.workload.faults import Fault
from simdp.workload.layers import Buffer
from simdp.workload.precision.rounding import numpy_dtype
from simdp.workload.sampling import StepBatches
from simdp.workload.step_costs import (
    gradient_nbytes_moved,
    optimizer_launches,
    optimizer_nbytes_moved,
)


class Ranks(Keeping):
    """All ranks of a run, doing the same work in step: what their rooms have in common.

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
        self.launcher = Launcher(scenario.collectives, planner, scenario.process_groups())
        self._per_launch = np.full(self.world_size, cluster.overheads.launch)
        self._per_hook = np.full(self.world_size, cluster.overheads.hook)
        self._per_step = np.full(self.world_size, workload.host.step)
        self._pipeline, self._num_fed = None, 0
        if workload.input:
            # Batches of one process go to one device.
            sharers = 1 if scenario.strategy.scatters(workload) else cluster.local_size
            self._pipeline = Pipeline(workload.input, self.world_size, sharers)
        self._prepare_keeping()
        self._batches = StepBatches([], np.zeros((0, self.world_size), dtype=np.int64))
        self._losses: list[Floats] = []
        self._scales = self._counts = np.zeros((0, self.world_size))

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

    def _seconds(self, activity: str, micro_step: int) -> Columns:
        parts = self._batches.micro[micro_step]
        return self.times.seconds(activity, parts.sizes, *self.samples.shapes(parts))

    def _work(self, activity: str, number: int, times: Columns) -> Work:
        seconds = times.of(number) * self._factors
        if self._owed.any():  # pauses come with the first work of a step
            seconds, self._owed = seconds + self._owed, np.zeros(self.world_size)
        return Work(self.step, activity, self.times.names[number], seconds)

    def _feed(self, samples: Floats) -> Script:
        """Wait for the next batch, of which each rank gets so many samples."""
        if self._pipeline:
            yield Feed(self.step, self._num_fed, samples, self._pipeline)
            self._num_fed += 1

    def _faults(self) -> list[Fault]:
        """What goes wrong in the current step."""
        inject = self.scenario.workload.inject
        found = [fault for fault in inject if fault.happens(self.step + 1, self.world_size)]
        if not self.scenario.strategy.one_process:
            return found
        there = self.active(0)  # a device that gets nothing has no gradients
        return [fault for fault in found if there[fault.rank]]

    def _host(self, name: str, seconds: Floats) -> Work:
        return Work(self.step, "host", name, seconds * self._factors)

    def _copy(self, name: str, nbytes: float) -> Work:
        return Work(self.step, "copy", name, self.roofline.moving(2 * nbytes), 2 * nbytes)

    def _launch(
        self,
        plan: Plan,
        nbytes: float,
        label: str,
        wait: float = 0.0,
        group: str | None = None,
        after: tuple[int, ...] = (),
        delay: float = 0.0,
    ) -> Generator[Any, None, Launched]:
        if self.overheads.launch:
            yield self._host("launch", self._per_launch)
        launch = self.launcher.launch(self.step, plan, nbytes, label, wait, group, after, delay)
        return (yield from launch)

    # What an update does, apart from its time: the room `sharding` does less of it ---------------

    def moved_by_scaling(self) -> float | Floats:
        """Bytes of gradients that unscaling and clipping move, or shape `(world_size,)`."""
        return gradient_nbytes_moved(self.scenario.workload)

    def moved_by_optimizer(self) -> float | Floats:
        """Bytes that the optimizer reads and writes, or shape `(world_size,)`."""
        return optimizer_nbytes_moved(self.scenario.workload)

    def launched_by_optimizer(self) -> float | Floats:
        """Kernels that the optimizer's loop launches, or shape `(world_size,)`."""
        return float(optimizer_launches(self.scenario.workload))

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
