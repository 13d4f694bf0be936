"""Softmax and log-softmax."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar, Literal

import numpy as np

from simdp.arrays import Array
from simdp.spec import Int
from simdp.workload.layers.base import Kept, Kernel, Layer, Pass, Shape, axis_of

# Exponentials -------------------------------------------------------------------------------------


class Exponentials(Layer):
    """Exponentials along an axis over their sum.

    Attributes
    ----------
    dim : int
        The axis along which they add up to 1; the samples are axis 0, and -1 is the last.
    """

    dim: Int = -1

    autocast: ClassVar[Literal["float32"]] = "float32"

    def output_shape(self, *inputs: Shape) -> Shape:
        axis_of(self.dim, inputs[0])
        return inputs[0]

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        size = float(prod(inputs[0]))
        return [Kernel(5 * size, 2 * size * itemsize)]

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        size = float(prod(inputs[0]))
        return [Kernel(4 * size, 3 * size * itemsize)] * needs[0]

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept(output=True)


# Softmax ------------------------------------------------------------------------------------------


class Softmax(Exponentials):
    """``exp(x) / sum exp(x)``."""

    kind: Literal["softmax"] = "softmax"

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        y = inputs[0] - inputs[0].max(axis=self.dim, keepdims=True)
        np.exp(y, out=y)
        y /= y.sum(axis=self.dim, keepdims=True)
        return y, y

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
        if not needs[0]:
            return (None,)
        return (saved * (dy - (dy * saved).sum(axis=self.dim, keepdims=True)),)


# Softmax ------------------------------------------------------------------------------------------


def log_softmax(x: Array, axis: int = -1) -> Array:
    """``x - log(sum exp(x))`` along an axis, a new array."""
    y: Array = x - x.max(axis=axis, keepdims=True)
    y -= np.log(np.exp(y).sum(axis=axis, keepdims=True))
    return y


# Log softmax --------------------------------------------------------------------------------------


class LogSoftmax(Exponentials):
    """``x - log(sum exp(x))``."""

    kind: Literal["log_softmax"] = "log_softmax"

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        y = log_softmax(inputs[0], self.dim)
        return y, y

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
        if not needs[0]:
            return (None,)
        return (dy - np.exp(saved) * dy.sum(axis=self.dim, keepdims=True),)
