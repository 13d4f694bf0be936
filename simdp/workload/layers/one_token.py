"""OneToken: base of the layers that take one row of a sequence."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar

import numpy as np

from simdp.arrays import Array
from simdp.workload.layers.base import Kept, Kernel, Layer, Pass, Shape
from simdp.workload.layers.shapes import sequence_shape


class OneToken(Layer):
    """Base: one row of a sequence."""

    place: ClassVar[int]
    """Which; -1 is the last."""

    def output_shape(self, *inputs: Shape) -> Shape:
        _, width = sequence_shape(inputs[0])
        return (width,)

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        return np.ascontiguousarray(inputs[0][:, self.place]), inputs[0].shape

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
        if not needs[0]:
            return (None,)
        dx = np.zeros(saved, dtype=dy.dtype)
        dx[:, self.place] = dy
        return (dx,)

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        return [Kernel(0.0, 2.0 * inputs[0][-1] * itemsize)]

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        """The gradient is cleared, then the row is written."""
        cleared = Kernel(0.0, float(prod(inputs[0]) * itemsize))
        return [cleared, *self.forward_cost(inputs, itemsize)] * needs[0]

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept()
