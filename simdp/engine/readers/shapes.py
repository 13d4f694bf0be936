"""Shapes: how large what flows through the model is in the current step, by sample."""

from __future__ import annotations

from math import prod

import numpy as np

from simdp.engine.samples import Samples
from simdp.scenario import Scenario
from simdp.strategies.memory import INTEGER_ITEMSIZE
from simdp.workload.execution import call_dtypes
from simdp.workload.layers.base import Shape
from simdp.workload.precision.rounding import numpy_dtype
from simdp.workload.sampling import StepBatches


class Shapes:
    """Sizes of inputs, targets and outputs of a micro-batch, as long as its longest sample.

    Parameters
    ----------
    scenario : Scenario
        One point.
    samples : Samples
        The data.
    has_loss : bool
        Whether the loss is work of its own.
    """

    def __init__(self, scenario: Scenario, samples: Samples, has_loss: bool) -> None:
        self._workload, self._samples, self.has_loss = scenario.workload, samples, has_loss
        self._batches: StepBatches | None = None

    def begin(self, batches: StepBatches) -> None:
        """Begin a step, with who trains on what."""
        self._batches = batches

    def _of_values(self, micro: int) -> list[Shape]:
        """Shape of every value of the model, per sample; the same on all ranks."""
        assert self._batches is not None, "a step begins with its batches"
        parts = self._batches.micro[micro]
        found, which = self._samples.shapes(parts)
        return self._workload.graph.shapes(found[which[int(np.argmax(parts.sizes))]])

    def nbytes_of(self, name: str, micro: int) -> float:
        """Bytes of a sample of an input; or of its target, under the name ``y``."""
        workload, graph = self._workload, self._workload.graph
        shapes = self._of_values(micro)
        if name in graph.inputs:
            is_tokens = workload.model.num_tokens(name) is not None
            itemsize = INTEGER_ITEMSIZE if is_tokens else workload.itemsize
            return float(prod(shapes[graph.inputs.index(name)]) * itemsize)
        shape = workload.loss.target_shape(shapes[graph.outputs[0][0]])
        itemsize = INTEGER_ITEMSIZE if workload.loss.of_classes else workload.itemsize
        return float(prod(shape) * itemsize)

    def gathered(self, micro: int, losses: bool) -> tuple[tuple[int, ...], float]:
        """How much of what is gathered each rank has, outputs or losses, and bytes of all."""
        assert self._batches is not None, "a step begins with its batches"
        sizes = self._batches.sizes[micro]
        if losses:
            there = sizes > 0
            return tuple(there.astype(int).tolist()), float(there.sum() * self._workload.itemsize)
        return tuple(sizes.tolist()), float(sizes.sum() * self.output_nbytes(micro))

    def output_nbytes(self, micro: int) -> float:
        """Bytes of what the model makes of a sample; none where nobody knows."""
        workload, graph = self._workload, self._workload.graph
        if workload.model.timed:
            return 0.0
        shapes, first = self._of_values(micro), len(graph.inputs)
        ran = call_dtypes(graph, workload.precision, workload.dtype)
        return float(
            sum(
                prod(shapes[value]) * numpy_dtype(ran[value - first]).itemsize
                for value, _ in graph.outputs
            )
        )
