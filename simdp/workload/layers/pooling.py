"""Pooling, RoIAlign and upsampling."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import DTypeLike
from pydantic import Field, model_validator

from simdp.arrays import Array, Ints
from simdp.spec import Bool, Int, problem
from simdp.workload.layers.base import (
    ArrayPair,
    Extents,
    Gradients,
    KeepsInput,
    KeepsNothing,
    Kept,
    Kernel,
    Layer,
    Margin1,
    Margin3,
    Needs,
    Pass,
    Shape,
    ShapeError,
    Size1,
    Size3,
    blocks,
    channels_last,
    channels_second,
    image_shape,
    sequence_shape,
)
from simdp.workload.layers.conv import ConvWindow
from simdp.workload.layers.tensor_ops import Margin, Size


class WindowPool(Layer):
    """Base of layers that pool over windows of equal size."""

    kernel_size: Extents
    """One length for each axis; in YAML one number applies to all. The stride is the kernel's size
    by default."""
    stride: Extents | None
    """One length for each axis; in YAML one number applies to all. The stride is the kernel's size
    by default."""
    padding: Extents
    """Neutral pixels at each side, at most half a window."""
    ceil_mode: Bool = False
    """Whether a last window may extend beyond the end."""

    @model_validator(mode="after")
    def _padding_is_narrow(self) -> Self:
        """Raise if a window could lie entirely in the padding, as torch does."""
        both = zip(self.padding, self.kernel_size, strict=True)
        if any(2 * margin > length for margin, length in both):
            raise problem(
                f"padding: {list(self.padding)} is more than half of kernel_size, "
                f"{list(self.kernel_size)}; write less."
            )
        return self

    def distance(self) -> Extents:
        """Distance between neighbouring pixels of a window; 1 by default."""
        return (1,) * len(self.kernel_size)

    @property
    def window(self) -> ConvWindow:
        """The windows on an image."""
        stride, padding = self.stride or self.kernel_size, self.padding
        return ConvWindow(
            self.kernel_size, stride, self.distance(), padding, padding, self.ceil_mode
        )


class Bins(NamedTuple):
    """Bins along one axis: pixels ``begin`` to ``end`` are summed and divided by ``divisor``."""

    begin: Ints
    end: Ints
    divisor: Ints

    def shares(self, length: int, like: Array) -> Array:
        """Matrix from pixels to means, shape `(bins, length)`."""
        pixel = np.arange(length)
        inside = (pixel >= self.begin[:, None]) & (pixel < self.end[:, None])
        return (inside / self.divisor[:, None]).astype(like.dtype)


class AveragePool(Layer):
    """Base of layers that average over rectangles.

    A rectangle's mean is a mean of means along one axis after the other: matrix products.
    """

    @abstractmethod
    def count(self, shape: Shape) -> Extents:
        """Number of rectangles along each axis of an image, shape `(channels, *lengths)`."""

    @abstractmethod
    def bins(self, axis: int, length: int, count: int) -> Bins:
        """Bins of an axis of an image; axis 0 is the first after the channels."""

    def output_shape(self, *inputs: Shape) -> Shape:
        count = self.count(inputs[0])
        return (inputs[0][0], *count)

    def backward_cost(self, inputs: Sequence[Shape], itemsize: int, needs: Needs) -> list[Kernel]:
        return self.forward_cost(inputs, itemsize) * needs[0]

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, list[Array]]:
        x = inputs[0]
        count = self.count(x.shape[1:])
        shares = [
            self.bins(axis, x.shape[axis + 2], cells).shares(x.shape[axis + 2], x)
            for axis, cells in enumerate(count)
        ]
        return _along_all(x, shares), shares

    def backward(self, run: Pass, saved: list[Array], dy: Array, needs: Needs) -> Gradients:
        return (_along_all(dy, [share.T for share in saved]) if needs[0] else None,)


def _along_all(x: Array, shares: Sequence[Array]) -> Array:
    """Multiply an image along each axis by that axis's matrix."""
    y = channels_last(x)
    shape = list(y.shape)
    for axis, share in enumerate(shares, 1):
        y = share @ y.reshape(prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :]))
        shape[axis] = len(share)
    return channels_second(y.reshape(shape))


