"""AvgPool2d: the mean of each window, as torch.nn.AvgPool2d."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from math import prod
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from pydantic import model_validator

from simdp.spec import Bool
from simdp.workload.layers.base import Array, Ints, Kept, Kernel, Layer, Pass, Shape
from simdp.workload.layers.channels import channels_last, channels_second
from simdp.workload.layers.max_pool2d import check_padding
from simdp.workload.layers.window import (
    Margin,
    Pair,
    Size,
    Window,
)


class Bins(NamedTuple):
    """What is averaged along one axis: pixels ``begin`` to ``end``, divided by ``divisor``."""

    begin: Ints
    end: Ints
    divisor: Ints

    def shares(self, length: int, like: Array) -> Array:
        """Matrix from pixels to means, shape `(bins, length)`."""
        pixel = np.arange(length)
        inside = (pixel >= self.begin[:, None]) & (pixel < self.end[:, None])
        return (inside / self.divisor[:, None]).astype(like.dtype)


class AveragePool(Layer):
    """Base of the layers that average over rectangles.

    A rectangle's mean is a mean of means, along one axis after the other: two matrix products.
    """

    @abstractmethod
    def count(self, shape: Shape) -> Pair:
        """Rectangles along each axis of an image, shape `(channels, height, width)`."""

    @abstractmethod
    def bins(self, axis: int, length: int, count: int) -> Bins:
        """Cut an axis of an image: 0 is its height, 1 its width."""

    def output_shape(self, *inputs: Shape) -> Shape:
        count = self.count(inputs[0])
        return (inputs[0][0], *count)

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        x = inputs[0]
        count = self.count(x.shape[1:])
        shares = [
            self.bins(axis, x.shape[axis + 2], count[axis]).shares(x.shape[axis + 2], x)
            for axis in (0, 1)
        ]
        return _along_both(x, *shares), shares

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
        return (_along_both(dy, saved[0].T, saved[1].T) if needs[0] else None,)


class AvgPool2d(AveragePool):
    """Mean over windows.

    Attributes
    ----------
    kernel_size, stride : (int, int)
        Height and width; in YAML one number stands for both. The stride is the kernel's size
        where none is given.
    padding : (int, int)
        Zeros at each side, half a window at most.
    ceil_mode : bool
        Whether a last window may hang over the end.
    count_include_pad : bool
        Whether the zeros count in the mean.
    """

    kind: Literal["avg_pool2d"] = "avg_pool2d"
    kernel_size: Size
    stride: Size | None = None
    padding: Margin = (0, 0)
    ceil_mode: Bool = False
    count_include_pad: Bool = True

    @model_validator(mode="after")
    def _padding_is_narrow(self) -> Self:
        check_padding(self.padding, self.kernel_size)
        return self

    @property
    def window(self) -> Window:
        """The windows' places on an image."""
        stride = self.stride or self.kernel_size
        return Window(self.kernel_size, stride, (1, 1), self.padding, self.padding, self.ceil_mode)

    def count(self, shape: Shape) -> Pair:
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

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        return self.forward_cost(inputs, itemsize) * needs[0]

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept(inputs=(0,))


def _along_both(x: Array, tall: Array, wide: Array) -> Array:
    """Multiply an image's columns by one matrix and its rows by another."""
    last = channels_last(x)
    num, height, width, channels = last.shape
    y = tall @ last.reshape(num, height, width * channels)
    y = wide @ y.reshape(num * len(tall), width, channels)
    return channels_second(y.reshape(num, len(tall), len(wide), channels))
