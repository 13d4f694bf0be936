"""PositionEmbedding: a learned row for each place in a sequence, added to what stands there."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Literal

import numpy as np
from pydantic import Field

from simdp.spec import Int
from simdp.workload.layers.base import (
    Array,
    Kept,
    Kernel,
    Layer,
    Pass,
    Shape,
    ShapeError,
    last_axis,
)
from simdp.workload.layers.parameter import Parameter, normal
from simdp.workload.layers.sequence import sequence


class PositionEmbedding(Layer):
    """``y = x + weight[0 ... length - 1]``: an Embedding of the places, as in BERT and GPT-2."""

    kind: Literal["position_embedding"] = "position_embedding"
    num_embeddings: Int = Field(ge=1, le=10**9)
    embedding_dim: Int = Field(ge=1, le=10**8)

    def parameters(self) -> list[Parameter]:
        shape = (self.num_embeddings, self.embedding_dim)
        return [Parameter(f"{self.name}.weight", shape, normal(1.0))]

    def output_shape(self, *inputs: Shape) -> Shape:
        length, _ = sequence(inputs[0])
        last_axis(inputs[0], self.embedding_dim)
        if length > self.num_embeddings:
            raise ShapeError(f"knows {self.num_embeddings} places, but gets {length} tokens")
        return inputs[0]

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        length = inputs[0].shape[1]
        return inputs[0] + run.parameters[f"{self.name}.weight"][:length], None

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
        weight = f"{self.name}.weight"
        gradient = run.room(weight)
        if gradient is None:
            gradient = np.empty((self.num_embeddings, self.embedding_dim), dtype=dy.dtype)
        length = dy.shape[1]
        dy.sum(axis=0, out=gradient[:length])
        gradient[length:] = 0
        run.add_gradient(weight, gradient)
        return (dy if needs[0] else None,)

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        size = prod(inputs[0]) * itemsize
        gather = Kernel(0.0, 0.0, 2.0 * size)  # once for all samples
        return [gather, Kernel(size / itemsize, 2.0 * size, float(size))]

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        """Sum over the samples, then the dense gradient is cleared and rows are added to it."""
        size = prod(inputs[0]) * itemsize
        cleared = Kernel(0.0, 0.0, float(self.num_embeddings * self.embedding_dim * itemsize))
        return [
            Kernel(size / itemsize, float(size), float(size)),
            cleared,
            Kernel(0, 0, 3.0 * size),
        ]

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept()
