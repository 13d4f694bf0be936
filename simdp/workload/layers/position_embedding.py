"""PositionEmbedding: a learned row for each place in a sequence, added to what stands there."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Literal

from simdp.arrays import Array
from simdp.workload.layers.base import Kept, Kernel, Pass, Shape, ShapeError
from simdp.workload.layers.embedding_table import EmbeddingTable
from simdp.workload.layers.shapes import last_axis, sequence_shape


class PositionEmbedding(EmbeddingTable):
    """``y = x + weight[0 ... length - 1]``: an Embedding of the places, as in BERT and GPT-2."""

    kind: Literal["position_embedding"] = "position_embedding"

    def output_shape(self, *inputs: Shape) -> Shape:
        length, _ = sequence_shape(inputs[0])
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
        gradient, length = run.room(weight), dy.shape[1]
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
        """First the sum over the samples."""
        size = prod(inputs[0]) * itemsize
        summed = Kernel(size / itemsize, float(size), float(size))
        return [summed, self.clearing(itemsize), Kernel(0, 0, 3.0 * size)]

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept()
