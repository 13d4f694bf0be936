"""RoIAlign: regions of a pyramid of maps, each brought to one size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Array, Ints
from simdp.spec import Bool, Int
from simdp.workload.layers.base import Kept, Kernel, Layer, Pass, Shape, ShapeError
from simdp.workload.layers.shapes import image_shape

SAMPLES = 4
"""Places of a cell that are looked at, 2 x 2, each between four pixels."""

GOLDEN = 0.6180339887498949
"""Multiples of it, without their whole part, spread evenly over 0 ... 1."""


class RoIAlign(Layer):
    """``num_rois`` regions of as many cells each, dealt to the maps in turn.

    Where regions lie depends on what a detector finds. Here their places are fixed, spread over
    the maps, and a cell is the pixel in its middle; time is that of torchvision.ops.roi_align.

    Attributes
    ----------
    num_rois : int
        Regions of a sample.
    output_size : int
        Cells along the height and the width of a region.
    flat : bool
        Whether a region becomes a row of features, for linear maps; else regions stand below each
        other in one tall image, for convolutions.

    References
    ----------
    He et al., "Mask R-CNN", ICCV 2017 (arXiv 1703.06870), section 3;
    torchvision/ops/poolers.py.
    """

    kind: Literal["roi_align"] = "roi_align"
    num_rois: Int = Field(ge=1)
    output_size: Int = Field(ge=1)
    flat: Bool = False

    def output_shape(self, *inputs: Shape) -> Shape:
        channels = {image_shape(shape)[0] for shape in inputs}
        if len(channels) != 1:
            raise ShapeError(
                "takes maps of as many channels each, "
                f"but gets samples of shapes {', '.join(map(str, inputs))}"
            )
        (deep,), cells = channels, self.output_size
        if self.flat:
            return (self.num_rois, deep * cells * cells)
        return (deep, self.num_rois * cells, cells)

    def _regions(self, shapes: Sequence[Shape]) -> Iterator[tuple[Ints, Ints, Ints]]:
        """Of each map: which regions it has, the rows and the columns of their cells."""
        for level, (_, height, width) in enumerate(shapes):
            chosen = np.arange(level, self.num_rois, len(shapes))
            middle = (np.arange(self.output_size) + 0.5) / (2 * self.output_size)
            down, right = chosen * GOLDEN % 1 / 2, chosen * GOLDEN**2 % 1 / 2
            rows = ((down[:, None] + middle) * height).astype(np.int64)
            columns = ((right[:, None] + middle) * width).astype(np.int64)
            yield chosen, rows[:, :, None], columns[:, None, :]

    def _tall(self, array: Array, channels: int) -> Array:
        """A view of what comes out, shape `(batch, rois, channels, height, width)`."""
        cells = self.output_size
        if self.flat:
            return array.reshape(len(array), self.num_rois, channels, cells, cells)
        split = array.reshape(len(array), channels, self.num_rois, cells, cells)
        return split.swapaxes(1, 2)

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        shapes = [x.shape[1:] for x in inputs]
        y: Array = np.empty((len(inputs[0]), *self.output_shape(*shapes)), dtype=inputs[0].dtype)
        out = self._tall(y, shapes[0][0])
        for x, (chosen, rows, columns) in zip(inputs, self._regions(shapes), strict=True):
            out[:, chosen] = x[:, :, rows, columns].swapaxes(1, 2)
        return y, shapes

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
        slopes, found = self._tall(dy, saved[0][0]), list[Array | None]()
        for shape, need, (chosen, rows, columns) in zip(
            saved, needs, self._regions(saved), strict=True
        ):
            dx = np.zeros((len(dy), *shape), dtype=dy.dtype) if need else None
            if dx is not None:
                places: Any = (..., rows, columns)
                np.add.at(dx, places, slopes[:, chosen].swapaxes(1, 2))
            found.append(dx)
        return tuple(found)

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        """Of each map: its regions' cells from what was sampled, eight operations a sample."""
        out = prod(self.output_shape(*inputs)) / len(inputs)
        each = Kernel(out * SAMPLES * 8, out * (SAMPLES + 1) * itemsize)
        return [each] * len(inputs)

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        """Each map's gradient is cleared, then cells are added to it."""
        cleared = [
            Kernel(0.0, float(prod(shape) * itemsize))
            for shape, need in zip(inputs, needs, strict=True)
            if need
        ]
        return cleared + self.forward_cost(inputs, itemsize)[: sum(needs)]

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept()
