"""FrozenBatchNorm2d: a batch norm whose tensors nobody changes, as torchvision.ops'."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Array
from simdp.spec import Float, Int
from simdp.workload.layers.base import Kept, Kernel, Layer, Pass, Shape, ShapeError
from simdp.workload.layers.parameter import Buffer
from simdp.workload.layers.shapes import image_shape


class FrozenBatchNorm2d(Layer):
    """``(x - running_mean) weight / sqrt(running_var + eps) + bias``; all four are buffers.

    Attributes
    ----------
    num_features : int
        Channels.
    eps : float
        Added to the variance.
    """

    kind: Literal["frozen_batch_norm2d"] = "frozen_batch_norm2d"
    num_features: Int = Field(ge=1)
    eps: Float = Field(1e-5, ge=0)

    def buffers(self) -> list[Buffer]:
        starts = {"weight": 1.0, "bias": 0.0, "running_mean": 0.0, "running_var": 1.0}
        return [
            Buffer(f"{self.name}.{part}", (self.num_features,), value)
            for part, value in starts.items()
        ]

    def output_shape(self, *inputs: Shape) -> Shape:
        if image_shape(inputs[0])[0] != self.num_features:
            raise ShapeError(
                f"takes {self.num_features} channels, but gets samples of shape {inputs[0]}"
            )
        return inputs[0]

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        weight, bias, mean, variance = (run.buffers[buffer.name] for buffer in self.buffers())
        scale = (weight / np.sqrt(variance + self.eps)).astype(inputs[0].dtype)
        shift = (bias - mean * scale).astype(inputs[0].dtype)
        return inputs[0] * scale[:, None, None] + shift[:, None, None], scale

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
        return (dy * saved[:, None, None] if needs[0] else None,)

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        """A product and a sum."""
        size = float(prod(inputs[0]))
        return [Kernel(size, 2 * size * itemsize)] * 2

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        size = float(prod(inputs[0]))
        return [Kernel(size, 2 * size * itemsize)] * needs[0]

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept()
