"""Add: the sum of what several layers give, as at the end of a residual block."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar, Literal

from simdp.arrays import Array
from simdp.workload.layers.base import Kept, Kernel, Layer, Pass, Shape, ShapeError


class Add(Layer):
    """Elementwise sum of two inputs or more, which have one shape."""

    kind: Literal["add"] = "add"

    most_inputs: ClassVar[None] = None

    def output_shape(self, *inputs: Shape) -> Shape:
        if len(inputs) < 2 or len(set(inputs)) > 1:
            raise ShapeError(
                "adds two inputs or more of one shape, "
                f"but gets samples of shapes {', '.join(map(str, inputs))}"
            )
        return inputs[0]

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        y: Array = inputs[0] + inputs[1]
        for more in inputs[2:]:
            y += more
        return y, None

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
        return tuple(dy if needed else None for needed in needs)

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        size = float(prod(inputs[0]))
        return [Kernel(size, 3 * size * itemsize)] * (len(inputs) - 1)

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        return []

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept()
