"""Flatten: several axes of a sample become one, as torch.nn.Flatten."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Literal

from pydantic import Field

from simdp.arrays import Array
from simdp.spec import Int
from simdp.workload.layers.base import Kept, Kernel, Layer, Pass, Shape, ShapeError


class Flatten(Layer):
    """A view: it costs nothing.

    Attributes
    ----------
    start_dim, end_dim : int
        First and last axis that become one; the samples are axis 0, and -1 is the last.
    """

    kind: Literal["flatten"] = "flatten"
    start_dim: Int = Field(1, ge=1)
    end_dim: Int = -1

    def output_shape(self, *inputs: Shape) -> Shape:
        shape = inputs[0]
        last = self.end_dim if self.end_dim >= 0 else self.end_dim + 1 + len(shape)
        if not self.start_dim <= last <= len(shape):
            raise ShapeError(
                f"flattens axes {self.start_dim} to {self.end_dim}, "
                f"but gets samples of shape {shape}, whose axes are 1 to {len(shape)}"
            )
        return (*shape[: self.start_dim - 1], prod(shape[self.start_dim - 1 : last]), *shape[last:])

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        shape = inputs[0].shape
        return inputs[0].reshape(shape[0], *self.output_shape(shape[1:])), shape

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
        return (dy.reshape(saved) if needs[0] else None,)

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        return []

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        return []

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept()
