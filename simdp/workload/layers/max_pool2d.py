"""MaxPool2d: the largest pixel of each window, as torch.nn.MaxPool2d."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, Literal, Self

import numpy as np
from pydantic import model_validator

from simdp.spec import Bool, problem
from simdp.workload.layers.base import Array, Kept, Kernel, Layer, Pass, Shape
from simdp.workload.layers.channels import channels_last, channels_second
from simdp.workload.layers.window import Margin, Pair, Size, Window

BLOCK_ELEMENTS = 2**17
"""Of the images that are worked on at a time, so that they stay in a core's cache."""

INDEX_NBYTES = 8
"""torch keeps where each maximum was, as int64."""


class MaxPool2d(Layer):
    """Maximum over windows; of equal pixels the first gets the gradient, as in torch.

    Attributes
    ----------
    kernel_size, stride, dilation : (int, int)
        Height and width; in YAML one number stands for both. The stride is the kernel's size
        where none is given.
    padding : (int, int)
        Pixels of minus infinity at each side, half a window at most.
    ceil_mode : bool
        Whether a last window may hang over the end.
    """

    kind: Literal["max_pool2d"] = "max_pool2d"
    kernel_size: Size
    stride: Size | None = None
    padding: Margin = (0, 0)
    dilation: Size = (1, 1)
    ceil_mode: Bool = False

    @model_validator(mode="after")
    def _padding_is_narrow(self) -> Self:
        check_padding(self.padding, self.kernel_size)
        return self

    @property
    def window(self) -> Window:
        """The windows' places on an image."""
        stride = self.stride or self.kernel_size
        padding = self.padding
        return Window(self.kernel_size, stride, self.dilation, padding, padding, self.ceil_mode)

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
        """Cut images into blocks that fit into a cache."""
        step = max(BLOCK_ELEMENTS // max(prod(x.shape[1:]), 1), 1)
        for begin in range(0, len(x), step):
            yield slice(begin, begin + step)

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


def check_padding(padding: Pair, kernel_size: Pair) -> None:
    """Refuse windows that may lie in the padding alone, as torch does."""
    if any(2 * margin > length for margin, length in zip(padding, kernel_size, strict=True)):
        raise problem(
            f"padding: {list(padding)} is more than half of kernel_size, {list(kernel_size)}; "
            "write less."
        )
