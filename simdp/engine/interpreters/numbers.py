"""Interprets operations as numbers: arrays, gradients, updates.

Siblings: `records` predicts skipped updates without arrays; `memory` follows device memory, with
the `footprints` of the partition; `costs` converts operations into operations of the clocks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from simdp.arrays import Array, Floats
from simdp.engine import payload
from simdp.engine.collective import Launcher
from simdp.engine.compression import Compressed
from simdp.engine.interpreters.records import RecordsInterpreter, Stepping
from simdp.engine.payload import FlatBuffers
from simdp.engine.replicas import Replicas, Walk
from simdp.engine.samples import BatchSamples
from simdp.engine.shards import RowShards, Scattered, Shards
from simdp.engine.slowdown import squares
from simdp.engine.state import State
from simdp.engine.trainer import Plateau
from simdp.results.metrics import Squares, mean_losses
from simdp.scenario.root import Scenario
from simdp.steps import ops
from simdp.steps.ops import Concern, Handlers
from simdp.steps.partition import Bucket, RowPartition
from simdp.steps.program import Program
from simdp.workload.sampling import StepBatches
from simdp.workload.schedules.base import Progress


class Numbers(RecordsInterpreter):
    """The arrays of all ranks, step by step."""

    replicas: Replicas
    handlers = Handlers[Callable[[Any, Any], Stepping | None]](Concern.NUMBERS)

    def __init__(
        self, scenario: Scenario, program: Program, launcher: Launcher, samples: BatchSamples
    ) -> None:
        super().__init__(scenario, program)
        self._launcher, self._program = launcher, program
        self._num_counted = program.facts.quorum.num_counted
        self.replicas = Replicas(scenario, samples)
        partition = program.partition
        self._plateau = Plateau(scenario.workload.lr_schedule)
        self._pauses = partition is not None and not partition.kept.weights
        self._shards: Shards | None = None
        self._made: dict[Bucket, FlatBuffers] = {}  # besides those of whole gradients
        self._compressed = Compressed(scenario, self._flat, self._made, self.replicas.shapes)
        self._walk: Walk[Any] | None = None
        self._losses: list[Floats] = []
        self._squares: Squares | None = None
        self._scales = self._counts = np.zeros((0, self._world_size))

    def begin(self, step: int, batches: StepBatches) -> None:
        super().begin(step, batches)
        self._losses, self._squares = [], None
        self.replicas.step = step
        if step == 1:  # DDP sorts gradients into other buckets after the first step
            self.replicas.forget_flat_buffers()

    def read(self, op: ops.Op) -> Stepping | None:
        handler = self.handlers[type(op)]
        with np.errstate(all="ignore"):  # as on a GPU, overflow gives inf without a warning
            if handler is not None:
                return handler(self, op)
            self._compressed.read(op)
        return None

    # State ---------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Array]:
        state = super().state_dict() | self.replicas.state_dict() | self._plateau.state_dict()
        return state | self._compressed.state_dict()

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        for op in self._program.setup:
            if isinstance(op, ops.Shard):
                self._shard(op)
            elif isinstance(op, ops.StartOuter):
                self._start_outer(op)
        self.replicas.load_state_dict(state.arrays)
        for op in self._program.setup:
            if isinstance(op, ops.GatherTogether):
                self._gather_together(op)
        self._plateau.load_state_dict(state.arrays)
        self._compressed.load_state_dict(state.arrays)

    # Forward, backward and the optimizer ---------------------------------------------------------

    @property
    def _is_scattered(self) -> bool:
        """Whether a loss may cover all ranks' outputs together, or there is none."""
        return self._scenario.strategy.in_one_process or self._infers

    @cached_property
    def _scattered(self) -> Scattered:
        return Scattered(self.replicas)

    @cached_property
    def _first_ready(self) -> int:
        """The call that completes the first gradient in backward; -1 where there is none."""
        ready = self.replicas.graph.ready_at
        return max((number for number, names in enumerate(ready) if names), default=-1)

    @handlers(ops.ScaleLoss)
    def _scale(self, op: ops.ScaleLoss) -> None:
        sizes = self._batches.sizes.astype(float)
        # Number of items that each loss averages.
        target, count = self.replicas.samples.target, self._workload.loss.count
        ranks = [[count(target(part)) for part in parts] for parts in self._batches.micro]
        counts = np.array(ranks, dtype=float)
        if self._workload.loss.adds:  # replicas average afterwards
            self._scales = np.full(counts.shape, self._num_counted if op.by_shard else 1.0)
        elif op.by_shard:
            self._scales = counts * self._num_counted / (counts.sum() or 1.0)
        else:
            self._scales = sizes / np.maximum(sizes.sum(axis=0), 1.0)
        self._counts = counts

    @handlers(ops.Batch)
    def _batch(self, op: ops.Batch) -> None:
        if not self._is_scattered:
            parts, scales = self._batches.micro[op.micro], self._scales[op.micro]
            self._walk = Walk(
                self.replicas.walk_forward(parts, scales, self._gather_parts, self._pauses)
            )

    @handlers(ops.Forward)
    def _forward(self, op: ops.Forward) -> None:
        if op.again:
            return
        if self._is_scattered:
            if op.call == 0:
                self._scattered.forward(self._batches.micro[op.micro], not self._infers)
                if self._infers:
                    self.outputs.append(self._scattered.outputs())
            return
        assert self._walk is not None, "a micro-step begins with its batch"
        if op.call < len(self.replicas.graph.calls):
            self._walk.step()
        else:
            self._losses.append(self._walk.result())

    @handlers(ops.Backward)
    def _backward(self, op: ops.Backward) -> None:
        if self._is_scattered:
            return
        if op.call == len(self.replicas.graph.calls):
            self._walk = Walk(self.replicas.walk_backward(self._add_parts))
            if not self._pauses:
                self._walk.step()
                self._inject(op.micro)
                self._measure(op.micro)
        elif self._pauses:
            assert self._walk is not None, "backward begins with the loss"
            self._walk.step()
            if op.call == self._first_ready:
                self._inject(op.micro)

    def _inject(self, micro: int) -> None:
        for fault in self._faults() if micro == 0 else ():
            self.replicas.inject(fault.rank, fault.value)

    def _measure(self, micro: int) -> None:
        """Measure the noise of the ranks' gradients at the end of a step, if requested."""
        measures_noise, sizes = self._workload.gradient_noise, self._batches.sizes
        if measures_noise and micro == len(sizes) - 1:
            who, gradients = self._batches.participants, self.replicas.gradients
            counted = np.ones(self._world_size, dtype=bool) if who is None else who.counted
            ranks, trainer = np.flatnonzero(counted).tolist(), self.replicas.trainer
            scale = trainer.loss_scale(ranks[0]) if self._has_loss_scale else 1.0
            batch_sizes = sizes.sum(axis=0)[counted]
            self._squares = squares([gradients[rank] for rank in ranks], batch_sizes, scale)

    def _gather_parts(self, parts: list[Array]) -> list[Array]:
        return [np.stack(parts)] * self._world_size

    def _add_parts(self, parts: list[Array]) -> list[Array]:
        flat = [part.copy() for part in parts]
        nbytes = float(parts[0].size * self._workload.itemsize)
        payload.run(self._launcher.plan("all_reduce", nbytes), flat)
        return flat

    @handlers(ops.Update)
    def _update(self, op: ops.Update) -> Stepping:
        there = self._there(op.active)
        first = int(there.argmax())
        scale = self.replicas.trainer.loss_scale(first) if self._has_loss_scale else None
        done = self.replicas.update(self._progress(), [bool(is_there) for is_there in there])
        stepping = np.array([float(update is not None and not update.skipped) for update in done])
        mean, per_rank = mean_losses(self._losses, self._counts, self._workload.loss.adds)
        norm = next(update.norm for update in done if update is not None)
        stepped = self._stepped(there, stepping, mean, per_rank, norm, scale, self._squares)
        self._plateau.look(mean, self._batches.closes_epoch)
        return stepped

    def _progress(self) -> Progress:
        return super()._progress()._replace(reductions=self._plateau.reductions)

    # Communication -------------------------------------------------------------------------------

    def _flat(self, bucket: Bucket) -> FlatBuffers:
        if self._made and bucket in self._made:
            return self._made[bucket]
        return self.replicas.flat_buffers(bucket.names, bucket.dtype)

    @property
    def _pieces(self) -> Shards:
        assert self._shards is not None, "parameters are not sharded"
        return self._shards

    @handlers(ops.Open)
    def _open(self, op: ops.Open) -> None:
        self._made[op.bucket] = self._pieces.bucket(op.bucket)

    @handlers(ops.FillBucket)
    def _fill(self, op: ops.FillBucket) -> None:
        views = self._flat(op.bucket).views(op.name)
        self.replicas.fill(views, op.name, op.divisor, op.bucket.is_compressed)
        if (who := self._batches.participants) is not None:  # others only have old averages
            for rank in np.flatnonzero(~who.counted):
                views[rank][...] = 0

    @handlers(ops.Take)
    def _take(self, op: ops.Take) -> None:
        self.replicas.empty(self._flat(op.bucket), op.divisor)

    @handlers(ops.AllReduce)
    def _all_reduce(self, op: ops.AllReduce) -> None:
        if isinstance(op.before, ops.OrthogonalizeBucket):
            self._compressed.turn(op.before)
        if op.bucket is None:
            return
        plan = self._launcher.plan("all_reduce", op.nbytes, group=op.group)
        if op.bucket.unit is None:
            payload.run(plan, self._flat(op.bucket).flat)
        else:
            self._pieces.reduce_across(op.bucket.unit, self._made.pop(op.bucket), plan)

    @handlers(ops.ReduceScatter)
    def _reduce_scatter(self, op: ops.ReduceScatter) -> None:
        plan = self._launcher.plan("reduce_scatter", op.bucket.nbytes, group=op.group)
        if self._pieces.reduce(_unit(op.bucket), self._made[op.bucket], plan, op.divisor):
            del self._made[op.bucket]

    @handlers(ops.AllGather)
    def _all_gather(self, op: ops.AllGather) -> None:
        if op.unit is not None:
            plan = self._launcher.plan("all_gather", op.nbytes, group=op.group)
            self._pieces.gather(op.unit, plan)

    @handlers(ops.GatherTogether)
    def _gather_together(self, op: ops.GatherTogether) -> None:
        plan = self._launcher.plan("all_gather", op.nbytes)
        for unit in op.units:
            self._pieces.gather(unit, plan)

    @handlers(ops.ReduceTogether)
    def _reduce_together(self, op: ops.ReduceTogether) -> None:
        plan = self._launcher.plan("reduce_scatter", op.bucket.nbytes)
        self._pieces.reduce_together(op.units, self._flat(op.bucket), plan)

    @handlers(ops.KeepSums)
    def _keep_sums(self, op: ops.KeepSums) -> None:
        self._pieces.keep_sums(op.bucket.names, self._flat(op.bucket))

    @handlers(ops.Broadcast, ops.CopyOut)
    def _broadcast(self, op: ops.Broadcast | ops.CopyOut) -> None:
        root = op.root if isinstance(op, ops.Broadcast) else 0
        plan = self._launcher.plan("broadcast", op.nbytes, root, op.group)
        self.replicas.broadcast(op.names, plan)

    @handlers(ops.Average)
    def _average(self, op: ops.Average) -> None:
        plan = self._launcher.plan("all_reduce", op.nbytes, group=op.group)
        self.replicas.trainer.average(plan, self._batches.participants, op.num_averaged)

    @handlers(ops.StartOuter)
    def _start_outer(self, op: ops.StartOuter) -> None:
        self.replicas.trainer.start_outer(op.optimizer)

    @handlers(ops.OuterUpdate)
    def _outer_update(self, op: ops.OuterUpdate) -> None:
        self.replicas.trainer.outer_update(op.optimizer)

    @handlers(ops.Shard)
    def _shard(self, op: ops.Shard) -> None:
        dealt = op.partition
        made = RowShards if isinstance(dealt, RowPartition) else Shards
        self._shards = self.replicas.shards = made(self.replicas, dealt)  # type: ignore[arg-type]

    @handlers(ops.Unshard)
    def _unshard(self, op: ops.Unshard) -> None:
        self._pieces.unshard(op.unit)

    @handlers(ops.Free)
    def _free(self, op: ops.Free) -> None:
        self._pieces.free(op.unit, op.parts)

    # One process ---------------------------------------------------------------------------------

    @handlers(ops.Gather)
    def _gather(self, op: ops.Gather) -> None:
        if self._infers:
            self.outputs[-1] = [np.concatenate(self.outputs[-1])]
        elif op.losses:
            sizes = self._batches.sizes[op.micro]
            losses = self._scattered.loss_of_each(self._share(op.micro))
            if self._workload.loss.adds:
                losses = losses / (sizes > 0).sum()
            mean_size = sizes.sum() / (sizes > 0).sum()  # equal weights
            self._note(op.micro, losses, np.where(np.isnan(losses), 0.0, mean_size))

    @handlers(ops.LossOfAll)
    def _loss_of_all(self, op: ops.LossOfAll) -> None:
        loss = self._scattered.loss_of_all(self._share(op.micro))
        count = self._scattered.count()
        root = np.arange(self._world_size) == op.root
        self._note(op.micro, np.where(root, loss, 0.0), np.where(root, count, 0.0))

    def _share(self, micro: int) -> float:
        """Fraction of the step's loss in a micro-step: that of its samples, or 1 if losses add."""
        if self._workload.loss.adds:
            return 1.0
        sizes = self._batches.sizes
        return float(sizes[micro].sum() / sizes.sum())

    def _note(self, micro: int, losses: Floats, counts: Floats) -> None:
        """Record losses, and their weights in the loss of the step."""
        if micro == 0:
            self._counts = np.zeros((len(self._batches.micro), self._world_size))
        self._losses.append(losses)
        self._counts[micro] = counts

    @handlers(ops.HandBack)
    def _hand_back(self, op: ops.HandBack) -> None:
        self._scattered.backward()
        self._inject(op.micro)

    @handlers(ops.Reduce)
    def _reduce(self, op: ops.Reduce) -> None:
        plan = self._launcher.plan("reduce", op.bucket.nbytes, 0, op.group)
        self._scattered.reduce(op.bucket.names, plan)

    @handlers(ops.TakeSums)
    def _take_sums(self, op: ops.TakeSums) -> None:
        self._scattered.take_sums()


def _unit(bucket: Bucket) -> int:
    assert bucket.unit is not None, "a bucket of owned pieces holds a unit"
    return bucket.unit
