"""Convolutions and transposed convolutions along one, two or three axes.

Neighbourhoods of pixels are laid out as the rows of a matrix, which BLAS multiplies by the weight;
only a part that fits a core's cache is laid out at a time.

References
----------
Chellapilla, Puri and Simard, "High performance convolutional neural networks for document
processing", IWFHR 2006.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import prod, sqrt
from typing import TYPE_CHECKING, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from simdp.arrays import Array
from simdp.spec import Bool, Int, problem
from simdp.workload.layers.base import (
    Buffer,
    Extents,
    Gradients,
    KeepsInput,
    KeepsNothing,
    Kernel,
    Margin1,
    Margin3,
    Needs,
    Padding1,
    Padding3,
    Parameter,
    Pass,
    Shape,
    ShapeError,
    Size1,
    Size3,
    channel_sum,
    channels_last,
    channels_second,
    check_channels,
    check_groups,
    image_shape,
    kaiming_uniform,
    repeated,
    rows_of,
    uniform,
)
from simdp.workload.layers.tensor_ops import Margin, Padding, Size


@dataclass(frozen=True)
class ConvWindow:
    """Window that slides over an image."""

    kernel: Extents
    """As torch's arguments, one length for each axis."""
    stride: Extents
    """As torch's arguments, one length for each axis."""
    dilation: Extents
    """As torch's arguments, one length for each axis."""
    before: Extents
    """Padding before and after the image along each axis."""
    after: Extents
    """Padding before and after the image along each axis."""
    ceil: bool = False
    """Whether a last window may extend beyond the end; it must begin on the image or before it."""

    @property
    def reach(self) -> Extents:
        """Extent of a window in pixels along each axis."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True))

    @property
    def is_pixel(self) -> bool:
        """Whether each window is one pixel and each pixel has a window."""
        return {*self.kernel, *self.stride} == {1} and {*self.before, *self.after} == {0}

    def count(self, shape: Shape) -> Extents:
        """Number of windows along each axis of an image, shape `(channels, *lengths)`.

        ``floor((length + padding - reach) / stride) + 1``; with ``ceil`` rounded up. Raises
        ShapeError if it is 0.
        """
        _, *lengths = image_shape(shape, len(self.kernel))
        extents = tuple(self._count(axis, length) for axis, length in enumerate(lengths))
        if min(extents) < 1:
            reach = " x ".join(map(str, self.reach))
            raise ShapeError(
                f"has windows of {reach} pixels, but gets images of "
                f"shape {shape}, which are smaller, even with the padding; make them larger, or "
                "kernel_size smaller"
            )
        return extents

    def _count(self, axis: int, length: int) -> int:
        room = length + self.before[axis] + self.after[axis] - self.reach[axis]
        step = self.stride[axis]
        if not self.ceil:
            return room // step + 1
        count = -(-room // step) + 1
        return count - 1 if (count - 1) * step >= length + self.before[axis] else count

    def span(self, count: Extents) -> Extents:
        """Pixels that this many windows cover, including the padding."""
        axes = zip(count, self.stride, self.reach, strict=True)
        return tuple((n - 1) * s + r for n, s, r in axes)

    def place(self, frame: Array, images: Array) -> None:
        """Copy channels-last images into a frame of size `span`; the padding is not written."""
        to, source = [slice(None)], [slice(None)]
        for axis, before in enumerate(self.before):
            begin, skip = max(before, 0), max(-before, 0)
            length = min(images.shape[axis + 1] - skip, frame.shape[axis + 1] - begin)
            to.append(slice(begin, begin + length))
            source.append(slice(skip, skip + length))
        frame[tuple(to)] = images[tuple(source)]

    def tap(self, frame: Array, count: Extents, place: Sequence[int]) -> Array:
        """View of one kernel position's pixel in each window; the frame is channels-last."""
        along = zip(place, self.dilation, self.stride, count, strict=True)
        return frame[slice(None), *(places(at * far, step, n) for at, far, step, n in along)]

    def taps(self, frame: Array, count: Extents, groups: int = 1) -> Array:
        """View of all windows in a contiguous frame, `(groups, batch, *count, *kernel, channels)`.

        The channels are those of one group. Neighbours that are adjacent in memory are joined to
        the channels of one pixel, so that they are copied in one piece.
        """
        image, *axes, item = frame.strides
        kernel, share = list(self.kernel), frame.shape[-1] // groups
        if groups == self.dilation[-1] == 1:
            kernel[-1], share = 1, kernel[-1] * share
        further = [step * far for step, far in zip(axes, self.dilation, strict=True)]
        along = [step * far for step, far in zip(axes, self.stride, strict=True)]
        strides = (frame.shape[-1] // groups * item, image, *along, *further, item)
        shape = (groups, len(frame), *count, *kernel, share)
        return np.lib.stride_tricks.as_strided(frame, shape, strides, writeable=False)


def places(begin: int, step: int, count: int) -> slice:
    """Slice of ``count`` positions, ``step`` apart."""
    return slice(begin, begin + (count - 1) * step + 1, step)


BLOCK_NBYTES = 150_000
"""Size of a block of neighbourhoods, which fits a core's cache."""

MIN_PIXELS = 256
"""With fewer per block, summing the blocks' weight gradients would cost too much."""


def neighbourhoods(
    x: Array, window: ConvWindow, count: Extents, groups: int
) -> Iterator[tuple[slice, Array]]:
    """Lay out the pixels of all windows, one block that fits the cache at a time.

    ``x`` has shape `(batch, *lengths, channels)`. Yields the slice of the output's pixels in the
    block, and an array of shape `(groups, pixels, kernel pixels * channels / groups)`, valid until
    the next block.
    """
    num_images, channels = len(x), x.shape[-1]
    depth, per_image = prod(window.kernel) * channels, prod(count)
    pixels = max(BLOCK_NBYTES // (depth * x.itemsize), MIN_PIXELS)
    if window.is_pixel and groups == 1 and x.flags.c_contiguous:
        flat = x.reshape(1, -1, channels)
        for begin in range(0, num_images * per_image, pixels):
            yield slice(begin, begin + pixels), flat[:, begin : begin + pixels]
        return
    images = min(max(pixels // per_image, 1), max(num_images, 1))
    cut = _cut(count, pixels)
    pixels_per_line = prod(count[cut + 1 :])
    lines = min(max(pixels // pixels_per_line, 1), count[cut])
    frame = np.zeros((images, *window.span(count), channels), dtype=x.dtype)
    seen = window.taps(frame, count, groups)
    room = np.empty((groups, images * lines * pixels_per_line, depth // groups), dtype=x.dtype)
    end = 0
    for first in range(0, num_images, images):
        part = x[first : first + images]
        window.place(frame[: len(part)], part)
        for outer in np.ndindex(count[:cut]):
            plane = seen[:, : len(part), *(slice(at, at + 1) for at in outer)]
            for line in range(0, count[cut], lines):
                here = plane[(slice(None),) * (cut + 2) + (slice(line, line + lines),)]
                begin, end = end, end + prod(here.shape[1 : 2 + len(count)])
                block = room[:, : end - begin]
                np.copyto(block.reshape(here.shape), here)
                yield slice(begin, end), block


def _cut(count: Extents, pixels: int) -> int:
    """Axis along which images are cut into blocks of about ``pixels``; the last stays whole."""
    most = max(len(count) - 2, 0)
    return next((axis for axis in range(most) if prod(count[axis + 1 :]) <= pixels), most)


def convolved(x: Array, weight: Array, window: ConvWindow, count: Extents) -> Array:
    """Cross-correlate ``count`` windows along each axis; the result is `(batch, *count, out)`.

    ``x`` has shape `(batch, *lengths, channels)`, the weight `(groups, *kernel, in / groups, out /
    groups)`.
    """
    groups, out = len(weight), weight.shape[-1]
    matrix = np.ascontiguousarray(weight).reshape(groups, -1, out)
    y = np.empty((len(x), *count, groups * out), dtype=x.dtype)
    pixels = _pixels(y, groups)
    for rows, block in neighbourhoods(x, window, count, groups):
        np.matmul(block, matrix, out=pixels[:, rows])
    return y


def _pixels(x: Array, groups: int) -> Array:
    """Channels-last values as one matrix per group, shape `(groups, pixels, channels / groups)`."""
    return x.reshape(prod(x.shape[:-1]), groups, x.shape[-1] // groups).transpose(1, 0, 2)


def gradients_of_unit_stride(
    x: Array, slope: Array, weight: Array, window: ConvWindow
) -> tuple[Array, Array]:
    """Gradients of the weight and of the input for stride 1, from neighbourhoods of the slope.

    The input's gradient is the slope correlated with the kernel rotated by half a turn. The same
    neighbourhoods, times the input, give the weight's gradient.

    ``x`` is the input, `(batch, *lengths, in)`, ``slope`` the gradient of the output, `(batch,
    *count, out)`; the weight has shape `(groups, out / groups, in / groups, *kernel)`.
    """
    before = _beyond(window.reach, window.before)
    after = _beyond(window.reach, window.after)
    back = ConvWindow(window.kernel, window.stride, window.dilation, before, after)
    groups, out, share, *kernel = weight.shape
    matrix = np.ascontiguousarray(np.moveaxis(_turned(weight, 3), (1, 2), (-2, -1)))
    matrix = matrix.reshape(groups, -1, share)
    dx = np.empty(x.shape, dtype=slope.dtype)
    onto = _pixels(dx, groups)
    given = _pixels(np.ascontiguousarray(x), groups).transpose(0, 2, 1)
    total = np.zeros((groups, share, matrix.shape[1]), dtype=slope.dtype)
    for rows, block in neighbourhoods(slope, back, x.shape[1:-1], groups):
        np.matmul(block, matrix, out=onto[:, rows])
        total += given[:, :, rows] @ block
    turned = _turned(total.reshape(groups, share, *kernel, out), 2, 1)
    return np.moveaxis(turned, -1, 1), dx


def _beyond(reach: Extents, margin: Extents) -> Extents:
    """Padding of the slope with which the rotated kernel covers every pixel of the input."""
    return tuple(far - 1 - near for far, near in zip(reach, margin, strict=True))


def _turned(weight: Array, first: int, rest: int = 0) -> Array:
    """View of a weight with its kernel axes reversed."""
    back, as_it_is = slice(None, None, -1), slice(None)
    kernel = weight.ndim - first - rest
    return weight[(as_it_is,) * first + (back,) * kernel + (as_it_is,) * rest]


def weight_gradient(x: Array, slope: Array, weight: Array, window: ConvWindow) -> Array:
    """Gradient of the weight from the input's neighbourhoods; see `gradients_of_unit_stride`."""
    groups, out, share, *kernel = weight.shape
    turned = _pixels(slope, groups).transpose(0, 2, 1)
    total = np.zeros((groups, out, prod(kernel) * share), dtype=slope.dtype)
    for rows, block in neighbourhoods(x, window, slope.shape[1:-1], groups):
        total += turned[:, :, rows] @ block
    return np.moveaxis(total.reshape(groups, out, *kernel, share), -1, 2)


def input_gradient(shape: Shape, slope: Array, weight: Array, window: ConvWindow) -> Array:
    """Gradient of the input: each kernel position adds to the pixels that it covered.

    ``shape`` is the input's, channels-last; the rest as in `gradients_of_unit_stride`, for any
    stride.
    """
    groups, out, share, *kernel = weight.shape
    matrix = np.ascontiguousarray(np.moveaxis(weight, 2, -1)).reshape(groups, out, -1)
    count = slope.shape[1:-1]
    size = tuple(
        max(span, before + length)
        for span, before, length in zip(window.span(count), window.before, shape[1:-1], strict=True)
    )
    # Adjacent kernel positions write to different pixels, so they are added in one piece.
    step = window.stride[-1] if window.dilation[-1] == 1 else 1
    wide = -(-size[-1] // step)
    frame = np.zeros((len(slope), *size[:-1], wide, step, groups, share), dtype=slope.dtype)
    along = ConvWindow(  # of pieces
        window.kernel,
        (*window.stride[:-1], window.stride[-1] // step),
        (*window.dilation[:-1], window.dilation[-1] if step == 1 else 1),
        window.before,
        window.after,
    )
    images = max(BLOCK_NBYTES // (prod(count) * matrix[:, 0].nbytes), 1)
    for first in range(0, len(slope), images):
        part, onto = slope[first : first + images], frame[first : first + images]
        sent = (_pixels(part, groups) @ matrix).reshape(groups, len(part), *count, *kernel, share)
        for place in product(*map(range, kernel[:-1]), range(0, kernel[-1], step)):
            here = sent[..., *place[:-1], place[-1] : place[-1] + step, :]
            seen = along.tap(onto, count, (*place[:-1], place[-1] // step))[
                ..., : here.shape[-2], :, :
            ]
            seen += np.moveaxis(here, 0, -2)
    dx = frame.reshape(len(slope), *size[:-1], wide * step, groups * share)
    inside = (slice(near, near + n) for near, n in zip(window.before, shape[1:-1], strict=True))
    return dx[slice(None), *inside]


BUNDLE_CHANNELS = 32
"""Channels from which BLAS products are fast."""


class AnyConvolution(KeepsInput):
    """Base of convolutions and transposed convolutions: weights, costs."""

    in_channels: Int = Field(ge=1, le=10**8)
    out_channels: Int = Field(ge=1, le=10**8)
    kernel_size: Extents
    stride: Extents
    if TYPE_CHECKING:  # declared last by the subclasses, the order of their keys
        groups: int
        bias: bool
    family = "convolutional"
    autocast = "lower"
    uses_cudnn: ClassVar[bool] = True
    keeps_for_weights: ClassVar[bool] = True
    splits_backward: ClassVar[bool] = True

    @abstractmethod
    def weight_shape(self) -> Shape:
        """Shape of the weight."""

    @abstractmethod
    def product(self, shape: Shape, itemsize: int) -> Kernel:
        """Cost of output, weight gradient or input gradient: each reads two and writes one."""

    def parameters(self) -> list[Parameter]:
        shape = self.weight_shape()
        fan = prod(shape[1:])
        weight = Parameter(f"{self.name}.weight", shape, kaiming_uniform(fan))
        bias = Parameter(f"{self.name}.bias", (self.out_channels,), uniform(1 / sqrt(fan)))
        return [weight, bias] if self.bias else [weight]

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        work, bias = self.product(inputs[0], itemsize), self.out_channels * self.bias
        return [work._replace(fixed=work.fixed + bias * itemsize)]

    def backward_cost(self, inputs: Sequence[Shape], itemsize: int, needs: Needs) -> list[Kernel]:
        work = self.product(inputs[0], itemsize)
        out = float(prod(self.output_shape(*inputs)))
        bias = Kernel(out, out * itemsize, self.out_channels * itemsize)
        return [work] * needs[0] + [work] + [bias] * self.bias


class Convolution(AnyConvolution):
    """Base: cross-correlation; the weight has shape `(out, in / groups, *kernel_size)`.

    Attributes
    ----------
    in_channels, out_channels : int
        Channels of input and output.
    kernel_size, stride : tuple of int
        One length for each axis; in YAML one number applies to all.
    """

    padding: Extents | str
    """Zeros at each side; "same" keeps the image's size, "valid" is 0."""
    dilation: Extents
    """One length for each axis; in YAML one number applies to all."""
    groups: Int = Field(1, ge=1)
    """Groups of channels that are convolved separately."""
    bias: Bool = True
    """Whether each channel has a bias."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        check_groups(self.groups, self.in_channels, self.out_channels)
        if self.padding == "same" and {*self.stride} != {1}:
            raise problem("padding: same needs stride 1; leave stride out, or give numbers.")
        return self

    @cached_property
    def window(self) -> ConvWindow:
        """Windows of the kernel on an image."""
        before = after = (0,) * len(self.kernel_size)
        if self.padding == "same":  # torch: an odd pixel goes below and right
            reach = ConvWindow(self.kernel_size, self.stride, self.dilation, before, after).reach
            before = tuple((length - 1) // 2 for length in reach)
            after = tuple(length // 2 for length in reach)
        elif not isinstance(self.padding, str):
            before = after = self.padding
        return ConvWindow(self.kernel_size, self.stride, self.dilation, before, after)

    def weight_shape(self) -> Shape:
        return (self.out_channels, self.in_channels // self.groups, *self.kernel_size)

    def output_shape(self, *inputs: Shape) -> Shape:
        check_channels(inputs[0], self.in_channels, len(self.kernel_size))
        return (self.out_channels, *self.window.count(inputs[0]))

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Array]:
        x = inputs[0]
        count = self.window.count(x.shape[1:])
        weight = np.moveaxis(self._grouped(run), (2, 1), (-2, -1))
        y = convolved(np.moveaxis(x, 1, -1), weight, self.window, count)
        if self.bias:
            rows = rows_of(y)
            rows += repeated(run.parameters[f"{self.name}.bias"], rows)
        return channels_second(y), x

    def backward(self, run: Pass, saved: Array, dy: Array, needs: Needs) -> Gradients:
        slope, x, dx = channels_last(dy), np.moveaxis(saved, 1, -1), None
        weight = self._grouped(run)
        if needs[0] and {*self.stride} == {1}:
            gradient, dx = gradients_of_unit_stride(x, slope, weight, self.window)
        else:
            gradient = weight_gradient(x, slope, weight, self.window)
            if needs[0]:
                dx = input_gradient(x.shape, slope, weight, self.window)
        self._add(run, gradient)
        if self.bias:
            run.add_gradient(f"{self.name}.bias", channel_sum(slope).astype(slope.dtype))
        return (dx if dx is None else channels_second(dx),)

    @cached_property
    def _bundle(self) -> int:
        """Number of groups computed as one: with few channels, zeros are cheaper than calls."""
        most = max(self.in_channels, self.out_channels) // self.groups
        fits = (n for n in range(1, self.groups + 1) if self.groups % n == 0)
        return max(n for n in fits if n == 1 or n * most <= BUNDLE_CHANNELS)

    def _grouped(self, run: Pass) -> Array:
        """The weight, shape `(parts, out / parts, in / parts, *kernel_size)`."""
        weight = run.parameters[f"{self.name}.weight"]
        out, share, *kernel = weight.shape
        parts, bundle = self.groups // self._bundle, self._bundle
        if bundle == 1:
            return weight.reshape(parts, out // parts, share, *kernel)
        out_per_group = out // self.groups
        dense = np.zeros((parts, bundle, out_per_group, bundle, share, *kernel), dtype=weight.dtype)
        _diagonal(dense)[...] = weight.reshape(parts, bundle, out_per_group, share, *kernel)
        return dense.reshape(parts, bundle * out_per_group, bundle * share, *kernel)

    def _add(self, run: Pass, gradient: Array) -> None:
        """Add a gradient of the grouped weight in the weight's shape."""
        name, bundle = f"{self.name}.weight", self._bundle
        room = run.room(name)
        parts, out, share, *kernel = gradient.shape
        split = gradient.reshape(parts, bundle, out // bundle, bundle, share // bundle, *kernel)
        room.reshape(parts, bundle, out // bundle, share // bundle, *kernel)[...] = _diagonal(split)
        run.add_gradient(name, room)

    def product(self, shape: Shape, itemsize: int) -> Kernel:
        out = float(prod(self.output_shape(shape)))
        weight = self.weight_shape()
        traffic = (prod(shape) + out) * itemsize
        return Kernel(2 * out * prod(weight[1:]), traffic, prod(weight) * itemsize)


def _diagonal(weight: Array) -> Array:
    """View of the blocks that connect a group to itself; axes 1 and 3 are the group."""
    view: Array = np.einsum("pgogc...->pgoc...", weight)
    return view


class TransposedConvolution(AnyConvolution):
    """Base: forward is the input gradient of a convolution.

    The weight has shape `(in, out / groups, *kernel_size)`.

    Attributes
    ----------
    in_channels, out_channels : int
        Channels of input and output.
    kernel_size, stride : tuple of int
        Those of the convolution in the other direction, one length for each axis; in YAML one
        number applies to all.
    """

    padding: Extents
    """Pixels cut off at each side of the output."""
    output_padding: Extents
    """Pixels added at the end of each axis; less than the stride or the dilation."""
    groups: Int = Field(1, ge=1)
    """Groups of channels that are convolved separately."""
    bias: Bool = True
    """Whether each channel has a bias."""
    dilation: Extents
    """Those of the convolution in the other direction, one length for each axis; in YAML one number
    applies to all."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        check_groups(self.groups, self.in_channels, self.out_channels)
        axes = zip(self.output_padding, self.stride, self.dilation, strict=True)
        if any(more >= max(stride, dilation) for more, stride, dilation in axes):
            raise problem(
                f"output_padding: {list(self.output_padding)} is not less than the stride, "
                f"{list(self.stride)}, or the dilation, {list(self.dilation)}; write less."
            )
        return self

    @cached_property
    def window(self) -> ConvWindow:
        """Windows of the kernel on the output."""
        return ConvWindow(self.kernel_size, self.stride, self.dilation, self.padding, self.padding)

    def weight_shape(self) -> Shape:
        return (self.in_channels, self.out_channels // self.groups, *self.kernel_size)

    def output_shape(self, *inputs: Shape) -> Shape:
        """``(length - 1) stride - 2 padding + dilation (kernel - 1) + output_padding + 1``."""
        check_channels(inputs[0], self.in_channels, len(self.kernel_size))
        span = self.window.span(inputs[0][1:])
        axes = zip(span, self.padding, self.output_padding, strict=True)
        extents = tuple(n - 2 * less + more for n, less, more in axes)
        if min(extents) < 1:
            raise ShapeError(
                f"has no output for samples of shape {inputs[0]}: the padding cuts off all "
                "of it; reduce the padding"
            )
        return (self.out_channels, *extents)

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Array]:
        x = channels_last(inputs[0])
        out, *lengths = self.output_shape(inputs[0].shape[1:])
        y = input_gradient((len(x), *lengths, out), x, self._grouped(run), self.window)
        y = np.ascontiguousarray(y)
        if self.bias:
            rows = rows_of(y)
            rows += repeated(run.parameters[f"{self.name}.bias"], rows)
        return channels_second(y), x

    def backward(self, run: Pass, saved: Array, dy: Array, needs: Needs) -> Gradients:
        slope, weight = channels_last(dy), self._grouped(run)
        gradient = weight_gradient(slope, saved, weight, self.window)
        room = run.room(f"{self.name}.weight")
        room[...] = gradient.reshape(room.shape)
        run.add_gradient(f"{self.name}.weight", room)
        if self.bias:
            run.add_gradient(f"{self.name}.bias", channel_sum(slope).astype(slope.dtype))
        if not needs[0]:
            return (None,)
        kernel = np.moveaxis(weight, (2, 1), (-2, -1))
        return (channels_second(convolved(slope, kernel, self.window, saved.shape[1:-1])),)

    def _grouped(self, run: Pass) -> Array:
        """The weight, shape `(groups, in / groups, out / groups, *kernel_size)`."""
        weight = run.parameters[f"{self.name}.weight"]
        return weight.reshape(self.groups, self.in_channels // self.groups, *weight.shape[1:])

    def product(self, shape: Shape, itemsize: int) -> Kernel:
        """Each input value meets the kernel once."""
        given, out = float(prod(shape)), prod(self.output_shape(shape))
        weight = self.weight_shape()
        traffic = (given + out) * itemsize
        return Kernel(2 * given * prod(weight[1:]), traffic, prod(weight) * itemsize)


class Conv1d(Convolution):
    """Cross-correlation along the length."""

    kind: Literal["conv1d"] = "conv1d"
    kernel_size: Size1
    stride: Size1 = (1,)
    padding: Padding1 = (0,)
    dilation: Size1 = (1,)


class Conv2d(Convolution):
    """Cross-correlation along height and width."""

    kind: Literal["conv2d"] = "conv2d"
    kernel_size: Size
    stride: Size = (1, 1)
    padding: Padding = (0, 0)
    dilation: Size = (1, 1)


class Conv3d(Convolution):
    """Cross-correlation along depth, height and width."""

    kind: Literal["conv3d"] = "conv3d"
    kernel_size: Size3
    stride: Size3 = (1, 1, 1)
    padding: Padding3 = (0, 0, 0)
    dilation: Size3 = (1, 1, 1)


class ConvTranspose1d(TransposedConvolution):
    """Transposed convolution along the length."""

    kind: Literal["conv_transpose1d"] = "conv_transpose1d"
    kernel_size: Size1
    stride: Size1 = (1,)
    padding: Margin1 = (0,)
    output_padding: Margin1 = (0,)
    dilation: Size1 = (1,)


class ConvTranspose2d(TransposedConvolution):
    """Transposed convolution along height and width."""

    kind: Literal["conv_transpose2d"] = "conv_transpose2d"
    kernel_size: Size
    stride: Size = (1, 1)
    padding: Margin = (0, 0)
    output_padding: Margin = (0, 0)
    dilation: Size = (1, 1)


class ConvTranspose3d(TransposedConvolution):
    """Transposed convolution along depth, height and width."""

    kind: Literal["conv_transpose3d"] = "conv_transpose3d"
    kernel_size: Size3
    stride: Size3 = (1, 1, 1)
    padding: Margin3 = (0, 0, 0)
    output_padding: Margin3 = (0, 0, 0)
    dilation: Size3 = (1, 1, 1)


class FrozenConv2d(KeepsNothing):
    """Convolution with loaded weights, which are buffers without gradients.

    Without a file of weights, each output is the mean over its window.
    """

    kind: Literal["frozen_conv2d"] = "frozen_conv2d"
    conv: Conv2d

    family = "convolutional"
    autocast = "lower"
    uses_cudnn: ClassVar[bool] = True

    def buffers(self) -> list[Buffer]:
        return [
            Buffer(p.name, p.shape, 1 / prod(p.shape[1:]) if len(p.shape) > 1 else 0.0)
            for p in self.conv.parameters()
        ]

    def output_shape(self, *inputs: Shape) -> Shape:
        return self.conv.output_shape(*inputs)

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Array]:
        return self.conv.forward(replace(run, parameters=run.buffers), *inputs)

    def backward(self, run: Pass, saved: Array, dy: Array, needs: Needs) -> Gradients:
        if not needs[0]:
            return (None,)
        aside = replace(run, parameters=run.buffers, gradients={}, into={})
        return self.conv.backward(aside, saved, dy, needs)

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        return self.conv.forward_cost(inputs, itemsize)

    def backward_cost(self, inputs: Sequence[Shape], itemsize: int, needs: Needs) -> list[Kernel]:
        """Only the input's gradient, the first kernel of a convolution's backward."""
        return self.conv.backward_cost(inputs, itemsize, needs)[: sum(needs)]
