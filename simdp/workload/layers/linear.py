"""Linear: ``y = x W^T + b``, as torch.nn.Linear."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod, sqrt
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Array
from simdp.spec import Bool, Int
from simdp.workload.layers.base import Kept, Kernel, Layer, Pass, Shape
from simdp.workload.layers.parameter import Parameter, kaiming_uniform, uniform
from simdp.workload.layers.shapes import last_axis

FEW_ROWS = 128
"""Up to so many rows W x^T, turned, is up to twice as fast as x W^T; beyond, turning costs more."""


class Linear(Layer):
    """Affine map of the last axis; the weight has shape ``(out_features, in_features)``.

    Attributes
    ----------
    in_features, out_features : int
        Lengths of the last axis, before and after.
    bias : bool
        Whether there is one.
    """

    kind: Literal["linear"] = "linear"
    in_features: Int = Field(ge=1, le=10**8)
    out_features: Int = Field(ge=1, le=10**8)
    bias: Bool = True

    autocast: ClassVar[Literal["lower"]] = "lower"
    keeps_for_weights: ClassVar[bool] = True
    splits_backward: ClassVar[bool] = True

    def parameters(self) -> list[Parameter]:
        shape = (self.out_features, self.in_features)
        weight = Parameter(f"{self.name}.weight", shape, kaiming_uniform(self.in_features))
        bias = Parameter(f"{self.name}.bias", shape[:1], uniform(1 / sqrt(self.in_features)))
        return [weight, bias] if self.bias else [weight]

    def ready_order(self) -> list[str]:
        return [parameter.name for parameter in reversed(self.parameters())]  # bias, then weight

    def output_shape(self, *inputs: Shape) -> Shape:
        return (*last_axis(inputs[0], self.in_features), self.out_features)

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        bias = run.parameters[f"{self.name}.bias"] if self.bias else None
        return affine(inputs[0], run.parameters[f"{self.name}.weight"], bias), inputs[0]

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
        x = saved.reshape(-1, self.in_features)
        flat = dy.reshape(-1, self.out_features)
        weight, bias = f"{self.name}.weight", f"{self.name}.bias"
        if self.bias:
            run.add_gradient(bias, flat.sum(axis=0, out=run.room(bias)))
        run.add_gradient(weight, np.matmul(flat.T, x, out=run.room(weight)))
        if not needs[0]:
            return (None,)
        return ((flat @ run.parameters[weight]).reshape(saved.shape),)

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        return [affine_cost(inputs[0], self.in_features, self.out_features, self.bias, itemsize)]

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        return affine_backward_cost(
            inputs[0], self.in_features, self.out_features, self.bias, itemsize, needs[0]
        )

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept(inputs=(0,))


def affine(x: Array, weight: Array, bias: Array | None) -> Array:
    """``x W^T + b`` over the last axis of x; the weight has shape `(out, in)`."""
    flat = x.reshape(-1, x.shape[-1])
    if len(flat) <= FEW_ROWS:
        y: Array = np.ascontiguousarray((weight @ flat.T).T)
    else:
        y = flat @ weight.T
    y = y.reshape(*x.shape[:-1], len(weight))
    if bias is not None:
        y += bias
    return y


def affine_cost(shape: Shape, fan_in: int, fan_out: int, bias: bool, itemsize: int) -> Kernel:
    """One product, with the bias added on its way out."""
    rows = float(prod(shape[:-1]))
    weights = fan_in * fan_out + fan_out * bias
    return Kernel(
        rows * 2 * fan_in * fan_out, rows * (fan_in + fan_out) * itemsize, weights * itemsize
    )


def affine_backward_cost(
    shape: Shape, fan_in: int, fan_out: int, bias: bool, itemsize: int, need_input_grad: bool
) -> list[Kernel]:
    """``db = sum of dy``, ``dW = dy^T x`` and ``dx = dy W``."""
    rows = float(prod(shape[:-1]))
    product = affine_cost(shape, fan_in, fan_out, False, itemsize)
    found = [Kernel(rows * fan_out, rows * fan_out * itemsize, fan_out * itemsize)] * bias
    return [*found, product] + [product] * need_input_grad
