"""MaxPool: the largest pixel of each window; base of torch.nn.MaxPool1d, 2d and 3d."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from simdp.arrays import Array
from simdp.workload.layers.arrays.blocks import blocks
from simdp.workload.layers.arrays.channels import channels_last, channels_second
from simdp.workload.layers.base import Kept, Kernel, Pass, Shape
from simdp.workload.layers.extents import Extents
from simdp.workload.layers.pooling import WindowPool

BLOCK_ELEMENTS = 2**17
"""Of the images that are worked on at a time, so that they stay in a core's cache."""

INDEX_NBYTES = 8
"""torch keeps where each maximum was, as int64."""


class MaxPool(WindowPool):
    """Base: maximum over windows; of equal pixels the first gets the gradient, as in torch.

    The padding is minus infinity.

    Attributes
    ----------
    dilation : tuple of int
        Distance between the pixels of a window, along each axis; in YAML one number stands for all.
    """

    dilation: Extents

    def distance(self) -> Extents:
        return self.dilation

    def output_shape(self, *inputs: Shape) -> Shape:
        count = self.window.count(inputs[0])
        return (inputs[0][0], *count)

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
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

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        before, out = prod(inputs[0]), float(prod(self.output_shape(*inputs)))
        return [Kernel(out, (before + out) * itemsize + out * INDEX_NBYTES)] * needs[0]

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept(inputs=(0,), nbytes=float(prod(self.output_shape(*inputs))) * INDEX_NBYTES)
