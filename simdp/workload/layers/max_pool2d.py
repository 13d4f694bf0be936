"""MaxPool2d: the largest pixel of each window, as torch.nn.MaxPool2d."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, Literal

import numpy as np

from simdp.arrays import Array
from simdp.workload.layers.arrays.blocks import blocks
from simdp.workload.layers.arrays.channels import channels_last, channels_second
from simdp.workload.layers.base import Kept, Kernel, Pass, Shape
from simdp.workload.layers.pairs import Pair, Size
from simdp.workload.layers.pooling import WindowPool

BLOCK_ELEMENTS = 2**17
"""Of the images that are worked on at a time, so that they stay in a core's cache."""

INDEX_NBYTES = 8
"""torch keeps where each maximum was, as int64."""


class MaxPool2d(WindowPool):
    """Maximum over windows; of equal pixels the first gets the gradient, as in torch.

    The padding is minus infinity.

    Attributes
    ----------
    dilation : (int, int)
        Distance between the pixels of a window; in YAML one number stands for both.
    """

    kind: Literal["max_pool2d"] = "max_pool2d"
    dilation: Size = (1, 1)

    def distance(self) -> Pair:
        return self.dilation

    def output_shape(self, *inputs: Shape) -> Shape:
        count = self.window.count(inputs[0])
        return (inputs[0][0], *count)

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        x = np.moveaxis(inputs[0], 1, -1)
        count = self.window.count(inputs[0].shape[1:])
        y = np.empty((len(x), *count, x.shape[3]), dtype=x.dtype)
        for some in self._blocks(x):
            frame = self._framed(x[some], count)
            best = y[some]
            best[...] = self.window.tap(frame, count, 0, 0)
            for row, column in np.ndindex(self.kernel_size):
                np.maximum(best, self.window.tap(frame, count, row, column), out=best)
        return channels_second(y), (x, y)

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
        if not needs[0]:
            return (None,)
        x, y = saved
        slope = channels_last(dy)
        dx = np.zeros(x.shape, dtype=x.dtype)
        for some in self._blocks(x):
            self._send_back(x[some], y[some], slope[some], dx[some])
        return (channels_second(dx),)

    def _send_back(self, x: Array, y: Array, slope: Array, dx: Array) -> None:
        """Give each slope to the first pixel that is the maximum of its window."""
        count = (y.shape[1], y.shape[2])
        frame = self._framed(x, count)
        sent, part, free = np.zeros_like(frame), np.empty_like(y), np.ones(y.shape, dtype=bool)
        for row, column in np.ndindex(self.kernel_size):
            here = self.window.tap(frame, count, row, column) == y
            here &= free
            free ^= here
            onto = self.window.tap(sent, count, row, column)
            onto += np.multiply(slope, here, out=part)
        (top, left), (tall, wide) = self.padding, dx.shape[1:3]
        inner = sent[:, top : top + tall, left : left + wide]
        dx[:, : inner.shape[1], : inner.shape[2]] = inner

    def _blocks(self, x: Array) -> Iterator[slice]:
        return blocks(len(x), prod(x.shape[1:]), BLOCK_ELEMENTS)

    def _framed(self, x: Array, count: Pair) -> Array:
        frame = np.full((len(x), *self.window.span(count), x.shape[3]), -np.inf, dtype=x.dtype)
        self.window.place(frame, x)
        return frame

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        before, out = prod(inputs[0]), float(prod(self.output_shape(*inputs)))
        nbytes = (before + out) * itemsize + out * INDEX_NBYTES
        return [Kernel(out * prod(self.kernel_size), nbytes)]

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        before, out = prod(inputs[0]), float(prod(self.output_shape(*inputs)))
        return [Kernel(out, (before + out) * itemsize + out * INDEX_NBYTES)] * needs[0]

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept(inputs=(0,), nbytes=float(prod(self.output_shape(*inputs))) * INDEX_NBYTES)
