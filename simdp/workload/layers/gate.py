"""Gate: one input goes through an activation and is multiplied with the other, as in SwiGLU."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Literal

import numpy as np

from simdp.arrays import Array
from simdp.workload.layers.activations import Activation, activation
from simdp.workload.layers.arrays.blocks import blocks
from simdp.workload.layers.base import Kept, Kernel, Layer, Pass, Shape, ShapeError


class Gate(Layer):
    """``activation(gate) * up``.

    Attributes
    ----------
    activation : str
        Kind of what the gate goes through.

    References
    ----------
    Shazeer, "GLU variants improve transformer", arXiv 2002.05202.
    """

    kind: Literal["gate"] = "gate"
    activation: str = "silu"

    def _activation(self) -> Activation:
        return activation(self.activation, self.name)

    def output_shape(self, *inputs: Shape) -> Shape:
        if len(inputs) != 2 or inputs[0] != inputs[1]:
            raise ShapeError(
                "takes a gate and another input of its shape, "
                f"but gets samples of shapes {', '.join(map(str, inputs))}"
            )
        return inputs[0]

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        gate, up = (np.ascontiguousarray(x) for x in inputs)
        y, act = np.empty_like(up), self._activation()
        flat = [array.reshape(-1) for array in (gate, up, y)]
        for part in blocks(up.size):
            gates, ups, out = (array[part] for array in flat)
            np.multiply(act.value(gates)[0], ups, out=out)
        return y, (gate, up)

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
        """The activation is computed again: that is cheaper than to bring back what it made."""
        gate, up = saved
        dgate, dup, act = np.empty_like(up), np.empty_like(up), self._activation()
        flat = [array.reshape(-1) for array in (gate, up, np.ascontiguousarray(dy), dgate, dup)]
        for part in blocks(up.size):
            gates, ups, slopes, out, out_up = (array[part] for array in flat)
            opened, needed = act.value(gates)
            np.multiply(slopes, opened, out=out_up)
            np.multiply(slopes, ups, out=out)
            out *= act.slope(needed)
        return tuple(
            array if need else None for array, need in zip((dgate, dup), needs, strict=True)
        )

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        """The activation; the product."""
        size = float(prod(inputs[0]))
        product = Kernel(size, 3 * size * itemsize)
        return [*self._activation().forward_cost(inputs[:1], itemsize), product]

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        """The product's two slopes; the activation's."""
        size = float(prod(inputs[0]))
        products = [Kernel(size, 3 * size * itemsize)] * sum(needs)
        return [*products, *self._activation().backward_cost(inputs[:1], itemsize, needs[:1])]

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        """Both inputs, and what came out of the activation."""
        return Kept(inputs=(0, 1), nbytes=float(prod(inputs[0])) * itemsize)
