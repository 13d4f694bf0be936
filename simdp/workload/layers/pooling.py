"""Pooling: bases of the layers that make one pixel of many."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple, Self

import numpy as np
from pydantic import model_validator

from simdp.arrays import Array, Ints
from simdp.spec import Bool, problem
from simdp.workload.layers.arrays.channels import channels_last, channels_second
from simdp.workload.layers.arrays.window import Window
from simdp.workload.layers.base import Layer, Pass, Shape
from simdp.workload.layers.extents import Extents


class WindowPool(Layer):
    """Base of the layers that pool over windows of equal size.

    Attributes
    ----------
    kernel_size, stride : tuple of int
        One length for each axis; in YAML one number stands for all. The stride is the kernel's
        size where none is given.
    padding : tuple of int
        Pixels at each side that change nothing, half a window at most.
    ceil_mode : bool
        Whether a last window may hang over the end.
    """

    kernel_size: Extents
    stride: Extents | None
    padding: Extents
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

    def distance(self) -> Extents:
        """Pixels from one that a window sees to the next; by default 1, its neighbour."""
        return (1,) * len(self.kernel_size)

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

    A rectangle's mean is a mean of means, along one axis after the other: matrix products.
    """

    @abstractmethod
    def count(self, shape: Shape) -> Extents:
        """Rectangles along each axis of an image, shape `(channels, height, width)` or alike."""

    @abstractmethod
    def bins(self, axis: int, length: int, count: int) -> Bins:
        """Cut an axis of an image; 0 is the first behind the channels."""

    def output_shape(self, *inputs: Shape) -> Shape:
        count = self.count(inputs[0])
        return (inputs[0][0], *count)

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        x = inputs[0]
        count = self.count(x.shape[1:])
        shares = [
            self.bins(axis, x.shape[axis + 2], cells).shares(x.shape[axis + 2], x)
            for axis, cells in enumerate(count)
        ]
        return _along_all(x, shares), shares

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
        return (_along_all(dy, [share.T for share in saved]) if needs[0] else None,)


def _along_all(x: Array, shares: Sequence[Array]) -> Array:
    """Multiply an image's lines along each axis by that axis's matrix."""
    y = channels_last(x)
    shape = list(y.shape)
    for axis, share in enumerate(shares, 1):
        y = share @ y.reshape(prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :]))
        shape[axis] = len(share)
    return channels_second(y.reshape(shape))
