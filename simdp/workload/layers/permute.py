"""Permute: the axes in another order, as torchvision.ops.Permute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from pydantic import field_validator

from simdp.arrays import Array
from simdp.spec import Int, problem
from simdp.workload.layers.base import Kept, Kernel, Layer, Pass, Shape, ShapeError


class Permute(Layer):
    """A view: it costs nothing. Brings channels last for a loss, or features first for `Conv1d`.

    Attributes
    ----------
    dims : list of int
        The axes in their new order; the samples are axis 0, and stay there.
    """

    kind: Literal["permute"] = "permute"
    dims: tuple[Int, ...]

    @field_validator("dims")
    @classmethod
    def _is_an_order(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if sorted(value) != list(range(len(value))) or value[:1] != (0,):
            raise problem(
                f"{list(value)} does not name each axis once, the samples' axis 0 first; write for "
                "example [0, 2, 1]."
            )
        return value

    def output_shape(self, *inputs: Shape) -> Shape:
        if len(inputs[0]) + 1 != len(self.dims):
            raise ShapeError(
                f"orders axes 0 to {len(self.dims) - 1}, but gets samples of shape {inputs[0]}, "
                f"whose axes are 1 to {len(inputs[0])}"
            )
        return tuple(inputs[0][axis - 1] for axis in self.dims[1:])

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        return inputs[0].transpose(self.dims), None

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
        return (dy.transpose(np.argsort(self.dims)) if needs[0] else None,)

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        return []

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        return []

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept()
