"""ReLU2: the square of what is above 0, as transformers' relu2."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import ClassVar, Literal

import numpy as np

from simdp.arrays import Array
from simdp.workload.layers.activations.base import Activation
from simdp.workload.layers.base import Kept, Kernel, Shape


class ReLU2(Activation):
    """Squared rectified linear unit (So et al., arXiv 2109.08668).

    transformers writes it in two steps, each with a kernel of its own; what is between is kept.
    """

    kind: Literal["relu2"] = "relu2"
    flops_per_element: ClassVar[int] = 2

    def value(self, x: Array) -> tuple[Array, Array]:
        above = np.maximum(x, 0)
        return above * above, above

    def slope(self, saved: Array) -> Array:
        slope: Array = 2 * saved
        return slope

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        size = float(prod(inputs[0]))
        return [Kernel(size, 2 * size * itemsize)] * 2

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        size = float(prod(inputs[0]))
        through = [Kernel(2 * size, 3 * size * itemsize), Kernel(size, 3 * size * itemsize)]
        return through * needs[0]

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept(nbytes=float(prod(inputs[0])) * itemsize)
