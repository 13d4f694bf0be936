"""EmbeddingTable: base of the layers that look rows up in a learned table."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from simdp.spec import Int
from simdp.workload.layers.base import Kernel, Layer
from simdp.workload.layers.parameter import Parameter, normal


class EmbeddingTable(Layer):
    """Rows of a weight of shape ``(num_embeddings, embedding_dim)``.

    Attributes
    ----------
    num_embeddings : int
        Rows.
    embedding_dim : int
        Length of a row.
    """

    num_embeddings: Int = Field(ge=1, le=10**9)
    embedding_dim: Int = Field(ge=1, le=10**8)

    splits_backward: ClassVar[bool] = True

    def zero_row(self) -> int | None:
        """A row that starts at 0; by default none does."""
        return None

    def parameters(self) -> list[Parameter]:
        shape = (self.num_embeddings, self.embedding_dim)
        return [Parameter(f"{self.name}.weight", shape, normal(1.0, self.zero_row()))]

    def clearing(self, itemsize: int) -> Kernel:
        """The dense gradient is cleared before rows are added to it."""
        return Kernel(0.0, 0.0, float(self.num_embeddings * self.embedding_dim * itemsize))
