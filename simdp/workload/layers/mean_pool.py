"""MeanPool: the mean over a sequence, padding left out."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar, Literal

import numpy as np

from simdp.arrays import Array
from simdp.spec import Int
from simdp.workload.layers.base import Kept, Kernel, Layer, Pass, Shape, ShapeError
from simdp.workload.layers.shapes import sequence_shape


class MeanPool(Layer):
    """Makes one row of a sequence of rows.

    Attributes
    ----------
    pad_id : int or None
        Where it is given, the layer also takes the tokens, and rows of this one do not count. A
        sample of nothing else gets zeros.
    """

    kind: Literal["mean_pool"] = "mean_pool"
    pad_id: Int | None = None

    most_inputs: ClassVar[int] = 2

    def output_shape(self, *inputs: Shape) -> Shape:
        length, width = sequence_shape(inputs[0])
        if self.pad_id is not None and inputs[1:] != ((length,),):
            raise ShapeError(f"takes the tokens of {length} rows too, but gets {inputs[1:]}")
        return (width,)

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        x = inputs[0]
        share = np.full((len(x), 1, x.shape[1]), 1 / max(1, x.shape[1]), dtype=x.dtype)
        if self.pad_id is not None:
            counts = inputs[1] != self.pad_id
            share[:, 0] = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        return (share @ x)[:, 0], share

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
        dx = saved.swapaxes(1, 2) * dy[:, None] if needs[0] else None
        return (dx, None)[: 1 + (self.pad_id is not None)]

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        """A product with the mask, where there is one, and a sum."""
        size, width = float(prod(inputs[0])), inputs[0][-1]
        masked = [Kernel(size, 2 * size * itemsize)] * (self.pad_id is not None)
        return [*masked, Kernel(size, (size + width) * itemsize)]

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        size, width = float(prod(inputs[0])), inputs[0][-1]
        masked = [Kernel(size, 2 * size * itemsize)] * (self.pad_id is not None)
        return [Kernel(size, (size + width) * itemsize), *masked] * needs[0]

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept(nbytes=0.0 if self.pad_id is None else float(inputs[0][0] * itemsize))
