"""QuantizedLinear: a linear map whose weight is stored in 4 bits, as bitsandbytes' Linear4bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simdp.arrays import Array
from simdp.workload.layers.base import Kernel, Pass, Shape
from simdp.workload.layers.linear import Linear
from simdp.workload.layers.parameter import Parameter

SCALE_NBYTES, SMALL_NBYTES = 4, 1
"""Of a block's scale, in float32 or in 8 bits."""

SECOND_BLOCK = 256
"""Scales that share a scale of their own (QLoRA, section 3)."""


class QuantizedLinear(Linear):
    """``y = x W^T + b``; W is packed, and unpacked by kernels before every use.

    Attributes
    ----------
    storage_itemsize : int
        Bytes of the numbers that 4-bit ones are packed into.
    block, double
        As of `simdp.workload.quantized.Quantized`.
    """

    storage_itemsize: int
    block: int
    double: bool

    def parameters(self) -> list[Parameter]:
        """The weight, packed into one column, and the bias."""
        weight, *bias = super().parameters()
        packed = -(-weight.num_elements // (2 * self.storage_itemsize))
        return [weight._replace(shape=(packed, 1)), *bias]

    @property
    def constant_nbytes(self) -> float:
        blocks = -(-self._num_weights // self.block)
        if not self.double:
            return float(SCALE_NBYTES * blocks)
        return float(SMALL_NBYTES * blocks + SCALE_NBYTES * -(-blocks // SECOND_BLOCK))

    @property
    def _num_weights(self) -> int:
        return self.in_features * self.out_features

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        """There are no numbers; the scenario's checks refuse to ask for them."""
        raise AssertionError(f"{self.name} has times but no numbers")

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
        """As `forward`."""
        raise AssertionError(f"{self.name} has times but no numbers")

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        return [*self._unpacked(itemsize), *super().forward_cost(inputs, itemsize)]

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        products = super().backward_cost(inputs, itemsize, needs)
        return [*self._unpacked(itemsize) * needs[0], *products]

    def model_flops(self, inputs: Sequence[Shape]) -> float:
        return sum(kernel.flops for kernel in super().forward_cost(inputs, 1))

    def _unpacked(self, itemsize: int) -> list[Kernel]:
        """Scales from 8 bits to float32, where they have 8, with their mean; then the weight."""
        size, blocks = float(self._num_weights), float(-(-self._num_weights // self.block))
        scales = [Kernel(0.0, 0.0, blocks * (SMALL_NBYTES + SCALE_NBYTES))]
        scales.append(Kernel(0.0, 0.0, 2 * blocks * SCALE_NBYTES))
        weight = Kernel(0.0, 0.0, size / 2 + blocks * SCALE_NBYTES + size * itemsize)
        return [*scales * self.double, weight]
