"""Einsum of a batch with one weight, such as ``bd,df->bf``."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar, Literal

import numpy as np

from simdp.arrays import Array
from simdp.workload.layers.base import Kept, Kernel, Layer, Pass, Shape, ShapeError
from simdp.workload.layers.parameter import Parameter, uniform


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

    autocast: ClassVar[Literal["lower"]] = "lower"
    keeps_for_weights: ClassVar[bool] = True
    splits_backward: ClassVar[bool] = True

    def _parts(self) -> tuple[str, str, str]:
        return split_equation(self.equation)

    def _num(self, indices: str) -> int:
        return prod(self.sizes[i] for i in indices)

    def parameters(self) -> list[Parameter]:
        x, weight, _ = self._parts()
        contracted = self._num("".join(i for i in weight if i in x))
        shape = tuple(self.sizes[i] for i in weight)
        return [Parameter("weight", shape, uniform(contracted**-0.5))]

    def output_shape(self, *inputs: Shape) -> Shape:
        x, _, output = self._parts()
        wanted = tuple(self.sizes[i] for i in x[1:])
        if inputs[0] != wanted:
            raise ShapeError(f"takes samples of shape {wanted}, but gets {inputs[0]}")
        return tuple(self.sizes[i] for i in output[1:])

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        y: Array = np.einsum(self.equation, inputs[0], run.parameters["weight"], optimize=True)
        return y, inputs[0]

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
        x, weight, output = self._parts()
        run.add_gradient("weight", np.einsum(f"{x},{output}->{weight}", saved, dy, optimize=True))
        if not needs[0]:
            return (None,)
        return (np.einsum(f"{output},{weight}->{x}", dy, run.parameters["weight"], optimize=True),)

    def _product(self, itemsize: int) -> Kernel:
        """One of the three products; each reads two of x, W, y and writes the third."""
        x, weight, output = self._parts()
        flops = 2.0 * self._num("".join(sorted(set(x[1:] + weight + output[1:]))))
        moved = self._num(x[1:]) + self._num(output[1:])
        return Kernel(flops, float(moved * itemsize), float(self._num(weight) * itemsize))

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        return [self._product(itemsize)]

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        return [self._product(itemsize)] * (1 + needs[0])

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept(inputs=(0,))
