"""ChannelGroups: base of the norms whose statistics are those of one sample's channels."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from pydantic import Field

from simdp.arrays import Array
from simdp.spec import Bool, Float
from simdp.workload.layers.arrays.normalised import Rows, gradient, normalised
from simdp.workload.layers.base import Kept, Kernel, Layer, Pass, Shape
from simdp.workload.layers.parameter import Parameter, constant


class ChannelGroups(Layer):
    """``(x - mean) / sqrt(variance + eps)`` of each group of channels of each sample.

    Attributes
    ----------
    eps : float
        Added to the variance.
    affine : bool
        Whether each channel has a weight and a bias.
    """

    eps: Float = Field(1e-5, ge=0)
    affine: Bool = True

    @property
    @abstractmethod
    def channels(self) -> int:
        """How many a sample has."""

    @property
    @abstractmethod
    def groups(self) -> int:
        """Into how many parts of equal size these are cut."""

    def parameters(self) -> list[Parameter]:
        shape = (self.channels,)
        weight = Parameter(f"{self.name}.weight", shape, constant(1.0))
        bias = Parameter(f"{self.name}.bias", shape, constant(0.0))
        return [weight, bias] * self.affine

    def track(self, run: Pass, found: Rows) -> None:
        """Move running statistics, where there are any; by default there are none."""

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        x = np.ascontiguousarray(inputs[0])
        found = normalised(x.reshape(len(x) * self.groups, -1), self.eps)
        self.track(run, found)
        y = found.hat.reshape(len(x), self.channels, -1)
        if self.affine:
            weight, bias = (run.parameters[p.name][:, None] for p in self.parameters())
            y = y * weight
            y += bias
        else:
            y = y.copy()
        return y.reshape(x.shape), found

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
        slope = np.ascontiguousarray(dy).reshape(len(dy), self.channels, -1)
        if self.affine:
            weight, bias = (parameter.name for parameter in self.parameters())
            hat = saved.hat.reshape(slope.shape)
            run.add_gradient(weight, np.einsum("ncs,ncs->c", slope, hat))
            run.add_gradient(bias, slope.sum(axis=(0, 2)))
        if not needs[0]:
            return (None,)
        scale = run.parameters[f"{self.name}.weight"][:, None] if self.affine else dy.dtype.type(1)
        return (gradient(saved, (slope * scale).reshape(saved.hat.shape)).reshape(dy.shape),)

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        """One kernel finds the statistics, one applies them."""
        size, weights = float(prod(inputs[0])), self._weight_nbytes(itemsize)
        return [Kernel(4 * size, size * itemsize), Kernel(4 * size, 2 * size * itemsize, weights)]

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        """Sums for all gradients; the input's gradient."""
        size, weights = float(prod(inputs[0])), self._weight_nbytes(itemsize)
        sums = Kernel(4 * size, 2 * size * itemsize, weights)
        wanted = needs[0] or self.affine
        return [sums] * wanted + [Kernel(5 * size, 3 * size * itemsize, weights)] * needs[0]

    def _weight_nbytes(self, itemsize: int) -> float:
        return float(sum(parameter.num_elements for parameter in self.parameters()) * itemsize)

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept(inputs=(0,), nbytes=2.0 * self.groups * itemsize)  # and two statistics of each
