"""Einsum of a batch with one weight, such as ``bd,df->bf``."""

from __future__ import annotations

from math import prod
from typing import Any, Literal

import numpy as np

from simdp.workload.layers.base import (
    NO_ARRAYS,
    Array,
    Cost,
    Floats,
    Layer,
    Parameter,
    Parameters,
    cost,
)


def split_equation(equation: str) -> tuple[str, str, str]:
    """Cut ``"bd,df->bf"`` into ``("bd", "df", "bf")``.

    Raises
    ------
    ValueError
        If it is not a product of a batch with one weight whose gradients are einsums again.
    """
    operands, arrow, output = equation.replace(" ", "").partition("->")
    x, comma, weight = operands.partition(",")
    parts = (x, weight, output)
    if not (arrow and comma and all(part.isascii() and part.isalpha() for part in parts)):
        raise ValueError('it must look like "bd,df->bf": the batch, the weight, the output')
    if any(len(set(part)) < len(part) for part in parts):
        raise ValueError("an index may stand once in each operand")
    if x[0] != output[0] or x[0] in weight:
        raise ValueError("the first index of the batch and of the output must be the sample's")
    for part, others in ((x, weight + output), (weight, x + output), (output, x + weight)):
        alone = [index for index in part if index not in others]
        if alone:
            raise ValueError(f"the index {alone[0]!r} stands in one operand only")
    return parts


class Einsum(Layer):
    """Product of a batch and a weight of shape ``sizes[weight's indices]``."""

    kind: Literal["einsum"] = "einsum"
    equation: str
    sizes: dict[str, int]

    def _parts(self) -> tuple[str, str, str]:
        return split_equation(self.equation)

    def _num(self, indices: str) -> int:
        return prod(self.sizes[i] for i in indices)

    def parameters(self) -> list[Parameter]:
        x, weight, _ = self._parts()
        contracted = self._num("".join(i for i in weight if i in x))
        shape = tuple(self.sizes[i] for i in weight)
        return [Parameter("weight", shape, contracted**-0.5)]

    def forward(self, parameters: Parameters, x: Array) -> tuple[Array, Any]:
        y: Array = np.einsum(self.equation, x, parameters["weight"], optimize=True)
        return y, x

    def backward(
        self,
        parameters: Parameters,
        saved: Any,
        dy: Array,
        need_input_grad: bool,
        into: Parameters = NO_ARRAYS,
    ) -> tuple[Array | None, dict[str, Array]]:
        x, weight, output = self._parts()
        dw = np.einsum(f"{x},{output}->{weight}", saved, dy, optimize=True)
        dx = None
        if need_input_grad:
            dx = np.einsum(f"{output},{weight}->{x}", dy, parameters["weight"], optimize=True)
        return dx, {"weight": dw}

    def _product(self, batch: Floats, itemsize: int) -> Cost:
        """One of the three products; each reads two of x, W, y and writes the third."""
        x, weight, output = self._parts()
        flops = 2 * self._num("".join(sorted(set(x[1:] + weight + output[1:]))))
        moved = self._num(x[1:]) + self._num(output[1:])
        return cost(batch, flops, moved * itemsize, 1, self._num(weight) * itemsize)

    def forward_cost(self, batch: Floats, itemsize: int) -> Cost:
        return self._product(batch, itemsize)

    def backward_cost(self, batch: Floats, itemsize: int, need_input_grad: bool) -> Cost:
        product = self._product(batch, itemsize)
        return product + product if need_input_grad else product

    def activation_nbytes(self, batch: Floats, itemsize: int) -> Floats:
        return batch * self._num(self._parts()[0][1:]) * itemsize
