"""GLU: one half of the features, times the sigmoid of the other, as torch.nn.GLU."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Literal

import numpy as np

from simdp.arrays import Array
from simdp.spec import Int
from simdp.workload.layers.activations.sigmoid import logistic
from simdp.workload.layers.base import Kept, Kernel, Layer, Pass, Shape, ShapeError
from simdp.workload.layers.shapes import axis_of


class GLU(Layer):
    """Gated linear unit: ``a sigmoid(b)`` with a and b the halves (arXiv 1612.08083).

    Attributes
    ----------
    dim : int
        The axis that is halved; the samples are axis 0, and -1 is the last.
    """

    kind: Literal["glu"] = "glu"
    dim: Int = -1

    def output_shape(self, *inputs: Shape) -> Shape:
        axis, shape = axis_of(self.dim, inputs[0]), list(inputs[0])
        if shape[axis - 1] % 2:
            raise ShapeError(f"halves axis {self.dim}, but gets samples of shape {inputs[0]}")
        shape[axis - 1] //= 2
        return tuple(shape)

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        value, gate = np.split(inputs[0], 2, axis=self.dim)
        share = logistic(gate)
        return value * share, (value, share)

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
        if not needs[0]:
            return (None,)
        value, share = saved
        both = [dy * share, dy * value * share * (1 - share)]
        return (np.concatenate(both, axis=self.dim),)

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        out = float(prod(inputs[0])) / 2
        return [Kernel(5 * out, 3 * out * itemsize)]

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        out = float(prod(inputs[0])) / 2
        return [Kernel(8 * out, 5 * out * itemsize)] * needs[0]

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept(inputs=(0,))
