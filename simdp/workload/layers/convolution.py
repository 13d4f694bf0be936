"""Convolution: base of torch.nn.Conv1d, Conv2d and Conv3d."""

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
from simdp.workload.layers.arrays.convolution import (
    convolved,
    gradients_of_unit_stride,
    input_gradient,
    weight_gradient,
)
from simdp.workload.layers.arrays.window import Window
from simdp.workload.layers.base import Kept, Kernel, Layer, Pass, Shape
from simdp.workload.layers.extents import Extents
from simdp.workload.layers.parameter import Parameter, kaiming_uniform, uniform
from simdp.workload.layers.shapes import check_channels

BUNDLE_CHANNELS = 32
"""Channels of a product from which on BLAS is fast."""


class Convolution(Layer):
    """Base: cross-correlation; the weight has shape `(out, in / groups, *kernel_size)`.

    Attributes
    ----------
    in_channels, out_channels : int
        Channels, before and after.
    kernel_size, stride, dilation : tuple of int
        One length for each axis; in YAML one number stands for all.
    padding : tuple of int or {"same", "valid"}
        Zeros at each side; "same" keeps the image's size, "valid" is 0.
    groups : int
        Parts of the channels that do not see each other.
    bias : bool
        Whether each channel has one.
    """

    in_channels: Int = Field(ge=1, le=10**8)
    out_channels: Int = Field(ge=1, le=10**8)
    kernel_size: Extents
    stride: Extents
    padding: Extents | str
    dilation: Extents
    groups: Int = Field(1, ge=1)
    bias: Bool = True

    autocast: ClassVar[Literal["lower"]] = "lower"
    keeps_for_weights: ClassVar[bool] = True
    splits_backward: ClassVar[bool] = True

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        check_groups(self.groups, self.in_channels, self.out_channels)
        if self.padding == "same" and {*self.stride} != {1}:
            raise problem("padding: same needs stride 1; leave stride out, or give numbers.")
        return self

    @cached_property
    def window(self) -> Window:
        """The kernel's places on an image."""
        before = after = (0,) * len(self.kernel_size)
        if self.padding == "same":  # torch: what is odd goes below and right
            reach = Window(self.kernel_size, self.stride, self.dilation, before, after).reach
            before = tuple((length - 1) // 2 for length in reach)
            after = tuple(length // 2 for length in reach)
        elif not isinstance(self.padding, str):
            before = after = self.padding
        return Window(self.kernel_size, self.stride, self.dilation, before, after)

    def parameters(self) -> list[Parameter]:
        shape = (self.out_channels, self.in_channels // self.groups, *self.kernel_size)
        fan = prod(shape[1:])
        weight = Parameter(f"{self.name}.weight", shape, kaiming_uniform(fan))
        bias = Parameter(f"{self.name}.bias", (self.out_channels,), uniform(1 / sqrt(fan)))
        return [weight, bias] if self.bias else [weight]

    def output_shape(self, *inputs: Shape) -> Shape:
        check_channels(inputs[0], self.in_channels, len(self.kernel_size))
        return (self.out_channels, *self.window.count(inputs[0]))

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        x = inputs[0]
        count = self.window.count(x.shape[1:])
        weight = np.moveaxis(self._grouped(run), (2, 1), (-2, -1))
        y = convolved(np.moveaxis(x, 1, -1), weight, self.window, count)
        if self.bias:
            rows = rows_of(y)
            rows += repeated(run.parameters[f"{self.name}.bias"], rows)
        return channels_second(y), x

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
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
        """Groups that are computed as one: with so few channels, zeros are cheaper than calls."""
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
        each = out // self.groups
        dense = np.zeros((parts, bundle, each, bundle, share, *kernel), dtype=weight.dtype)
        _diagonal(dense)[...] = weight.reshape(parts, bundle, each, share, *kernel)
        return dense.reshape(parts, bundle * each, bundle * share, *kernel)

    def _add(self, run: Pass, gradient: Array) -> None:
        """Bring a gradient of the grouped weight into the weight's shape."""
        name, bundle = f"{self.name}.weight", self._bundle
        room = run.room(name)
        parts, out, share, *kernel = gradient.shape
        split = gradient.reshape(parts, bundle, out // bundle, bundle, share // bundle, *kernel)
        room.reshape(parts, bundle, out // bundle, share // bundle, *kernel)[...] = _diagonal(split)
        run.add_gradient(name, room)

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
        """Of output, weight gradient and input gradient alike: each reads two and writes one."""
        out = float(prod(self.output_shape(shape)))
        weight = self.parameters()[0]
        return Kernel(
            2 * out * prod(weight.shape[1:]),
            (prod(shape) + out) * itemsize,
            weight.num_elements * itemsize,
        )

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept(inputs=(0,))


def _diagonal(weight: Array) -> Array:
    """View of what connects a group to itself; axes 1 and 3 are its number."""
    view: Array = np.einsum("pgogc...->pgoc...", weight)
    return view
