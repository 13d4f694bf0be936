"""Activation: base of the layers that act on every element alone and learn nothing."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar

from simdp.arrays import Array
from simdp.workload.layers.base import Kept, Kernel, Layer, Pass, Shape


class Activation(Layer):
    """An elementwise function."""

    flops_per_element: ClassVar[int] = 1
    """Arithmetic per element; these layers are bound by memory, so that a rough count serves."""

    keeps_output: ClassVar[bool] = False
    """Whether backward needs the output; else it needs the input."""

    @abstractmethod
    def value(self, x: Array) -> tuple[Array, Array]:
        """Return f(x) and what `slope` needs: the input or the output."""

    @abstractmethod
    def slope(self, saved: Array) -> Array:
        """Return f'(x)."""

    def output_shape(self, *inputs: Shape) -> Shape:
        return inputs[0]

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        return self.value(inputs[0])

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
        return (dy * self.slope(saved) if needs[0] else None,)

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        size = float(prod(inputs[0]))
        return [Kernel(self.flops_per_element * size, 2 * size * itemsize)]

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        size = float(prod(inputs[0]))
        return [Kernel((self.flops_per_element + 1) * size, 3 * size * itemsize)] * needs[0]

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept(inputs=() if self.keeps_output else (0,), output=self.keeps_output)
