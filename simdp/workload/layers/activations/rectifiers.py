"""Activations of straight or exponential pieces."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from simdp.arrays import Array
from simdp.spec import Float, problem
from simdp.workload.layers.activations import Activation
from simdp.workload.layers.base import (
    Kept,
    Kernel,
    Needs,
    Shape,
)


class CELU(Activation):
    """Continuously differentiable exponential linear unit (Barron, arXiv 1704.07483)."""

    kind: Literal["celu"] = "celu"
    alpha: Float = Field(1.0, gt=0)
    """The function tends to ``-alpha`` for x to -inf; not 0."""
    flops_per_element: ClassVar[int] = 6

    def value(self, x: Array) -> tuple[Array, Array]:
        return np.where(x > 0, x, self.alpha * np.expm1(np.minimum(x, 0) / self.alpha)), x

    def slope(self, saved: Array) -> Array:
        return np.where(saved > 0, 1, np.exp(np.minimum(saved, 0) / self.alpha))


class ELU(Activation):
    """Exponential linear unit (Clevert et al., arXiv 1511.07289)."""

    kind: Literal["elu"] = "elu"
    alpha: Float = 1.0
    """The function tends to ``-alpha`` for x to -inf."""
    flops_per_element: ClassVar[int] = 5

    def value(self, x: Array) -> tuple[Array, Array]:
        return np.where(x > 0, x, self.alpha * np.expm1(np.minimum(x, 0))), x

    def slope(self, saved: Array) -> Array:
        return np.where(saved > 0, 1, self.alpha * np.exp(np.minimum(saved, 0)))


class Hardsigmoid(Activation):
    """Sigmoid of straight lines."""

    kind: Literal["hardsigmoid"] = "hardsigmoid"
    flops_per_element: ClassVar[int] = 4

    def value(self, x: Array) -> tuple[Array, Array]:
        return np.clip(x / 6 + 0.5, 0, 1), x

    def slope(self, saved: Array) -> Array:
        inside: Array = ((saved > -3) & (saved < 3)).astype(saved.dtype)
        inside /= 6
        return inside


class Hardswish(Activation):
    """SiLU of straight lines (Howard et al., arXiv 1905.02244)."""

    kind: Literal["hardswish"] = "hardswish"
    flops_per_element: ClassVar[int] = 5

    def value(self, x: Array) -> tuple[Array, Array]:
        return x * np.clip(x / 6 + 0.5, 0, 1), x

    def slope(self, saved: Array) -> Array:
        inside = np.where(saved > -3, saved / 3 + 0.5, 0)
        return np.where(saved >= 3, 1, inside).astype(saved.dtype)


class Hardtanh(Activation):
    """Clips values to two bounds."""

    kind: Literal["hardtanh"] = "hardtanh"
    min_val: Float = -1.0
    """The bounds."""
    max_val: Float = 1.0
    """The bounds."""

    flops_per_element: ClassVar[int] = 2

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        if self.min_val >= self.max_val:
            raise problem(
                f"min_val: {self.min_val} is not below max_val, {self.max_val}; write less."
            )
        return self

    def value(self, x: Array) -> tuple[Array, Array]:
        return np.clip(x, self.min_val, self.max_val), x

    def slope(self, saved: Array) -> Array:
        return ((saved > self.min_val) & (saved < self.max_val)).astype(saved.dtype)


class LeakyReLU(Activation):
    """Rectified linear unit with a small slope below 0."""

    kind: Literal["leaky_relu"] = "leaky_relu"
    negative_slope: Float = 0.01
    """Slope below 0 and at 0."""
    flops_per_element: ClassVar[int] = 2

    def value(self, x: Array) -> tuple[Array, Array]:
        pick = np.maximum if self.negative_slope <= 1 else np.minimum
        return pick(x, self.negative_slope * x), x

    def slope(self, saved: Array) -> Array:
        above = (saved > 0).astype(saved.dtype)
        below = 1 - above
        below *= self.negative_slope
        below += above
        return below


class ReLU(Activation):
    """Rectified linear unit."""

    kind: Literal["relu"] = "relu"

    keeps_output: ClassVar[bool] = True

    def value(self, x: Array) -> tuple[Array, Array]:
        y = np.clip(x, 0, np.inf)  # three times as fast as np.maximum(x, 0)
        return y, y

    def slope(self, saved: Array) -> Array:
        return saved > 0


class ReLU2(Activation):
    """Squared rectified linear unit (So et al., arXiv 2109.08668).

    transformers runs it as two kernels; the value between them is kept.
    """

    kind: Literal["relu2"] = "relu2"
    flops_per_element: ClassVar[int] = 2

    def value(self, x: Array) -> tuple[Array, Array]:
        above = np.maximum(x, 0)
        return above * above, above

    def slope(self, saved: Array) -> Array:
        return 2 * saved

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        size = float(prod(inputs[0]))
        return [Kernel(size, 2 * size * itemsize)] * 2

    def backward_cost(self, inputs: Sequence[Shape], itemsize: int, needs: Needs) -> list[Kernel]:
        size = float(prod(inputs[0]))
        through = [Kernel(2 * size, 3 * size * itemsize), Kernel(size, 3 * size * itemsize)]
        return through * needs[0]

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept(nbytes=float(prod(inputs[0])) * itemsize)


class ReLU6(Activation):
    """Rectified linear unit clipped at 6 (arXiv 1704.04861)."""

    kind: Literal["relu6"] = "relu6"
    flops_per_element: ClassVar[int] = 2

    def value(self, x: Array) -> tuple[Array, Array]:
        return np.clip(x, 0, 6), x

    def slope(self, saved: Array) -> Array:
        return ((saved > 0) & (saved < 6)).astype(saved.dtype)


ALPHA, SCALE = 1.6732632423543772, 1.0507009873554805


class SELU(Activation):
    """Scaled exponential linear unit (Klambauer et al., arXiv 1706.02515, equation 2)."""

    kind: Literal["selu"] = "selu"
    flops_per_element: ClassVar[int] = 6

    def value(self, x: Array) -> tuple[Array, Array]:
        y: Array = SCALE * np.where(x > 0, x, ALPHA * np.expm1(np.minimum(x, 0)))
        return y, x

    def slope(self, saved: Array) -> Array:
        return SCALE * np.where(saved > 0, 1, ALPHA * np.exp(np.minimum(saved, 0)))
