"""What Softmax and LogSoftmax share: an axis, and what each kernel does and keeps."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import ClassVar, Literal

from simdp.spec import Int
from simdp.workload.layers.base import Kept, Kernel, Layer, Shape
from simdp.workload.layers.shapes import axis_of


class Exponentials(Layer):
    """Exponentials along an axis over their sum.

    Attributes
    ----------
    dim : int
        The axis along which they add up to 1; the samples are axis 0, and -1 is the last.
    """

    dim: Int = -1

    autocast: ClassVar[Literal["float32"]] = "float32"

    def output_shape(self, *inputs: Shape) -> Shape:
        axis_of(self.dim, inputs[0])
        return inputs[0]

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
