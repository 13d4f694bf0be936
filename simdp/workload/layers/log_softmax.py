"""LogSoftmax along an axis, as torch.nn.LogSoftmax."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar, Literal

import numpy as np

from simdp.arrays import Array
from simdp.spec import Int
from simdp.workload.layers.arrays.softmax import log_softmax
from simdp.workload.layers.base import Kept, Kernel, Layer, Pass, Shape
from simdp.workload.layers.shapes import axis_of


class LogSoftmax(Layer):
    """``x - log(sum exp(x))``.

    Attributes
    ----------
    dim : int
        The axis whose exponentials add up to 1; the samples are axis 0, and -1 is the last.
    """

    kind: Literal["log_softmax"] = "log_softmax"
    dim: Int = -1

    autocast: ClassVar[Literal["float32"]] = "float32"

    def output_shape(self, *inputs: Shape) -> Shape:
        axis_of(self.dim, inputs[0])
        return inputs[0]

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        y = log_softmax(inputs[0], self.dim)
        return y, y

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
        if not needs[0]:
            return (None,)
        return (dy - np.exp(saved) * dy.sum(axis=self.dim, keepdims=True),)

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        size = float(prod(inputs[0]))
        return [Kernel(5 * size, 2 * size * itemsize)]

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        size = float(prod(inputs[0]))
        return [Kernel(4 * size, 3 * size * itemsize)] * needs[0]

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept(output=True)
