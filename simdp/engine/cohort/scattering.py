"""Scattering: a batch that one rank has, cut over all, and the outputs together again.

Copies from one device to another come one after the other, in the order of the ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import prod

import numpy as np

from simdp.arrays import Array, Bools, Floats, Ints
from simdp.collectives import Plan
from simdp.collectives.copies import copies_from, copies_to
from simdp.engine.cohort.one_process import OneProcess
from simdp.engine.compute.call_times import call_kernels
from simdp.engine.compute.columns import Columns
from simdp.engine.ops import Meet
from simdp.engine.record import StepRecord
from simdp.strategies.base import Script
from simdp.strategies.memory import INTEGER_ITEMSIZE
from simdp.workload.execution import call_dtypes
from simdp.workload.layers.base import Shape
from simdp.workload.lifetimes import Stage
from simdp.workload.precision.rounding import numpy_dtype


class Scattering(OneProcess):
    """What ranks do with pieces of one batch."""

    def _prepare_keeping(self) -> None:
        super()._prepare_keeping()
        self.outputs: list[list[Array]] = []
        self._held_up = np.zeros(self.world_size)

    @property
    def scatters(self) -> bool:
        """See `simdp.strategies.base.Rank`."""
        return self.samples.together

    # Batches ------------------------------------------------------------------------------------

    def own_batch(self, micro_step: int) -> Script:
        """See `simdp.strategies.base.Rank`."""
        yield from self._feed(self._batches.sizes[micro_step].astype(float))
        yield from self.borrow("inputs", self.kept_inputs(micro_step))

    def scatter_batch(self, micro_step: int, targets: bool = False) -> Script:
        """See `simdp.strategies.base.Rank`."""
        sizes = self._batches.sizes[micro_step]
        yield from self._feed(self._is_root * float(sizes.sum()))
        pieces = np.where(self._is_root, sizes.sum(), sizes)
        sent = {**self._inputs(micro_step), **(self._target(micro_step) if targets else {})}
        for name, per_sample in sent.items():
            yield from self.borrow("inputs", self._rooms(pieces, per_sample))
            plan = copies_from(0, tuple(sizes.tolist()))
            yield from self._copies(plan, float(sizes.sum() * per_sample), name)

    def _inputs(self, micro_step: int) -> dict[str, float]:
        """Bytes of a sample of each input, as long as the longest of a micro-batch."""
        model, itemsize = self.scenario.workload.model, self.scenario.workload.itemsize
        if model.timed:  # nobody knows what its samples are
            return {}
        shapes = self._shapes(micro_step)
        found = {}
        for name, shape in zip(self.graph.inputs, shapes, strict=False):
            tokens = model.num_tokens(name) is not None
            found[name] = float(prod(shape) * (INTEGER_ITEMSIZE if tokens else itemsize))
        return found

    def _target(self, micro_step: int) -> dict[str, float]:
        """Bytes of a sample's target."""
        workload, (output, _) = self.scenario.workload, self.graph.outputs[0]
        if workload.model.timed:
            return {}
        shape = workload.loss.target_shape(self._shapes(micro_step)[output])
        itemsize = INTEGER_ITEMSIZE if workload.loss.of_classes else workload.itemsize
        return {"y": float(prod(shape) * itemsize)}

    def _shapes(self, micro_step: int) -> list[Shape]:
        """Shape of every value of the model, per sample; the same on all ranks."""
        parts = self._batches.micro[micro_step]
        found, which = self.samples.shapes(parts)
        return self.graph.shapes(found[which[int(np.argmax(parts.sizes))]])

    def _output_nbytes(self, micro_step: int) -> float:
        """Bytes of what the model makes of a sample."""
        workload, first = self.scenario.workload, len(self.graph.inputs)
        if workload.model.timed:
            return 0.0
        shapes = self._shapes(micro_step)
        ran = call_dtypes(self.graph, workload.precision, workload.dtype)
        return float(
            sum(
                prod(shapes[value]) * numpy_dtype(ran[value - first]).itemsize
                for value, _ in self.graph.outputs
            )
        )

    def _rooms(self, sizes: Ints, per_sample: float) -> float | Floats:
        return self._for_each(sizes, lambda n: self.room([n * per_sample]))

    def _copies(self, plan: Plan, nbytes: float, label: str) -> Script:
        """Copy between devices, and wait for it."""
        if plan.num_transfers:
            call = yield from self.launcher.copy(self.step, plan, nbytes, label)
            yield from self.wait([call])

    # Forward ------------------------------------------------------------------------------------

    def forward_together(self, micro_step: int, gil: float = 0.0, losses: bool = False) -> Script:
        """See `simdp.strategies.base.Rank`."""
        if self._scattered:
            parts = self._batches.micro[micro_step]
            self._scattered.forward(parts, not self.infers)
            if self.infers:
                self.outputs.append(self._scattered.outputs())
        there, last = self._batches.sizes[micro_step] > 0, len(self.graph.calls)
        self._held_up = gil * max(int(there.sum()) - 1, 0) * self.roofline.launch * there
        stages = self.lifetimes.forward
        yield from self._forward_of_calls(range(last), stages, micro_step)
        if losses and self._has_loss:
            yield from self._forward_of_calls([last], stages, micro_step)
        if self.infers and not self.scatters:
            yield from self._let_go(micro_step)

    def _let_go(self, micro_step: int) -> Script:
        """Give back what inference has left when it has its outputs."""
        yield from self.take(self.lifetimes.forward[-1], micro_step)
        yield from self.give(self.lifetimes.forward[-1], micro_step)
        yield from self.give_back("outputs")
        yield from self.give_back("inputs")

    def _forward_of_calls(
        self, numbers: Sequence[int], stages: Mapping[int, Stage] | Sequence[Stage], micro_step: int
    ) -> Script:
        seconds = self._seconds("forward", micro_step)
        for number in numbers:
            yield from self.take(stages[number], micro_step)
            work, launches = self._work("forward", number, seconds), self._num_launches[number]
            yield work._replace(seconds=work.seconds + launches * self._held_up * self._factors)
            yield from self.give(stages[number], micro_step)

    @cached_property
    def _num_launches(self) -> list[int]:
        """Kernels that forward launches for each call, and for the loss."""
        workload = self.scenario.workload
        if workload.model.timed:  # its times hold them
            return [0] * (len(self.graph.calls) + 1)
        return [len(k) for k in call_kernels(workload, "forward", workload.model.known_shapes())]

    def note_inference(self) -> None:
        """Take down a step in which nothing was learned."""
        samples = int(self._batches.sizes.sum())
        self.records.append(StepRecord(samples, None, None, None, None, None, None))

    def gather_outputs(self, micro_step: int, root: int) -> Script:
        """See `simdp.strategies.base.Rank`."""
        sizes, per_sample = self._batches.sizes[micro_step], self._output_nbytes(micro_step)
        if self._scattered and self.infers:
            self.outputs[-1] = [np.concatenate(self.outputs[-1])]
        yield from self.borrow("outputs", self._at(root, self.room([sizes.sum() * per_sample])))
        plan = copies_to(root, tuple(sizes.tolist()))
        yield from self._copies(plan, float(sizes.sum() * per_sample), "outputs")
        if self.infers:
            yield from self._let_go(micro_step)

    def loss_of_outputs(self, micro_step: int, root: int) -> Script:
        """See `simdp.strategies.base.Rank`."""
        for per_sample in self._target(micro_step).values():
            whole = self.room([self._batches.sizes[micro_step].sum() * per_sample])
            yield from self.borrow("inputs", self._at(root, whole))
        if self._scattered:
            loss = self._scattered.loss_of_all(self._share(micro_step))
            count = self._scattered.count()
            self._note(micro_step, self._at(root, loss), self._at(root, count))
        if self._has_loss:
            kept = self.lifetimes.forward[-1].taken
            whole = self._room_of(kept, int(self._batches.sizes[micro_step].sum()))
            yield from self.borrow("outputs", self._at(root, whole))
            yield from self._loss_work("forward", micro_step, root)

    def gather_losses(self, micro_step: int, root: int) -> Script:
        """See `simdp.strategies.base.Rank`."""
        there = self._batches.sizes[micro_step] > 0
        if self._scattered:
            losses = self._scattered.loss_of_each(self._share(micro_step))
            each = self._batches.sizes[micro_step].sum() / there.sum()  # equal weights
            self._note(micro_step, losses, np.where(np.isnan(losses), 0.0, each))
        nbytes = float(there.sum() * self.scenario.workload.itemsize)
        plan = copies_to(root, tuple(there.astype(int).tolist()))
        yield from self._copies(plan, nbytes, "losses")

    def _share(self, micro_step: int) -> float:
        """The part of the step's samples that a micro-step has."""
        sizes = self._batches.sizes
        return float(sizes[micro_step].sum() / sizes.sum())

    def _note(self, micro_step: int, losses: Floats, counts: Floats) -> None:
        """Take down losses, and what each weighs in the loss of the step."""
        if micro_step == 0:
            self._counts = np.zeros((self.num_micro_steps, self.world_size))
        self._losses.append(losses)
        self._counts[micro_step] = counts

    def _at(self, rank: int, value: float) -> Floats:
        found = np.zeros(self.world_size)
        found[rank] = value
        return found

    def _loss_work(self, activity: str, micro_step: int, root: int) -> Script:
        """Let a rank work on the loss of the whole micro-batch."""
        parts, last = self._batches.micro[micro_step], len(self.graph.calls)
        found, which = self.samples.shapes(parts)
        everything = self._at(root, int(parts.sizes.sum())).astype(np.int64)
        alike = np.full_like(which, which[int(np.argmax(parts.sizes))])
        seconds = self.times.seconds(activity, everything, found, alike)
        yield self._work(activity, last, seconds)

    # Backward -----------------------------------------------------------------------------------

    def backward_together(self, micro_step: int, root: int, losses: bool = False) -> Script:
        """See `simdp.strategies.base.Rank`."""
        sizes = self._batches.sizes[micro_step]
        there = sizes > 0
        if self._scattered and self.replicas:
            self._scattered.backward()
            for fault in self._faults() if micro_step == 0 else ():
                self.replicas.inject(fault.rank, fault.value)
        pieces, per_piece = sizes, self._output_nbytes(micro_step)
        if losses:
            pieces, per_piece = there.astype(np.int64), self.scenario.workload.itemsize
        elif self._has_loss:
            whole = self.room([sizes.sum() * per_piece])
            yield from self.borrow("outputs", self._at(root, whole))
            yield from self._loss_work("backward", micro_step, root)
        plan = copies_from(root, tuple(pieces.tolist()))
        yield from self._copies(plan, float(pieces.sum() * per_piece), "output gradients")
        yield from self.give_back("outputs")
        yield from self._backward_of_calls(micro_step, losses, there)

    def _backward_of_calls(self, micro_step: int, losses: bool, there: Bools) -> Script:
        seconds = self._seconds("backward", micro_step)
        tails = self._seconds("tail", micro_step) if any(self.times.tails) else seconds
        stages, last = self.lifetimes.backward, len(self.graph.calls)
        yield from self._loss_of_pieces(micro_step, losses, seconds)
        for number in reversed(range(last)):
            if number in self._blocks:  # Python again, and so one thread at a time
                again = self.lifetimes.again
                yield from self._forward_of_calls(self._blocks[number], again, micro_step)
            yield from self.take(stages[number], micro_step)
            made: Floats = self._of_gradients(self.graph.ready_at[number]) * there.astype(float)
            yield from self.borrow("gradients", made)
            yield self._work("backward", number, seconds)
            yield from self.give(stages[number], micro_step)
            if self.times.tails[number]:
                yield self._work("backward", number, tails)
        yield from self.give(self.lifetimes.end, micro_step)

    def _loss_of_pieces(self, micro_step: int, losses: bool, seconds: Columns) -> Script:
        """Begin backward on every rank: at its own loss, or with the gradient it was sent."""
        if not (losses and self._has_loss):
            yield from self.take(self._arriving, micro_step)
            return
        stage = self.lifetimes.backward[-1]
        yield from self.take(stage, micro_step)
        yield self._work("backward", len(self.graph.calls), seconds)
        yield from self.give(stage, micro_step)

    @cached_property
    def _arriving(self) -> Stage:
        """The gradients of a model's outputs, without what a loss keeps and needs beside them."""
        taken, given = self.lifetimes.backward[-1]
        return Stage(tuple(t for t in taken if all(t is not gone for gone in given)), ())

    def meet(self) -> Script:
        """See `simdp.strategies.base.Rank`."""
        yield Meet(self.step)
