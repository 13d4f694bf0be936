"""QuickGELU: x sigmoid(1.702 x), as transformers' quick_gelu."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import ClassVar, Literal

from simdp.arrays import Array
from simdp.workload.layers.activations.base import Activation
from simdp.workload.layers.activations.sigmoid import logistic
from simdp.workload.layers.base import Kept, Kernel, Shape

STEEP = 1.702


class QuickGELU(Activation):
    """GELU by a sigmoid (Hendrycks and Gimpel, arXiv 1606.08415, section 2).

    transformers writes it in three steps, each with a kernel of its own; the sigmoid is kept too.
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
        one = Kernel(size, 2 * size * itemsize)
        return [one, one._replace(flops=4 * size), one._replace(nbytes=3 * size * itemsize)]

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        """Of the product two kernels, then back through the sigmoid and the factor, and a sum."""
        size = float(prod(inputs[0]))
        two, three = Kernel(size, 2 * size * itemsize), Kernel(size, 3 * size * itemsize)
        return [three, three, three._replace(flops=3 * size), two, three] * needs[0]

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept(inputs=(0,), nbytes=float(prod(inputs[0])) * itemsize)
