"""Upsample: every pixel becomes a rectangle, as torch.nn.Upsample."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Literal, Self

import numpy as np
from pydantic import model_validator

from simdp.arrays import Array
from simdp.spec import Bool, problem
from simdp.workload.layers.arrays.channels import channels_last, channels_second
from simdp.workload.layers.base import Kept, Kernel, Layer, Pass, Shape
from simdp.workload.layers.pairs import Size
from simdp.workload.layers.shapes import image_shape


class Upsample(Layer):
    """Repeats pixels, or draws straight lines between them.

    Attributes
    ----------
    scale_factor : (int, int)
        How often, along the height and the width; in YAML one number stands for both.
    mode : {"nearest", "bilinear"}
        A new pixel is that from which it came, or lies between the four around it.
    align_corners : bool or None
        bilinear: whether the pixels in the corners stay where they are; else the edges of the
        image do, which is the default.
    """

    kind: Literal["upsample"] = "upsample"
    scale_factor: Size
    mode: Literal["nearest", "bilinear"] = "nearest"
    align_corners: Bool | None = None

    @model_validator(mode="after")
    def _corners_need_lines(self) -> Self:
        if self.align_corners is not None and self.mode == "nearest":
            raise problem(
                "align_corners goes with mode: bilinear, but the mode is nearest; leave it out, or "
                "change the mode."
            )
        return self

    def output_shape(self, *inputs: Shape) -> Shape:
        channels, height, width = image_shape(inputs[0])
        return (channels, height * self.scale_factor[0], width * self.scale_factor[1])

    def _lines(self, shape: Shape, dtype: np.dtype[Any]) -> list[Array]:
        """Of each axis, what the old pixels weigh in the new ones, shape `(new, old)`."""
        sizes = zip(shape[-2:], self.scale_factor, strict=True)
        return [_line(old, scale, bool(self.align_corners), dtype) for old, scale in sizes]

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        if self.mode == "bilinear":
            rows, columns = self._lines(inputs[0].shape, inputs[0].dtype)
            return rows @ (inputs[0] @ columns.T), inputs[0].shape
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
        if self.mode == "bilinear":
            rows, columns = self._lines(saved, dy.dtype)
            return (rows.T @ dy @ columns,)
        num, height, width, channels = (last := channels_last(dy)).shape
        tall, wide = self.scale_factor
        cells = last.reshape(num, height // tall, tall, width // wide, wide, channels)
        return (channels_second(cells.sum(axis=(2, 4))),)

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        out = float(prod(self.output_shape(*inputs)))
        flops = 9 * out if self.mode == "bilinear" else 0.0  # six products, three sums
        return [Kernel(flops, (prod(inputs[0]) + out) * itemsize)]

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        before, out = prod(inputs[0]), float(prod(self.output_shape(*inputs)))
        flops = (8 if self.mode == "bilinear" else 1) * out
        return [Kernel(flops, (before + out) * itemsize)] * needs[0]

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept()


def _line(old: int, scale: int, align_corners: bool, dtype: np.dtype[Any]) -> Array:
    """What each old pixel of an axis weighs in each new one, as torch's area_pixel_compute."""
    new = np.arange(old * scale)
    if align_corners:
        place = new * ((old - 1) / (old * scale - 1) if old * scale > 1 else 0.0)
    else:
        place = np.maximum((new + 0.5) / scale - 0.5, 0.0)
    below = place.astype(np.int64)
    found = np.zeros((len(new), old), dtype=dtype)
    share = place - below
    found[new, below] = 1 - share
    found[new, np.minimum(below + 1, old - 1)] += share.astype(dtype)
    return found