class AdaptiveAvgPool(AveragePool):
    """Base: mean over the cells of a grid; cell i begins at ``floor(i length / count)``."""

    output_size: Extents
    """Cells along each axis; in YAML one number applies to all."""

    def count(self, shape: Shape) -> Extents:
        image_shape(shape, len(self.output_size))
        return self.output_size

    def bins(self, axis: int, length: int, count: int) -> Bins:
        cell = np.arange(count)
        begin, end = cell * length // count, -(-(cell + 1) * length // count)
        return Bins(begin, end, end - begin)

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        before, out = float(prod(inputs[0])), prod(self.output_shape(*inputs))
        return [Kernel(before, (before + out) * itemsize)]

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        # For one cell torch uses a plain mean, which keeps nothing.
        return Kept() if {*self.output_size} == {1} else Kept(inputs=(0,))


class AdaptiveAvgPool1d(AdaptiveAvgPool):
    """Mean over the cells of a grid on series."""

    kind: Literal["adaptive_avg_pool1d"] = "adaptive_avg_pool1d"
    output_size: Size1


class AdaptiveAvgPool2d(AdaptiveAvgPool):
    """Mean over the cells of a grid on images."""

    kind: Literal["adaptive_avg_pool2d"] = "adaptive_avg_pool2d"
    output_size: Size


class AdaptiveAvgPool3d(AdaptiveAvgPool):
    """Mean over the cells of a grid on volumes."""

    kind: Literal["adaptive_avg_pool3d"] = "adaptive_avg_pool3d"
    output_size: Size3


class AvgPool(KeepsInput, AveragePool, WindowPool):
    """Base: mean over windows; the padding is zeros."""

    count_include_pad: Bool = True
    """Whether the mean counts the zeros."""

    def count(self, shape: Shape) -> Extents:
        return self.window.count(shape)

    def bins(self, axis: int, length: int, count: int) -> Bins:
        padding = self.padding[axis]
        begin = np.arange(count) * self.window.stride[axis] - padding
        end = np.minimum(begin + self.kernel_size[axis], length + padding)
        real = np.minimum(end, length) - np.maximum(begin, 0)
        return Bins(begin, end, end - begin if self.count_include_pad else real)

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        before, out = prod(inputs[0]), float(prod(self.output_shape(*inputs)))
        return [Kernel(out * prod(self.kernel_size), (before + out) * itemsize)]


class AvgPool1d(AvgPool):
    """Mean over windows of series."""

    kind: Literal["avg_pool1d"] = "avg_pool1d"
    kernel_size: Size1
    stride: Size1 | None = None
    padding: Margin1 = (0,)


class AvgPool2d(AvgPool):
    """Mean over windows of images."""

    kind: Literal["avg_pool2d"] = "avg_pool2d"
    kernel_size: Size
    stride: Size | None = None
    padding: Margin = (0, 0)


class AvgPool3d(AvgPool):
    """Mean over windows of volumes."""

    kind: Literal["avg_pool3d"] = "avg_pool3d"
    kernel_size: Size3
    stride: Size3 | None = None
    padding: Margin3 = (0, 0, 0)


BLOCK_ELEMENTS = 2**17
"""Elements per block of images, which fits a core's cache."""

INDEX_NBYTES = 8
"""torch keeps the position of each maximum as int64."""


