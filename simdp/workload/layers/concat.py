"""Concat: the channels of several inputs behind each other, as torch.cat along axis 1."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Literal

import numpy as np

from simdp.arrays import Array
from simdp.workload.layers.base import Kept, Kernel, Layer, Pass, Shape, ShapeError


class Concat(Layer):
    """Inputs that differ in the number of their channels, or features, alone."""

    kind: Literal["concat"] = "concat"

    def output_shape(self, *inputs: Shape) -> Shape:
        if not all(inputs) or len({shape[1:] for shape in inputs}) != 1:
            raise ShapeError(
                "joins inputs that differ in their channels alone, "
                f"but gets samples of shapes {', '.join(map(str, inputs))}"
            )
        return (sum(shape[0] for shape in inputs), *inputs[0][1:])

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        ends = np.cumsum([x.shape[1] for x in inputs])
        return np.concatenate(inputs, axis=1), ends[:-1]

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
        parts = np.split(dy, saved, axis=1)
        return tuple(part if needed else None for part, needed in zip(parts, needs, strict=True))

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        return [Kernel(0.0, 2.0 * sum(map(prod, inputs)) * itemsize)]

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        return []  # views of the gradient

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept()
