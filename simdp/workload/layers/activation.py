"""Activation: base of the layers that act on every element alone and learn nothing."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from pydantic import Field

from simdp.spec import Int
from simdp.workload.layers.base import NO_ARRAYS, Array, Cost, Floats, Layer, Parameters, cost


class Activation(Layer):
    """An elementwise function of a sample with ``features`` elements."""

    features: Int = Field(ge=1)

    flops_per_element: ClassVar[int] = 1
    """Arithmetic per element; these layers are bound by memory, so that a rough count serves."""

    @abstractmethod
    def value(self, x: Array) -> tuple[Array, Array]:
        """Return f(x) and what `slope` needs: the input or the output."""

    @abstractmethod
    def slope(self, saved: Array) -> Array:
        """Return f'(x)."""

    def forward(self, parameters: Parameters, x: Array) -> tuple[Array, Any]:
        return self.value(x)

    def backward(
        self,
        parameters: Parameters,
        saved: Any,
        dy: Array,
        need_input_grad: bool,
        into: Parameters = NO_ARRAYS,
    ) -> tuple[Array | None, dict[str, Array]]:
        return (dy * self.slope(saved) if need_input_grad else None), {}

    def forward_cost(self, batch: Floats, itemsize: int) -> Cost:
        return cost(batch, self.flops_per_element * self.features, 2 * self.features * itemsize, 1)

    def backward_cost(self, batch: Floats, itemsize: int, need_input_grad: bool) -> Cost:
        if not need_input_grad:
            return cost(batch, 0, 0, 0)
        flops = (self.flops_per_element + 1) * self.features
        return cost(batch, flops, 3 * self.features * itemsize, 1)

    def activation_nbytes(self, batch: Floats, itemsize: int) -> Floats:
        return batch * self.features * itemsize
