"""Computing: forward, backward and the optimizer, in numbers and in time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simdp.engine import payload
from simdp.engine.cohort.base import Ranks
from simdp.engine.ops import Feed, Work
from simdp.engine.record import StepRecord, mean_losses
from simdp.strategies.base import Script
from simdp.workload.faults import Fault
from simdp.workload.layers.base import Synchronised
from simdp.workload.step_costs import (
    gradient_nbytes_moved,
    optimizer_launches,
    optimizer_nbytes_moved,
)

Array = NDArray[Any]
Floats = NDArray[np.float64]


class Computing(Ranks):
    """What a rank computes by itself."""

    def scale_losses(self, by_shard: bool) -> None:
        """See `simdp.strategies.base.Rank`."""
        sizes = self._batches.sizes.astype(float)
        counts = self.replicas.counts(self._batches) if self.replicas else sizes
        if by_shard:
            self._scales = counts * self.world_size / max(counts.sum(), 1.0)
        else:
            self._scales = sizes / np.maximum(sizes.sum(axis=0), 1.0)
        self._counts = counts

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
