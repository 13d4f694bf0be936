"""Projection: some rows of a weight that several maps may share, as in multi-head attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Array
from simdp.spec import Int
from simdp.workload.layers.base import Kept, Kernel, Layer, Pass, Shape
from simdp.workload.layers.linear import affine, affine_backward_cost, affine_cost
from simdp.workload.layers.parameter import Parameter, constant, uniform
from simdp.workload.layers.shapes import last_axis


class Projection(Layer):
    """``y = x W[rows]^T + b[rows]``; the bias starts at 0.

    torch packs the weights of queries, keys and values into one parameter. Self-attention takes
    all its rows at once; cross-attention takes some for one input and some for another, and both
    add to one gradient.

    Attributes
    ----------
    weight, bias : str
        Names of the parameters; no bias where that is empty.
    in_features, out_features : int
        Of the whole weight, which has shape ``(out_features, in_features)``.
    first, last : int
        The rows are ``first ... last - 1``.
    bound : float
        The weight starts uniform between -bound and bound.
    """

    kind: Literal["projection"] = "projection"
    weight: str
    bias: str
    in_features: Int = Field(ge=1)
    out_features: Int = Field(ge=1)
    first: Int = Field(ge=0)
    last: Int = Field(ge=1)
    bound: float

    autocast: ClassVar[Literal["lower"]] = "lower"
    keeps_for_weights: ClassVar[bool] = True
    splits_backward: ClassVar[bool] = True

    def parameters(self) -> list[Parameter]:
        shape = (self.out_features, self.in_features)
        weight = Parameter(self.weight, shape, uniform(self.bound))
        bias = Parameter(self.bias, shape[:1], constant(0.0))
        return [weight, bias] if self.bias else [weight]

    def ready_order(self) -> list[str]:
        return [parameter.name for parameter in reversed(self.parameters())]  # bias, then weight

    def output_shape(self, *inputs: Shape) -> Shape:
        return (*last_axis(inputs[0], self.in_features), self.last - self.first)

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        rows = slice(self.first, self.last)
        bias = run.parameters[self.bias][rows] if self.bias else None
        return affine(inputs[0], run.parameters[self.weight][rows], bias), inputs[0]

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
        rows = slice(self.first, self.last)
        x = saved.reshape(-1, self.in_features)
        flat = dy.reshape(-1, self.last - self.first)
        if self.bias:
            part, more = self._rows_of_gradient(run, self.bias)
            if more:
                part += flat.sum(axis=0)
            else:
                flat.sum(axis=0, out=part)
        part, more = self._rows_of_gradient(run, self.weight)
        if more:
            part += flat.T @ x
        else:
            np.matmul(flat.T, x, out=part)
        if not needs[0]:
            return (None,)
        return ((flat @ run.parameters[self.weight][rows]).reshape(saved.shape),)

    def _rows_of_gradient(self, run: Pass, name: str) -> tuple[Array, bool]:
        """The place of these rows in a gradient, and whether something is there already.

        The first one to come clears the rows of the others, which then add to them.
        """
        if name in run.gradients:
            return run.gradients[name][self.first : self.last], True
        whole = run.room(name)
        whole[: self.first] = 0
        whole[self.last :] = 0
        run.add_gradient(name, whole)
        return whole[self.first : self.last], False

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        rows = self.last - self.first
        return [affine_cost(inputs[0], self.in_features, rows, bool(self.bias), itemsize)]

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        rows = self.last - self.first
        return affine_backward_cost(
            inputs[0], self.in_features, rows, bool(self.bias), itemsize, needs[0]
        )

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept(inputs=(0,))
