"""Embedding: a learned row for each token, as torch.nn.Embedding."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Literal, Self

import numpy as np
from pydantic import model_validator

from simdp.arrays import Array, Ints
from simdp.spec import Int
from simdp.workload.layers.arguments import check_token
from simdp.workload.layers.base import Kept, Kernel, Pass, Shape
from simdp.workload.layers.embedding_table import EmbeddingTable

TOKEN_NBYTES = 8
"""Tokens are int64."""


class Embedding(EmbeddingTable):
    """Rows of a weight of shape ``(num_embeddings, embedding_dim)``, looked up by token.

    Attributes
    ----------
    padding_idx : int or None
        A token whose row starts at 0 and gets no gradient.
    """

    kind: Literal["embedding"] = "embedding"
    padding_idx: Int | None = None

    @model_validator(mode="after")
    def _padding_is_a_token(self) -> Self:
        check_token("padding_idx", self.padding_idx, self.num_embeddings)
        return self

    def zero_row(self) -> int | None:
        return self.padding_idx

    def output_shape(self, *inputs: Shape) -> Shape:
        return (*inputs[0], self.embedding_dim)

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        return run.parameters[f"{self.name}.weight"].take(inputs[0], axis=0), inputs[0]

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
        weight = f"{self.name}.weight"
        tokens, sums = sums_by_token(saved.reshape(-1), dy.reshape(-1, self.embedding_dim))
        gradient = run.room(weight)
        gradient.fill(0)
        gradient[tokens] = sums
        if self.padding_idx is not None:
            gradient[self.padding_idx] = 0
        run.add_gradient(weight, gradient)
        return (None,)

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        tokens = float(prod(inputs[0]))
        return [Kernel(0.0, tokens * (2 * self.embedding_dim * itemsize + TOKEN_NBYTES))]

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        tokens, width = float(prod(inputs[0])), self.embedding_dim
        added = Kernel(tokens * width, tokens * (3 * width * itemsize + TOKEN_NBYTES))
        return [self.clearing(itemsize), added]

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return Kept(inputs=(0,))


def sums_by_token(tokens: Ints, rows: Array) -> tuple[Ints, Array]:
    """Add the rows of equal tokens, in their order.

    Parameters
    ----------
    tokens : ndarray, shape `(num_rows,)`
        What each row belongs to.
    rows : ndarray, shape `(num_rows, width)`

    Returns
    -------
    (ndarray, ndarray)
        The different tokens, rising, and the sum of each one's rows.
    """
    # A product with a sparse matrix of ones reads each row once and in C: on 1,024 rows of 256
    # ten times as fast as np.add.reduceat, fifteen times as fast as np.add.at.
    from scipy.sparse import csr_array

    order = np.argsort(tokens, kind="stable")
    ordered = tokens[order]
    begins = np.flatnonzero(np.diff(ordered, prepend=-1))
    ends = np.append(begins, len(tokens))
    ones = np.ones(len(tokens), dtype=rows.dtype)
    which = csr_array((ones, order, ends), shape=(len(begins), len(tokens)))
    return ordered[begins], which @ rows
