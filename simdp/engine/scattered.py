"""Scattered: the numbers of a batch that is cut over replicas, whose outputs come together again.

What `simdp.engine.replicas` does for ranks that have a loss each, where one loss may be of all.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

import numpy as np

from simdp.arrays import Array, Floats
from simdp.collectives import Plan
from simdp.engine import payload
from simdp.engine.buffers import FlatBuffers
from simdp.engine.replicas import Replicas
from simdp.engine.threads import each_rank
from simdp.engine.walk import alone
from simdp.workload.execution import Kept
from simdp.workload.layers.base import Pass
from simdp.workload.precision.rounding import numpy_dtype


class Begun(NamedTuple):
    """A replica's forward: what it made, and what its backward needs."""

    run: Pass
    kept: Kept
    outputs: list[Array]


class Scattered:
    """A micro-batch over the replicas.

    Parameters
    ----------
    replicas : Replicas
        Whose weights compute; rank 0 gets the gradients.
    """

    def __init__(self, replicas: Replicas) -> None:
        self.replicas, self.samples = replicas, replicas.samples
        workload = replicas.scenario.workload
        self.loss, self.dtype = workload.loss, np.dtype(workload.dtype)
        self._num_elements = sum(parameter.num_elements for parameter in replicas.graph.parameters)
        self._parts: Sequence[Array] = ()
        self._whole = np.zeros(0, dtype=np.int64)
        self._begun: list[Begun | None] = []
        self._slopes: list[list[Array] | None] = []
        self._total: dict[str, Array] = {}
        self._sums: dict[str, Array] = {}

    # Forward ------------------------------------------------------------------------------------

    def forward(self, parts: Sequence[Array], keeps: bool) -> None:
        """Run the model of every rank that has samples.

        Parameters
        ----------
        parts : sequence of ndarray
            Sample indices of each rank.
        keeps : bool
            Whether backward follows.
        """
        n = self.replicas.world_size
        self._parts = [parts[rank] for rank in range(n)]
        self._whole = np.concatenate(self._parts)
        among = self._whole if self.samples.together else None

        def run(rank: int) -> Begun | None:
            part = self._parts[rank]
            return alone(self._forward_of(rank, part, among, keeps)) if len(part) else None

        self._begun = each_rank(run, n, self._num_elements)
        self._slopes = [None] * n

    def _forward_of(
        self, rank: int, part: Array, among: Array | None, keeps: bool
    ) -> Generator[Any, Any, Begun]:
        replicas = self.replicas
        run = Pass(
            parameters=replicas.weights[rank],
            buffers=replicas.buffers[rank],
            samples=part,
            seed=replicas.scenario.seed,
            step=replicas.step,
        )
        inputs = self.samples.inputs(part, among)
        outputs, kept = yield from replicas.executor.forward(run, inputs, keeps)
        return Begun(run, kept, outputs)

    def outputs(self) -> list[Array]:
        """The model's outputs of the ranks that have samples, in their order."""
        return [begun.outputs[0] for begun in self._begun if begun is not None]

    # Losses -------------------------------------------------------------------------------------

    def count(self) -> float:
        """What a loss of the whole micro-batch averages."""
        return self.loss.count(self.samples.target(self._whole))

    def loss_of_all(self, share: float) -> float:
        """The loss of all outputs together; nan if it has nothing to average.

        Parameters
        ----------
        share : float
            Factor on the loss, for the gradients alone.
        """
        target = self.samples.target(self._whole)
        if not self.loss.count(target):
            return np.nan
        there = [begun for begun in self._begun if begun is not None]
        together = [np.concatenate(each) for each in zip(*(b.outputs for b in there), strict=True)]
        loss, slopes = self._loss(together, target, share)
        ends = np.cumsum([len(part) for part in self._parts])[:-1]
        for rank, begun in enumerate(self._begun):
            if begun is not None:
                self._slopes[rank] = [np.split(slope, ends)[rank] for slope in slopes]
        return loss

    def loss_of_each(self, share: float) -> Floats:
        """The loss of each rank's own outputs, shape `(world_size,)`; nan where it has none.

        Parameters
        ----------
        share : float
            Factor on the mean of the losses, for the gradients alone.
        """
        among, count = self._whole, sum(begun is not None for begun in self._begun)
        losses = np.full(len(self._begun), np.nan)
        for rank, begun in enumerate(self._begun):
            if begun is None:
                continue
            target = self.samples.target(self._parts[rank], among)
            if self.loss.count(target):
                losses[rank], slopes = self._loss(begun.outputs, target, share / count)
                self._slopes[rank] = slopes
        return losses

    def _loss(
        self, outputs: Sequence[Array], target: Array, factor: float
    ) -> tuple[float, list[Array]]:
        """The loss, and the gradients of the outputs, scaled as rank 0's optimizer needs them."""
        total, slopes = 0.0, []
        for output, (_, weight) in zip(outputs, self.replicas.graph.outputs, strict=True):
            loss, slope = self.loss.value_and_grad(output, target)
            total += weight * loss
            scale = weight * factor * self.replicas.trainer.loss_scale(0)
            if scale != 1.0:
                slope *= self.dtype.type(scale)
            slopes.append(slope)
        return total, slopes

    # Backward -----------------------------------------------------------------------------------

    def backward(self) -> None:
        """Find every replica's gradients; those of the step so far are put aside."""
        self._total = self.replicas.gradients[0]

        def run(rank: int) -> dict[str, Array]:
            begun, slopes = self._begun[rank], self._slopes[rank]
            if begun is None:
                return {}
            if slopes is not None:
                alone(self.replicas.executor.backward(begun.run, begun.kept, slopes))
            found = begun.run.gradients
            for name, shape in self.replicas.shapes.items():
                if name not in found:  # torch's backward of Broadcast takes zeros there
                    found[name] = np.zeros(shape, self.dtype)
            return found

        n = self.replicas.world_size
        self.replicas.gradients = each_rank(run, n, self._num_elements)
        self._begun = []

    def reduce(self, names: Sequence[str], plan: Plan) -> None:
        """Sum gradients over the ranks of a plan, on its root, in one flat buffer."""
        replicas = self.replicas
        precision, dtype = replicas.scenario.workload.precision, self.dtype.name
        shapes = {name: replicas.shapes[name] for name in names}
        sent = numpy_dtype(precision.gradient_dtype(dtype))
        buffers = FlatBuffers(shapes, replicas.world_size, sent)
        for name in names:
            for view, own in zip(buffers.views(name), replicas.gradients, strict=True):
                view[...] = own.get(name, 0)
        payload.run(plan, buffers.flat)
        for name in names:
            self._sums[name] = buffers.views(name)[plan.root].astype(self.dtype, copy=False)

    def take_sums(self) -> None:
        """Add the sums to rank 0's gradients of the step; the others have none.

        Those of frozen parameters, which are zeros, are dropped, as by autograd.
        """
        frozen = self.replicas.graph.frozen
        for name, found in self._sums.items():
            if name in frozen:
                continue
            if name in self._total:
                self._total[name] += found
            else:
                self._total[name] = found
        others: list[dict[str, Array]] = [{} for _ in range(self.replicas.world_size - 1)]
        self.replicas.gradients = [self._total, *others]
        self._sums = {}