class MaxPool(WindowPool):
    """Base: maximum over windows; of equal pixels the first gets the gradient, as in torch.

    The padding is minus infinity.
    """

    dilation: Extents
    """Distance between the pixels of a window, along each axis; in YAML one number applies to
    all."""

    def distance(self) -> Extents:
        return self.dilation

    def output_shape(self, *inputs: Shape) -> Shape:
        count = self.window.count(inputs[0])
        return (inputs[0][0], *count)

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, ArrayPair]:
        x = np.moveaxis(inputs[0], 1, -1)
        count = self.window.count(inputs[0].shape[1:])
        y = np.empty((len(x), *count, x.shape[-1]), dtype=x.dtype)
        for some in self._blocks(x):
            frame = self._framed(x[some], count)
            best = y[some]
            best[...] = self.window.tap(frame, count, (0,) * len(count))
            for place in np.ndindex(self.kernel_size):
                np.maximum(best, self.window.tap(frame, count, place), out=best)
        return channels_second(y), (x, y)

    def backward(self, run: Pass, saved: ArrayPair, dy: Array, needs: Needs) -> Gradients:
        if not needs[0]:
            return (None,)
        x, y = saved
        slope = channels_last(dy)
        dx = np.zeros(x.shape, dtype=x.dtype)
        for some in self._blocks(x):
            self._send_back(x[some], y[some], slope[some], dx[some])
        return (channels_second(dx),)

    def _send_back(self, x: Array, y: Array, slope: Array, dx: Array) -> None:
        """Add each slope to the first pixel that equals the maximum of its window."""
        count = y.shape[1:-1]
        frame = self._framed(x, count)
        sent, part, free = np.zeros_like(frame), np.empty_like(y), np.ones(y.shape, dtype=bool)
        for place in np.ndindex(self.kernel_size):
            here = self.window.tap(frame, count, place) == y
            here &= free
            free ^= here
            onto = self.window.tap(sent, count, place)
            onto += np.multiply(slope, here, out=part)
        both = zip(self.padding, dx.shape[1:-1], strict=True)
        inner = sent[slice(None), *(slice(near, near + n) for near, n in both)]
        dx[tuple(map(slice, inner.shape))] = inner

    def _blocks(self, x: Array) -> Iterator[slice]:
        return blocks(len(x), prod(x.shape[1:]), BLOCK_ELEMENTS)

    def _framed(self, x: Array, count: Extents) -> Array:
        frame = np.full((len(x), *self.window.span(count), x.shape[-1]), -np.inf, dtype=x.dtype)
        self.window.place(frame, x)
        return frame

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        before, out = prod(inputs[0]), float(prod(self.output_shape(*inputs)))
        nbytes = (before + out) * itemsize + out * INDEX_NBYTES
        return [Kernel(out * prod(self.kernel_size), nbytes)]

    def backward_cost(self, inputs: Sequence[Shape], itemsize: int, needs: Needs) -> list[Kernel]:
        before, out = prod(inputs[0]), float(prod(self.output_shape(*inputs)))
        return [Kernel(out, (before + out) * itemsize + out * INDEX_NBYTES)] * needs[0]

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept(inputs=(0,), nbytes=float(prod(self.output_shape(*inputs))) * INDEX_NBYTES)


class MaxPool1d(MaxPool):
    """Maximum over windows of series."""

    kind: Literal["max_pool1d"] = "max_pool1d"
    kernel_size: Size1
    stride: Size1 | None = None
    padding: Margin1 = (0,)
    dilation: Size1 = (1,)


class MaxPool2d(MaxPool):
    """Maximum over windows of images."""

    kind: Literal["max_pool2d"] = "max_pool2d"
    kernel_size: Size
    stride: Size | None = None
    padding: Margin = (0, 0)
    dilation: Size = (1, 1)


class MaxPool3d(MaxPool):
    """Maximum over windows of volumes."""

    kind: Literal["max_pool3d"] = "max_pool3d"
    kernel_size: Size3
    stride: Size3 | None = None
    padding: Margin3 = (0, 0, 0)
    dilation: Size3 = (1, 1, 1)


