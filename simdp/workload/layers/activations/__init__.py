"""Activations: the base class, the table of kinds, and stable functions of arrays."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar

import numpy as np

from simdp.arrays import Array
from simdp.family import Family
from simdp.workload.layers.base import (
    Gradients,
    Kept,
    Kernel,
    Layer,
    Needs,
    Pass,
    Shape,
)


class Activation(Layer):
    """Base of elementwise functions."""

    flops_per_element: ClassVar[int] = 1
    """Rough count: these layers are bound by memory."""

    keeps_output: ClassVar[bool] = False
    """Whether backward needs the output instead of the input."""

    @abstractmethod
    def value(self, x: Array) -> tuple[Array, Array]:
        """Return f(x) and the argument of `slope`: x or f(x)."""

    @abstractmethod
    def slope(self, saved: Array) -> Array:
        """Return f'(x)."""

    def output_shape(self, *inputs: Shape) -> Shape:
        return inputs[0]

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Array]:
        return self.value(inputs[0])

    def backward(self, run: Pass, saved: Array, dy: Array, needs: Needs) -> Gradients:
        return (dy * self.slope(saved) if needs[0] else None,)

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        size = float(prod(inputs[0]))
        return [Kernel(self.flops_per_element * size, 2 * size * itemsize)]

    def backward_cost(self, inputs: Sequence[Shape], itemsize: int, needs: Needs) -> list[Kernel]:
        size = float(prod(inputs[0]))
        return [Kernel((self.flops_per_element + 1) * size, 3 * size * itemsize)] * needs[0]

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept(inputs=() if self.keeps_output else (0,), output=self.keeps_output)


ACTIVATIONS: Family[Activation] = Family(
    "activations",
    Activation,
    __name__,
    {
        "celu": "rectifiers:CELU",
        "elu": "rectifiers:ELU",
        "gelu": "smooth:GELU",
        "gelu_tanh": "smooth:GELUTanh",
        "hardsigmoid": "rectifiers:Hardsigmoid",
        "hardswish": "rectifiers:Hardswish",
        "hardtanh": "rectifiers:Hardtanh",
        "leaky_relu": "rectifiers:LeakyReLU",
        "log_sigmoid": "smooth:LogSigmoid",
        "mish": "smooth:Mish",
        "quick_gelu": "smooth:QuickGELU",
        "relu": "rectifiers:ReLU",
        "relu2": "rectifiers:ReLU2",
        "relu6": "rectifiers:ReLU6",
        "selu": "rectifiers:SELU",
        "sigmoid": "smooth:Sigmoid",
        "silu": "smooth:SiLU",
        "softplus": "smooth:Softplus",
        "tanh": "smooth:Tanh",
    },
)


def activation(kind: str, name: str) -> Activation:
    """Make an activation by kind, with default options and a path in a model."""
    member: Any = ACTIVATIONS.find(kind)
    made: Activation = member(kind=kind, name=name)
    return made


def logistic(x: Array) -> Array:
    """``1 / (1 + exp(-x))``, without overflow."""
    power = np.exp(-np.abs(x))
    y: Array = np.maximum(power, x >= 0)  # 1 above 0, exp(x) below
    power += 1
    y /= power
    return y


def log_softmax(x: Array, axis: int = -1) -> Array:
    """``x - log(sum exp(x))`` along an axis, as a new array."""
    y: Array = x - x.max(axis=axis, keepdims=True)
    y -= np.log(np.exp(y).sum(axis=axis, keepdims=True))
    return y
