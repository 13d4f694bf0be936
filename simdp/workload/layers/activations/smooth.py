"""Smooth activations, softmax and log-softmax."""

from __future__ import annotations

from collections.abc import Sequence
from math import pi, prod, sqrt
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Array
from simdp.spec import Float, Int
from simdp.workload.layers.activations import (
    Activation,
    log_softmax,
    logistic,
)
from simdp.workload.layers.base import (
    Gradients,
    Kept,
    Kernel,
    Layer,
    Needs,
    Pass,
    Shape,
    axis_of,
    blocks,
)

FAR = 40.0
"""Beyond +-FAR, Phi is 0 or 1 in any dtype."""


TURN = 4.5


TAIL = (-0.9143915077, 2.684156087, -3.789100088, 3.267243625, -1.795237761, 0.5)
"""``Phi(-a) exp(a^2 / 2)`` as a polynomial in ``a / (a + TURN)``, the highest power first.

Fitted to SciPy's erfcx; error below 3e-8 of Phi, half a step of float32 below 1.
"""


class GELU(Activation):
    """Gaussian error linear unit (Hendrycks and Gimpel, arXiv 1606.08415)."""

    kind: Literal["gelu"] = "gelu"
    flops_per_element: ClassVar[int] = 15

    def value(self, x: Array) -> tuple[Array, Array]:
        """Compute the slope too: both need the same exponential."""
        x = np.ascontiguousarray(x)
        y, slope = np.empty_like(x), np.empty_like(x)
        flat, flat_y, flat_slope = x.reshape(-1), y.reshape(-1), slope.reshape(-1)
        for part in blocks(x.size):
            near = np.clip(flat[part], -FAR, FAR)
            cdf, bell = _normal(near)
            np.multiply(flat[part], cdf, out=flat_y[part])
            near *= bell
            near *= 1 / sqrt(2 * pi)
            np.add(cdf, near, out=flat_slope[part])
        return y, slope

    def slope(self, saved: Array) -> Array:
        return saved


def _normal(x: Array) -> tuple[Array, Array]:
    """Phi(x), and ``exp(-x^2 / 2)``."""
    bell = x * x
    bell *= -0.5
    np.exp(bell, out=bell)
    if x.dtype == np.float32:
        return _cdf32(x, bell), bell
    from scipy.special import ndtr

    return ndtr(x), bell


def _cdf32(x: Array, bell: Array) -> Array:
    """Phi(x) in float32, ten times as fast as SciPy's."""
    far = np.abs(x)
    near = far + np.float32(TURN)
    far /= near
    tail = np.multiply(far, np.float32(TAIL[0]), out=near)
    for coefficient in TAIL[1:-1]:
        tail += np.float32(coefficient)
        tail *= far
    tail += np.float32(TAIL[-1])
    tail *= bell
    np.subtract(np.float32(0.5), tail, out=tail)
    # Negative where x is: np.copysign takes three times as long.
    tail.view(np.uint32)[...] ^= x.view(np.uint32) & np.uint32(2**31)
    tail += np.float32(0.5)
    return tail


INNER, CUBE = sqrt(2 / pi), 0.044715


class GELUTanh(Activation):
    """``x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2``: torch's GELU(approximate="tanh").

    Hendrycks and Gimpel, arXiv 1606.08415, section 2.
    """

    kind: Literal["gelu_tanh"] = "gelu_tanh"
    flops_per_element: ClassVar[int] = 18

    def value(self, x: Array) -> tuple[Array, Array]:
        return 0.5 * x * (1 + _inner_tanh(x)), x

    def slope(self, saved: Array) -> Array:
        t = _inner_tanh(saved)
        inner = INNER * (1 + 3 * CUBE * saved * saved)
        slope: Array = 0.5 * (1 + t + saved * (1 - t * t) * inner)
        return slope


def _inner_tanh(x: Array) -> Array:
    return np.tanh(INNER * (x + CUBE * x * x * x))


class Sigmoid(Activation):
    """Logistic function."""

    kind: Literal["sigmoid"] = "sigmoid"
    keeps_output: ClassVar[bool] = True
    flops_per_element: ClassVar[int] = 4

    def value(self, x: Array) -> tuple[Array, Array]:
        y = logistic(x)
        return y, y

    def slope(self, saved: Array) -> Array:
        slope: Array = saved * (1 - saved)
        return slope


class LogSigmoid(Activation):
    """Logarithm of the logistic function."""

    kind: Literal["log_sigmoid"] = "log_sigmoid"
    flops_per_element: ClassVar[int] = 6

    def value(self, x: Array) -> tuple[Array, Array]:
        return -np.logaddexp(0, -x), x

    def slope(self, saved: Array) -> Array:
        return logistic(-saved)


class Mish(Activation):
    """Self-regularised activation (Misra, arXiv 1908.08681)."""

    kind: Literal["mish"] = "mish"
    flops_per_element: ClassVar[int] = 8

    def value(self, x: Array) -> tuple[Array, Array]:
        return x * np.tanh(np.logaddexp(0, x)), x

    def slope(self, saved: Array) -> Array:
        bent = np.tanh(np.logaddexp(0, saved))
        slope: Array = bent + saved * logistic(saved) * (1 - bent * bent)
        return slope


