"""TokenTypeEmbedding: BERT's mark of the sentence that a token is in; here all are in the first."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Literal

import numpy as np

from simdp.arrays import Array
from simdp.workload.layers.base import Kept, Kernel, Pass, Shape
from simdp.workload.layers.embedding_table import EmbeddingTable
from simdp.workload.layers.shapes import last_axis


class TokenTypeEmbedding(EmbeddingTable):
    """``y = x + weight[0]``: an Embedding of types that are all 0, as where none are given."""

    kind: Literal["token_type_embedding"] = "token_type_embedding"

    def output_shape(self, *inputs: Shape) -> Shape:
        last_axis(inputs[0], self.embedding_dim)
        return inputs[0]

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        return inputs[0] + run.parameters[f"{self.name}.weight"][0], None

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
        weight = f"{self.name}.weight"
        gradient = run.room(weight)
        flat = dy.reshape(-1, self.embedding_dim)
        gradient[0] = np.ones(len(flat), dtype=dy.dtype) @ flat
        gradient[1:] = 0
        run.add_gradient(weight, gradient)
        return (dy if needs[0] else None,)

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        """A row is gathered for every token, and added."""
        size = float(prod(inputs[0]))
        return [Kernel(0.0, 2 * size * itemsize), Kernel(size, 3 * size * itemsize)]

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        size = float(prod(inputs[0]))
        return [self.clearing(itemsize), Kernel(size, 3 * size * itemsize)]

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept()
