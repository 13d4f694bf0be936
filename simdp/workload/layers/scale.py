"""Scale: a product with a constant."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Literal

from simdp.arrays import Array
from simdp.workload.layers.base import Kept, Kernel, Layer, Pass, Shape


class Scale(Layer):
    """``y = factor x``, such as the sqrt(d_model) of a transformer's embedding."""

    kind: Literal["scale"] = "scale"
    factor: float

    def output_shape(self, *inputs: Shape) -> Shape:
        return inputs[0]

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        return inputs[0] * inputs[0].dtype.type(self.factor), None

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
        return (dy * dy.dtype.type(self.factor) if needs[0] else None,)

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        size = float(prod(inputs[0]))
        return [Kernel(size, 2 * size * itemsize)]

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        return self.forward_cost(inputs, itemsize) * needs[0]

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept()
