"""FrozenConv2d: a convolution whose weight nobody changes, as with ``requires_grad`` False."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any, ClassVar, Literal

from simdp.arrays import Array
from simdp.workload.layers.base import Kept, Kernel, Layer, Pass, Shape
from simdp.workload.layers.conv2d import Conv2d
from simdp.workload.layers.parameter import Buffer


class FrozenConv2d(Layer):
    """Its tensors are buffers: loaded, never learned, and without a gradient to send.

    Such weights come from a file. Without one, each output is the mean of what the kernel sees.

    Attributes
    ----------
    conv : Conv2d
        The convolution.
    """

    kind: Literal["frozen_conv2d"] = "frozen_conv2d"
    conv: Conv2d

    autocast: ClassVar[Literal["lower"]] = "lower"

    def buffers(self) -> list[Buffer]:
        return [
            Buffer(p.name, p.shape, 1 / prod(p.shape[1:]) if len(p.shape) > 1 else 0.0)
            for p in self.conv.parameters()
        ]

    def output_shape(self, *inputs: Shape) -> Shape:
        return self.conv.output_shape(*inputs)

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        return self.conv.forward(replace(run, parameters=run.buffers), *inputs)

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
        if not needs[0]:
            return (None,)
        aside = replace(run, parameters=run.buffers, gradients={}, into={})
        return self.conv.backward(aside, saved, dy, needs)

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        return self.conv.forward_cost(inputs, itemsize)

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        """Of the input alone, which is the first of a convolution's."""
        return self.conv.backward_cost(inputs, itemsize, needs)[: sum(needs)]

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept()