class MeanPool(Layer):
    """Mean over the rows of a sequence."""

    kind: Literal["mean_pool"] = "mean_pool"
    pad_id: Int | None = None
    """If given, the layer also takes the tokens, and rows of this token do not count. A sample of
    padding alone gets zeros."""

    most_inputs: ClassVar[int] = 2

    def output_shape(self, *inputs: Shape) -> Shape:
        length, width = sequence_shape(inputs[0])
        if self.pad_id is not None and inputs[1:] != ((length,),):
            raise ShapeError(f"takes the tokens of {length} rows too, but gets {inputs[1:]}")
        return (width,)

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Array]:
        x = inputs[0]
        share = np.full((len(x), 1, x.shape[1]), 1 / max(1, x.shape[1]), dtype=x.dtype)
        if self.pad_id is not None:
            counts = inputs[1] != self.pad_id
            share[:, 0] = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        return (share @ x)[:, 0], share

    def backward(self, run: Pass, saved: Array, dy: Array, needs: Needs) -> Gradients:
        dx = saved.swapaxes(1, 2) * dy[:, None] if needs[0] else None
        return (dx, None)[: 1 + (self.pad_id is not None)]

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        """A product with the mask, if any, and a sum."""
        size, width = float(prod(inputs[0])), inputs[0][-1]
        masked = [Kernel(size, 2 * size * itemsize)] * (self.pad_id is not None)
        return [*masked, Kernel(size, (size + width) * itemsize)]

    def backward_cost(self, inputs: Sequence[Shape], itemsize: int, needs: Needs) -> list[Kernel]:
        size, width = float(prod(inputs[0])), inputs[0][-1]
        masked = [Kernel(size, 2 * size * itemsize)] * (self.pad_id is not None)
        return [Kernel(size, (size + width) * itemsize), *masked] * needs[0]

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept(nbytes=0.0 if self.pad_id is None else float(inputs[0][0] * itemsize))


SAMPLES = 4
"""Points sampled per cell, 2 x 2, each interpolated between four pixels."""

GOLDEN = 0.6180339887498949
"""The fractional parts of its multiples spread evenly over [0, 1)."""


class RoIAlign(KeepsNothing):
    """``num_rois`` regions of equally many cells, distributed over the maps in turn.

    In reality a detector's results place the regions. Here their places are fixed, spread over the
    maps, and a cell is the pixel in its middle; the cost is that of torchvision.ops.roi_align.

    References
    ----------
    He et al., "Mask R-CNN", ICCV 2017 (arXiv 1703.06870), section 3;
    torchvision/ops/poolers.py.
    """

    kind: Literal["roi_align"] = "roi_align"
    num_rois: Int = Field(ge=1)
    """Regions of a sample."""
    output_size: Int = Field(ge=1)
    """Cells along the height and the width of a region."""
    flat: Bool = False
    """Whether a region becomes a row of features, for linear layers; else regions are stacked
    vertically in one tall image, for convolutions."""

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
        """For each map: numbers of its regions, rows and columns of their cells."""
        for level, (_, height, width) in enumerate(shapes):
            chosen = np.arange(level, self.num_rois, len(shapes))
            middle = (np.arange(self.output_size) + 0.5) / (2 * self.output_size)
            down, right = chosen * GOLDEN % 1 / 2, chosen * GOLDEN**2 % 1 / 2
            rows = ((down[:, None] + middle) * height).astype(np.int64)
            columns = ((right[:, None] + middle) * width).astype(np.int64)
            yield chosen, rows[:, :, None], columns[:, None, :]

    def _tall(self, array: Array, channels: int) -> Array:
        """View of the output, shape `(batch, rois, channels, height, width)`."""
        cells = self.output_size
        if self.flat:
            return array.reshape(len(array), self.num_rois, channels, cells, cells)
        split = array.reshape(len(array), channels, self.num_rois, cells, cells)
        return split.swapaxes(1, 2)

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, list[Shape]]:
        shapes = [x.shape[1:] for x in inputs]
        y: Array = np.empty((len(inputs[0]), *self.output_shape(*shapes)), dtype=inputs[0].dtype)
        out = self._tall(y, shapes[0][0])
        for x, (chosen, rows, columns) in zip(inputs, self._regions(shapes), strict=True):
            out[:, chosen] = x[:, :, rows, columns].swapaxes(1, 2)
        return y, shapes

    def backward(self, run: Pass, saved: list[Shape], dy: Array, needs: Needs) -> Gradients:
        slopes, gradients = self._tall(dy, saved[0][0]), list[Array | None]()
        for shape, need, (chosen, rows, columns) in zip(
            saved, needs, self._regions(saved), strict=True
        ):
            dx = np.zeros((len(dy), *shape), dtype=dy.dtype) if need else None
            if dx is not None:
                places: Any = (..., rows, columns)
                np.add.at(dx, places, slopes[:, chosen].swapaxes(1, 2))
            gradients.append(dx)
        return tuple(gradients)

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        """One kernel per map, with eight operations per sampled point."""
        out = prod(self.output_shape(*inputs)) / len(inputs)
        per_input = Kernel(out * SAMPLES * 8, out * (SAMPLES + 1) * itemsize)
        return [per_input] * len(inputs)

    def backward_cost(self, inputs: Sequence[Shape], itemsize: int, needs: Needs) -> list[Kernel]:
        """Clears each map's gradient, then adds the cells' gradients."""
        cleared = [
            Kernel(0.0, float(prod(shape) * itemsize))
            for shape, need in zip(inputs, needs, strict=True)
            if need
        ]
        return cleared + self.forward_cost(inputs, itemsize)[: sum(needs)]


