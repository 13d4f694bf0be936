"""Upsample: every pixel becomes a rectangle, as torch.nn.Upsample with mode nearest."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Literal

import numpy as np

from simdp.arrays import Array
from simdp.workload.layers.arrays.channels import channels_last, channels_second
from simdp.workload.layers.base import Kept, Kernel, Layer, Pass, Shape
from simdp.workload.layers.pairs import Size
from simdp.workload.layers.shapes import image_shape


class Upsample(Layer):
    """Repeats pixels.

    Attributes
    ----------
    scale_factor : (int, int)
        How often, along the height and the width; in YAML one number stands for both.
    mode : str
        ``nearest``: a new pixel is that from which it came.
    """

    kind: Literal["upsample"] = "upsample"
    scale_factor: Size
    mode: Literal["nearest"] = "nearest"

    def output_shape(self, *inputs: Shape) -> Shape:
        channels, height, width = image_shape(inputs[0])
        return (channels, height * self.scale_factor[0], width * self.scale_factor[1])

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        num, height, width, channels = (last := np.moveaxis(inputs[0], 1, -1)).shape
        tall, wide = self.scale_factor
        y = np.empty((num, height, tall, width, wide, channels), dtype=last.dtype)
        y[...] = last[:, :, None, :, None]
        return channels_second(y.reshape(num, height * tall, width * wide, channels)), None

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
        if not needs[0]:
            return (None,)
        num, height, width, channels = (last := channels_last(dy)).shape
        tall, wide = self.scale_factor
        cells = last.reshape(num, height // tall, tall, width // wide, wide, channels)
        return (channels_second(cells.sum(axis=(2, 4))),)

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        both = float(prod(inputs[0]) + prod(self.output_shape(*inputs)))
        return [Kernel(0.0, both * itemsize)]

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        before, out = prod(inputs[0]), float(prod(self.output_shape(*inputs)))
        return [Kernel(out, (before + out) * itemsize)] * needs[0]

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept()
