"""TransposedConvolution: base of torch.nn.ConvTranspose1d, ConvTranspose2d and ConvTranspose3d."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import prod, sqrt
from typing import Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from simdp.arrays import Array
from simdp.spec import Bool, Int, problem
from simdp.workload.layers.arguments import check_groups
from simdp.workload.layers.arrays.channels import (
    channel_sum,
    channels_last,
    channels_second,
    repeated,
    rows_of,
)
from simdp.workload.layers.arrays.convolution import convolved, input_gradient, weight_gradient
from simdp.workload.layers.arrays.window import Window
from simdp.workload.layers.base import Kept, Kernel, Layer, Pass, Shape, ShapeError
from simdp.workload.layers.extents import Extents
from simdp.workload.layers.parameter import Parameter, kaiming_uniform, uniform
from simdp.workload.layers.shapes import check_channels


class TransposedConvolution(Layer):
    """Base: what a convolution's backward does to its output's gradient, as a layer's forward.

    The weight has shape `(in, out / groups, *kernel_size)`.

    Attributes
    ----------
    in_channels, out_channels : int
        Channels, before and after.
    kernel_size, stride, dilation : tuple of int
        Those of the convolution that goes the other way, one length for each axis; in YAML one
        number stands for all.
    padding : tuple of int
        Pixels that are cut off at each side of what comes out.
    output_padding : tuple of int
        Pixels that are added at the end of each axis; less than the stride or the dilation.
    groups : int
        Parts of the channels that do not see each other.
    bias : bool
        Whether each channel has one.
    """

    in_channels: Int = Field(ge=1, le=10**8)
    out_channels: Int = Field(ge=1, le=10**8)
    kernel_size: Extents
    stride: Extents
    padding: Extents
    output_padding: Extents
    groups: Int = Field(1, ge=1)
    bias: Bool = True
    dilation: Extents

    autocast: ClassVar[Literal["lower"]] = "lower"
    keeps_for_weights: ClassVar[bool] = True
    splits_backward: ClassVar[bool] = True

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        check_groups(self.groups, self.in_channels, self.out_channels)
        each = zip(self.output_padding, self.stride, self.dilation, strict=True)
        if any(more >= max(stride, dilation) for more, stride, dilation in each):
            raise problem(
                f"output_padding: {list(self.output_padding)} is not less than the stride, "
                f"{list(self.stride)}, or the dilation, {list(self.dilation)}; write less."
            )
        return self

    @cached_property
    def window(self) -> Window:
        """The kernel's places on what comes out."""
        return Window(self.kernel_size, self.stride, self.dilation, self.padding, self.padding)

    def parameters(self) -> list[Parameter]:
        shape = (self.in_channels, self.out_channels // self.groups, *self.kernel_size)
        fan = prod(shape[1:])
        weight = Parameter(f"{self.name}.weight", shape, kaiming_uniform(fan))
        bias = Parameter(f"{self.name}.bias", (self.out_channels,), uniform(1 / sqrt(fan)))
        return [weight, bias] if self.bias else [weight]

    def output_shape(self, *inputs: Shape) -> Shape:
        """``(length - 1) stride - 2 padding + dilation (kernel - 1) + output_padding + 1``."""
        check_channels(inputs[0], self.in_channels, len(self.kernel_size))
        span = self.window.span(inputs[0][1:])
        each = zip(span, self.padding, self.output_padding, strict=True)
        found = tuple(n - 2 * less + more for n, less, more in each)
        if min(found) < 1:
            raise ShapeError(
                f"makes nothing of samples of shape {inputs[0]}: the padding cuts all of it off; "
                "make it less"
            )
        return (self.out_channels, *found)

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        x = channels_last(inputs[0])
        out, *lengths = self.output_shape(inputs[0].shape[1:])
        y = input_gradient((len(x), *lengths, out), x, self._grouped(run), self.window)
        y = np.ascontiguousarray(y)
        if self.bias:
            rows = rows_of(y)
            rows += repeated(run.parameters[f"{self.name}.bias"], rows)
        return channels_second(y), x

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
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

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        bias = self.out_channels * self.bias
        work = self._product(inputs[0], itemsize)
        return [work._replace(fixed=work.fixed + bias * itemsize)]

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        work = self._product(inputs[0], itemsize)
        out = float(prod(self.output_shape(*inputs)))
        bias = Kernel(out, out * itemsize, self.out_channels * itemsize)
        return [work] * needs[0] + [work] + [bias] * self.bias

    def _product(self, shape: Shape, itemsize: int) -> Kernel:
        """Every value that comes in meets the kernel once."""
        given, out = float(prod(shape)), prod(self.output_shape(shape))
        weight = self.parameters()[0]
        return Kernel(
            2 * given * prod(weight.shape[1:]),
            (given + out) * itemsize,
            weight.num_elements * itemsize,
        )

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept(inputs=(0,))
