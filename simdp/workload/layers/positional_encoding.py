"""PositionalEncoding: fixed waves that tell the places of a sequence apart; nothing is learned."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import log, prod
from typing import Any, Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Array
from simdp.spec import Int
from simdp.workload.layers.base import Kept, Kernel, Layer, Pass, Shape
from simdp.workload.layers.shapes import last_axis, sequence_shape


class PositionalEncoding(Layer):
    """Adds ``sin(t / 10000^(2 i / d))`` to column 2 i and the cosine to column 2 i + 1.

    Vaswani et al., "Attention is all you need", NIPS 2017, section 3.5.

    Attributes
    ----------
    d_model : int
        Columns, d.
    """

    kind: Literal["positional_encoding"] = "positional_encoding"
    d_model: Int = Field(ge=1, le=10**8)

    def output_shape(self, *inputs: Shape) -> Shape:
        sequence_shape(inputs[0])
        last_axis(inputs[0], self.d_model)
        return inputs[0]

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        x = inputs[0]
        return x + waves(x.shape[1], self.d_model, x.dtype.name), None

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
        return (dy if needs[0] else None,)

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        size = float(prod(inputs[0]))
        return [Kernel(size, 2 * size * itemsize, size * itemsize)]

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        return []

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept()


@lru_cache(maxsize=16)  # those of one step; 1,024 tokens of width 1,024 take 4 MB
def waves(length: int, d_model: int, dtype: str) -> Array:
    """The encoding of the first places, shape `(length, d_model)`, worked out in float64."""
    step = np.exp(np.arange(0, d_model, 2) * (-log(10000.0) / d_model))
    angle = np.arange(length)[:, None] * step
    found = np.empty((length, d_model))
    found[:, 0::2] = np.sin(angle)
    found[:, 1::2] = np.cos(angle[:, : d_model // 2])
    found = found.astype(dtype)
    found.setflags(write=False)  # it is handed out again and again
    return found