class Upsample(KeepsNothing):
    """Upsampling by repeated pixels or bilinear interpolation."""

    kind: Literal["upsample"] = "upsample"
    scale_factor: Size
    """Along the height and the width; in YAML one number applies to both."""
    mode: Literal["nearest", "bilinear"] = "nearest"
    """Repeats pixels, or interpolates between the four nearest."""
    align_corners: Bool | None = None
    """bilinear: whether the corner pixels keep their places; by default the image's edges do."""

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

    def _lines(self, shape: Shape, dtype: DTypeLike) -> list[Array]:
        """For each axis, weights of the old pixels in the new ones, shape `(new, old)`."""
        sizes = zip(shape[-2:], self.scale_factor, strict=True)
        return [_line(old, scale, bool(self.align_corners), dtype) for old, scale in sizes]

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Shape]:
        if self.mode == "bilinear":
            rows, columns = self._lines(inputs[0].shape, inputs[0].dtype)
            return rows @ (inputs[0] @ columns.T), inputs[0].shape
        num, height, width, channels = (last := np.moveaxis(inputs[0], 1, -1)).shape
        tall, wide = self.scale_factor
        y = np.empty((num, height, tall, width, wide, channels), dtype=last.dtype)
        y[...] = last[:, :, None, :, None]
        shape = inputs[0].shape
        return channels_second(y.reshape(num, height * tall, width * wide, channels)), shape

    def backward(self, run: Pass, saved: Shape, dy: Array, needs: Needs) -> Gradients:
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

    def backward_cost(self, inputs: Sequence[Shape], itemsize: int, needs: Needs) -> list[Kernel]:
        before, out = prod(inputs[0]), float(prod(self.output_shape(*inputs)))
        flops = (8 if self.mode == "bilinear" else 1) * out
        return [Kernel(flops, (before + out) * itemsize)] * needs[0]


def _line(old: int, scale: int, align_corners: bool, dtype: DTypeLike) -> Array:
    """Weights of an axis's old pixels in the new ones, as torch's area_pixel_compute."""
    new = np.arange(old * scale)
    if align_corners:
        place = new * ((old - 1) / (old * scale - 1) if old * scale > 1 else 0.0)
    else:
        place = np.maximum((new + 0.5) / scale - 0.5, 0.0)
    below = place.astype(np.int64)
    weights = np.zeros((len(new), old), dtype=dtype)
    share = place - below
    weights[new, below] = 1 - share
    weights[new, np.minimum(below + 1, old - 1)] += share.astype(dtype)
    return weights