STEEP = 1.702


class QuickGELU(Activation):
    """GELU by a sigmoid (Hendrycks and Gimpel, arXiv 1606.08415, section 2).

    transformers runs it as three kernels and keeps the sigmoid too.
    """

    kind: Literal["quick_gelu"] = "quick_gelu"
    flops_per_element: ClassVar[int] = 6

    def value(self, x: Array) -> tuple[Array, Array]:
        return x * logistic(STEEP * x), x

    def slope(self, saved: Array) -> Array:
        part = logistic(STEEP * saved)
        slope: Array = part * (1 + STEEP * saved * (1 - part))
        return slope

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        size = float(prod(inputs[0]))
        scaled = Kernel(size, 2 * size * itemsize)
        return [
            scaled,
            scaled._replace(flops=4 * size),
            scaled._replace(nbytes=3 * size * itemsize),
        ]

    def backward_cost(self, inputs: Sequence[Shape], itemsize: int, needs: Needs) -> list[Kernel]:
        """Two kernels of the product, then the sigmoid's, the factor's and a sum."""
        size = float(prod(inputs[0]))
        two, three = Kernel(size, 2 * size * itemsize), Kernel(size, 3 * size * itemsize)
        return [three, three, three._replace(flops=3 * size), two, three] * needs[0]

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept(inputs=(0,), nbytes=float(prod(inputs[0])) * itemsize)


class SiLU(Activation):
    """Sigmoid linear unit (Hendrycks and Gimpel, arXiv 1606.08415)."""

    kind: Literal["silu"] = "silu"
    flops_per_element: ClassVar[int] = 5

    def value(self, x: Array) -> tuple[Array, Array]:
        """Compute the slope too: both need the same exponential."""
        share = logistic(x)
        slope = 1 - share
        slope *= x
        slope += 1
        slope *= share
        share *= x
        return share, slope

    def slope(self, saved: Array) -> Array:
        return saved


class Softplus(Activation):
    """Smooth rectified linear unit."""

    kind: Literal["softplus"] = "softplus"
    beta: Float = Field(1.0, gt=0)
    """Sharpness of the bend."""
    threshold: Float = 20.0
    """The function is x where ``beta x`` exceeds it."""

    flops_per_element: ClassVar[int] = 6
    autocast = "float32"

    def value(self, x: Array) -> tuple[Array, Array]:
        steep = self.beta * x
        return np.where(steep > self.threshold, x, np.logaddexp(0, steep) / self.beta), x

    def slope(self, saved: Array) -> Array:
        steep = self.beta * saved
        return np.where(steep > self.threshold, 1, logistic(steep))


class Tanh(Activation):
    """Hyperbolic tangent; its slope is 1 - tanh(x)^2."""

    kind: Literal["tanh"] = "tanh"
    keeps_output: ClassVar[bool] = True
    flops_per_element: ClassVar[int] = 10

    def value(self, x: Array) -> tuple[Array, Array]:
        y = np.tanh(x)
        return y, y

    def slope(self, saved: Array) -> Array:
        return 1 - saved * saved


class Exponentials(Layer):
    """Base of softmax and log-softmax."""

    dim: Int = -1
    """Axis along which the exponentials are summed; the samples are axis 0, and -1 is the last."""

    autocast = "float32"

    def output_shape(self, *inputs: Shape) -> Shape:
        axis_of(self.dim, inputs[0])
        return inputs[0]

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        size = float(prod(inputs[0]))
        return [Kernel(5 * size, 2 * size * itemsize)]

    def backward_cost(self, inputs: Sequence[Shape], itemsize: int, needs: Needs) -> list[Kernel]:
        size = float(prod(inputs[0]))
        return [Kernel(4 * size, 3 * size * itemsize)] * needs[0]

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept(output=True)


class Softmax(Exponentials):
    """``exp(x) / sum exp(x)``."""

    kind: Literal["softmax"] = "softmax"

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Array]:
        y = inputs[0] - inputs[0].max(axis=self.dim, keepdims=True)
        np.exp(y, out=y)
        y /= y.sum(axis=self.dim, keepdims=True)
        return y, y

    def backward(self, run: Pass, saved: Array, dy: Array, needs: Needs) -> Gradients:
        if not needs[0]:
            return (None,)
        return (saved * (dy - (dy * saved).sum(axis=self.dim, keepdims=True)),)


class LogSoftmax(Exponentials):
    """``x - log(sum exp(x))``."""

    kind: Literal["log_softmax"] = "log_softmax"

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Array]:
        y = log_softmax(inputs[0], self.dim)
        return y, y

    def backward(self, run: Pass, saved: Array, dy: Array, needs: Needs) -> Gradients:
        if not needs[0]:
            return (None,)
        return (dy - np.exp(saved) * dy.sum(axis=self.dim, keepdims=True),)
