"""Concat: several inputs behind each other along an axis, as torch.cat."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar, Literal

import numpy as np

from simdp.arrays import Array
from simdp.spec import Int
from simdp.workload.layers.base import Kept, Kernel, Layer, Pass, Shape, ShapeError
from simdp.workload.layers.shapes import axis_of


class Concat(Layer):
    """Inputs that differ along one axis alone: the channels, or the features.

    Attributes
    ----------
    dim : int
        The axis along which they are joined; the samples are axis 0, and -1 is the last.
    """

    kind: Literal["concat"] = "concat"
    dim: Int = 1

    most_inputs: ClassVar[None] = None

    def output_shape(self, *inputs: Shape) -> Shape:
        ranks = {len(shape) for shape in inputs}
        axis = axis_of(self.dim, inputs[0]) if ranks != {0} else 1
        rest = {(*shape[: axis - 1], *shape[axis:]) for shape in inputs}
        if len(ranks) != 1 or not all(inputs) or len(rest) != 1:
            what = "their channels" if self.dim == 1 else f"axis {self.dim}"
            raise ShapeError(
                f"joins inputs that differ in {what} alone, "
                f"but gets samples of shapes {', '.join(map(str, inputs))}"
            )
        joined = sum(shape[axis - 1] for shape in inputs)
        return (*inputs[0][: axis - 1], joined, *inputs[0][axis:])

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        ends = np.cumsum([x.shape[self.dim] for x in inputs])
        return np.concatenate(inputs, axis=self.dim), ends[:-1]

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
        parts = np.split(dy, saved, axis=self.dim)
        return tuple(part if needed else None for part, needed in zip(parts, needs, strict=True))

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        return [Kernel(0.0, 2.0 * sum(map(prod, inputs)) * itemsize)]

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        return []  # views of the gradient

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept()
