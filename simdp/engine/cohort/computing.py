"""Computing: forward, backward and the optimizer, in numbers and in time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from simdp.arrays import Array, Floats
from simdp.engine import payload
from simdp.engine.cohort.base import Ranks
from simdp.engine.compute.columns import Columns
from simdp.engine.ops import Work
from simdp.engine.record import StepRecord, mean_losses
from simdp.engine.walk import Walk
from simdp.strategies.base import Around, Script
from simdp.workload.layers.base import Synchronised
from simdp.workload.lifetimes import Stage


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

    def forward(self, micro_step: int, around: Around | None = None) -> Script:
        """See `simdp.strategies.base.Rank`."""
        yield from self._feed(self._batches.sizes[micro_step].astype(float))
        if self.observed:
            yield from self.hold("inputs", self.kept_inputs(micro_step))
        walk = None
        if self.replicas:
            parts, scales = self._batches.micro[micro_step], self._scales[micro_step]
            pauses = around is not None
            walk = Walk(self.replicas.walk_forward(parts, scales, self._gather, pauses))
        seconds, stages = self._seconds("forward", micro_step), self.lifetimes.forward
        for number in range(len(self.graph.calls)):
            if around is not None:
                yield from around.before(number)
            if walk is not None:
                walk.step()
            yield from self._forward_of(number, seconds, stages[number], micro_step)
            if around is not None:
                yield from around.after(number)
        if walk is not None:
            self._losses.append(walk.result())
        yield from self.take(stages[-1], micro_step)
        if self._has_loss:
            yield self._work("forward", len(self.graph.calls), seconds)
        yield from self.give(stages[-1], micro_step)

    def _forward_of(self, number: int, seconds: Columns, stage: Stage, micro_step: int) -> Script:
        layer = self.graph.calls[number].layer
        if self.observed:
            yield from self.take(stage, micro_step)
        yield self._work("forward", number, seconds)
        if isinstance(layer, Synchronised):
            elements = layer.exchanged_elements()[0] * self.world_size
            yield from self._exchange("all_gather", elements, number)
        if self.observed:
            yield from self.give(stage, micro_step)

    def backward(
        self,
        micro_step: int,
        hook: Callable[[str], Script] | None = None,
        around: Around | None = None,
    ) -> Script:
        """See `simdp.strategies.base.Rank`."""
        walk = Walk(self.replicas.walk_backward(self._add)) if self.replicas else None
        if walk is not None and around is None:
            walk.step()
            self._inject(micro_step)
        seconds = self._seconds("backward", micro_step)
        tails = self._seconds("tail", micro_step) if any(self.times.tails) else seconds
        stages = self.lifetimes.backward
        yield from self.take(stages[-1], micro_step)
        if self._has_loss:
            yield self._work("backward", len(self.graph.calls), seconds)
        yield from self.give(stages[-1], micro_step)
        for number in reversed(range(len(self.graph.calls))):
            if around is not None:
                yield from around.before(number)
                if walk is not None:
                    walk.step()
                if number == self._first_ready:
                    self._inject(micro_step)
            if number in self._blocks:
                yield from self._again(self._blocks[number], micro_step)
            yield from self._backward_of(number, seconds, stages[number], micro_step)
            if hook is not None:
                for ready in self.graph.ready_at[number]:
                    yield from hook(ready)
            if self.times.tails[number]:
                yield self._work("backward", number, tails)
            if around is not None:
                yield from around.after(number)
        yield from self.give(self.lifetimes.end, micro_step)
        if self.observed:
            yield from self.hold("inputs", -self.kept_inputs(micro_step))

    def _again(self, block: range, micro_step: int) -> Script:
        """Compute a block's activations again, right before its backward."""
        seconds, stages = self._seconds("forward", micro_step), self.lifetimes.again
        for number in block:
            yield from self._forward_of(number, seconds, stages[number], micro_step)

    def _backward_of(self, number: int, seconds: Columns, stage: Stage, micro_step: int) -> Script:
        layer = self.graph.calls[number].layer
        if isinstance(layer, Synchronised):
            elements = layer.exchanged_elements()[1]
            yield from self._exchange("all_reduce", elements, number)
        if not self.observed:  # steps without end: not one generator more than they need
            yield self._work("backward", number, seconds)
            return
        yield from self.take(stage, micro_step)
        passing = yield from self.take_gradients(layer.ready_order())
        yield self._work("backward", number, seconds)
        yield from self.hold("temporary", -passing)
        yield from self.give(stage, micro_step)

    def ready_times(self, micro_step: int = 0) -> list[float]:
        """See `simdp.strategies.base.Rank`."""
        parts, hook = self._batches.micro[micro_step], self.overheads.hook
        shapes = self.samples.shapes(parts)
        slowest = self.times.seconds("backward", parts.sizes, *shapes).seconds.max(axis=1)
        tails = np.zeros(len(slowest))
        if any(self.times.tails):
            tails = self.times.seconds("tail", parts.sizes, *shapes).seconds.max(axis=1)
        again = slowest
        if self._blocks:
            again = self.times.seconds("forward", parts.sizes, *shapes).seconds.max(axis=1)
        clock, found = float(slowest[-1]) if self._has_loss else 0.0, list[float]()
        for number in reversed(range(len(self.graph.calls))):
            clock += float(again[self._blocks.get(number, range(0))].sum())
            clock += float(slowest[number])
            for _ in self.graph.ready_at[number]:
                clock += hook
                found.append(clock)
            clock += float(tails[number])
        return found

    @cached_property
    def _first_ready(self) -> int:
        """The call whose backward completes the first gradient; -1 where there is none."""
        return max((i for i, names in enumerate(self.graph.ready_at) if names), default=-1)

    def _inject(self, micro_step: int) -> None:
        for fault in self._faults() if micro_step == 0 and self.replicas else ():
            assert self.replicas is not None
            self.replicas.inject(fault.rank, fault.value)

    def update(self, active: Sequence[bool] | None = None) -> Script:
        """See `simdp.strategies.base.Rank`."""
        there = np.ones(self.world_size) if active is None else np.array(active, dtype=float)
        record, stepping = self._record(there)
        self.records.append(record)
        yield from self.begin_update()
        nbytes = self.moved_by_scaling()
        if np.any(nbytes):
            yield self._update_work("gradients", nbytes, there)
        nbytes = self.moved_by_optimizer()
        if np.any(nbytes) and stepping.any():
            launches = self.launched_by_optimizer()
            yield self._update_work("optimizer", nbytes, stepping, launches)
        yield from self.end_update()

    def _update_work(
        self,
        name: str,
        nbytes: float | Floats,
        active: Floats,
        num_launches: float | Floats = 0.0,
    ) -> Work:
        seconds = (self.roofline.moving(nbytes) + num_launches * self.roofline.launch) * active
        return Work(self.step, "update", name, seconds, float(np.max(nbytes)))

    def _record(self, active: Floats) -> tuple[StepRecord, Floats]:
        """What the step did, and which ranks' optimizers take it: all others skip it."""
        workload, step = self.scenario.workload, self.step + 1
        samples = int(self._batches.sizes.sum())
        lr = workload.learning_rate(workload.optimizer.lr, step, self.world_size)
        scaled = workload.precision.scaler() is not None
        if not self.replicas:
            stepping = active * self._without_fault() if scaled else active
            skipped = bool((stepping < active).any()) if scaled else None
            return StepRecord(samples, None, None, lr, None, None, skipped), stepping
        scale = self.replicas.trainer.loss_scale(0) if scaled else None
        done = self.replicas.update(step, [bool(there) for there in active])
        stepping = np.array([float(found is not None and not found.skipped) for found in done])
        mean, per_rank = mean_losses(self._losses, self._counts)
        skipped = bool((stepping < active).any()) if scaled else None
        norm = next(found.norm for found in done if found is not None)
        return StepRecord(samples, mean, per_rank, lr, norm, scale, skipped), stepping

    def _without_fault(self) -> Floats:
        """1 for ranks whose gradients are finite: of all or none, where they are averaged."""
        fine, faults = np.ones(self.world_size), self._faults()
        if self.scenario.strategy.steps_alone(self.step):
            fine[[fault.rank for fault in faults]] = 0.0
        elif faults:
            fine[:] = 0.0
        return fine

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
