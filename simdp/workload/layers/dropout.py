"""Dropout: each element is zero with probability p; the others grow by 1 / (1 - p)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Literal

from pydantic import Field

from simdp.arrays import Array, Bools
from simdp.spec import Float
from simdp.workload.layers.base import Kept, Kernel, Layer, Pass, Shape


class Dropout(Layer):
    """As torch.nn.Dropout in training; which elements stay depends on the sample alone.

    Attributes
    ----------
    p : float
        Share of the elements that are dropped.
    """

    kind: Literal["dropout"] = "dropout"
    p: Float = Field(0.5, ge=0, le=1)

    def output_shape(self, *inputs: Shape) -> Shape:
        return inputs[0]

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        x = inputs[0]
        if not self.p:
            return x, None
        kept = kept_elements(run, self.name, self.p, x.shape[1:])
        return masked(x, kept, self.p), kept

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
        if not needs[0]:
            return (None,)
        return (dy if saved is None else masked(dy, saved, self.p),)

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        size = float(prod(inputs[0]))
        return [dropout_cost(size, itemsize)] * bool(self.p)

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        return self.forward_cost(inputs, itemsize) * needs[0]

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        mask = float(prod(inputs[0])) * bool(self.p)  # one byte per element
        return Kept(nbytes=mask)

    def evaluated(self) -> Layer:
        return self.model_copy(update={"p": 0.0})


def kept_elements(run: Pass, layer: str, p: float, shape: Shape) -> Bools:
    """Which elements of each sample stay, shape `(batch, *shape)`."""
    kept: Bools = run.uniform(layer, shape) >= p
    return kept


def masked(x: Array, kept: Bools, p: float) -> Array:
    """``x / (1 - p)`` where it is kept, else 0; a new array."""
    y: Array = x * x.dtype.type(1 / (1 - p) if p < 1 else 0)
    y *= kept
    return y


def dropout_cost(size: float, itemsize: int) -> Kernel:
    """Reads and writes the elements, and the mask in one byte each."""
    return Kernel(2 * size, size * (2 * itemsize + 1))
