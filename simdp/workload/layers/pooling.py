"""Pooling: bases of the layers that make one pixel of many."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from pydantic import model_validator

from simdp.arrays import Array, Ints
from simdp.spec import Bool, problem
from simdp.workload.layers.arrays.channels import channels_last, channels_second
from simdp.workload.layers.arrays.window import Window
from simdp.workload.layers.base import Layer, Pass, Shape
from simdp.workload.layers.pairs import Margin, Pair, Size


class WindowPool(Layer):
    """Base of the layers that pool over windows of equal size.

    Attributes
    ----------
    kernel_size, stride : (int, int)
        Height and width; in YAML one number stands for both. The stride is the kernel's size
        where none is given.
    padding : (int, int)
        Pixels at each side that change nothing, half a window at most.
    ceil_mode : bool
        Whether a last window may hang over the end.
    """

    kernel_size: Size
    stride: Size | None = None
    padding: Margin = (0, 0)
    ceil_mode: Bool = False

    @model_validator(mode="after")
    def _padding_is_narrow(self) -> Self:
        """Refuse windows that may lie in the padding alone, as torch does."""
        both = zip(self.padding, self.kernel_size, strict=True)
        if any(2 * margin > length for margin, length in both):
            raise problem(
                f"padding: {list(self.padding)} is more than half of kernel_size, "
                f"{list(self.kernel_size)}; write less."
            )
        return self

    def distance(self) -> Pair:
        """Pixels from one that a window sees to the next; by default 1, its neighbour."""
        return (1, 1)

    @property
    def window(self) -> Window:
        """The windows' places on an image."""
        stride, padding = self.stride or self.kernel_size, self.padding
        return Window(self.kernel_size, stride, self.distance(), padding, padding, self.ceil_mode)


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


def _along_both(x: Array, tall: Array, wide: Array) -> Array:
    """Multiply an image's columns by one matrix and its rows by another."""
    last = channels_last(x)
    num, height, width, channels = last.shape
    y = tall @ last.reshape(num, height, width * channels)
    y = wide @ y.reshape(num * len(tall), width, channels)
    return channels_second(y.reshape(num, len(tall), len(wide), channels))
