"""Embeddings of tokens, positions, token types and image patches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import log, prod
from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from simdp.arrays import Array, Ints
from simdp.spec import Int
from simdp.workload.layers.base import (
    FreeBackward,
    Gradients,
    KeepsInput,
    KeepsNothing,
    Kernel,
    Layer,
    Needs,
    Parameter,
    Pass,
    Shape,
    ShapeError,
    check_token,
    image_shape,
    last_axis,
    normal,
    sequence_shape,
)


class EmbeddingTable(Layer):
    """Rows of a weight of shape ``(num_embeddings, embedding_dim)``."""

    num_embeddings: Int = Field(ge=1, le=10**9)
    """Rows."""
    embedding_dim: Int = Field(ge=1, le=10**8)
    """Length of a row."""

    splits_backward: ClassVar[bool] = True

    def zero_row(self) -> int | None:
        """Row that starts at 0; None by default."""
        return None

    def parameters(self) -> list[Parameter]:
        shape = (self.num_embeddings, self.embedding_dim)
        return [Parameter(f"{self.name}.weight", shape, normal(1.0, self.zero_row()))]

    def clearing(self, itemsize: int) -> Kernel:
        """Kernel that clears the dense gradient before rows are added."""
        return Kernel(0.0, 0.0, float(self.num_embeddings * self.embedding_dim * itemsize))


TOKEN_NBYTES = 8
"""Tokens are int64."""


class Embedding(KeepsInput, EmbeddingTable):
    """Rows of a weight of shape ``(num_embeddings, embedding_dim)``, looked up by token."""

    kind: Literal["embedding"] = "embedding"
    padding_idx: Int | None = None
    """Token whose row starts at 0 and gets no gradient."""

    @model_validator(mode="after")
    def _padding_is_a_token(self) -> Self:
        check_token("padding_idx", self.padding_idx, self.num_embeddings)
        return self

    @property
    def vocabulary(self) -> int | None:
        return self.num_embeddings

    def zero_row(self) -> int | None:
        return self.padding_idx

    def output_shape(self, *inputs: Shape) -> Shape:
        return (*inputs[0], self.embedding_dim)

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Ints]:
        return run.parameters[f"{self.name}.weight"].take(inputs[0], axis=0), inputs[0]

    def backward(self, run: Pass, saved: Ints, dy: Array, needs: Needs) -> Gradients:
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

    def backward_cost(self, inputs: Sequence[Shape], itemsize: int, needs: Needs) -> list[Kernel]:
        tokens, width = float(prod(inputs[0])), self.embedding_dim
        added = Kernel(tokens * width, tokens * (3 * width * itemsize + TOKEN_NBYTES))
        return [self.clearing(itemsize), added]


def sums_by_token(tokens: Ints, rows: Array) -> tuple[Ints, Array]:
    """The distinct tokens, ascending, and the sum of the rows of each, in their order.

    ``tokens`` has shape `(num_rows,)`, ``rows`` shape `(num_rows, width)`.
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


class PositionEmbedding(KeepsNothing, EmbeddingTable):
    """``y = x + weight[0 ... length - 1]``: an Embedding of positions, as in BERT and GPT-2."""

    kind: Literal["position_embedding"] = "position_embedding"

    def output_shape(self, *inputs: Shape) -> Shape:
        length, _ = sequence_shape(inputs[0])
        last_axis(inputs[0], self.embedding_dim)
        if length > self.num_embeddings:
            raise ShapeError(f"has {self.num_embeddings} positions, but gets {length} tokens")
        return inputs[0]

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, None]:
        length = inputs[0].shape[1]
        return inputs[0] + run.parameters[f"{self.name}.weight"][:length], None

    def backward(self, run: Pass, saved: None, dy: Array, needs: Needs) -> Gradients:
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

    def backward_cost(self, inputs: Sequence[Shape], itemsize: int, needs: Needs) -> list[Kernel]:
        """The sum over the samples, then the gradient's rows."""
        size = prod(inputs[0]) * itemsize
        summed = Kernel(size / itemsize, float(size), float(size))
        return [summed, self.clearing(itemsize), Kernel(0, 0, 3.0 * size)]


class PositionalEncoding(FreeBackward):
    """Adds ``sin(t / 10000^(2 i / d))`` to column 2 i and the cosine to column 2 i + 1.

    Vaswani et al., "Attention is all you need", NIPS 2017, section 3.5.
    """

    kind: Literal["positional_encoding"] = "positional_encoding"
    d_model: Int = Field(ge=1, le=10**8)
    """Columns, d."""

    def output_shape(self, *inputs: Shape) -> Shape:
        sequence_shape(inputs[0])
        last_axis(inputs[0], self.d_model)
        return inputs[0]

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, None]:
        x = inputs[0]
        return x + waves(x.shape[1], self.d_model, x.dtype.name), None

    def backward(self, run: Pass, saved: None, dy: Array, needs: Needs) -> Gradients:
        return (dy if needs[0] else None,)

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        size = float(prod(inputs[0]))
        return [Kernel(size, 2 * size * itemsize, size * itemsize)]


@lru_cache(maxsize=16)  # enough for one step; 1,024 tokens of width 1,024 take 4 MB
def waves(length: int, d_model: int, dtype: str) -> Array:
    """Encoding of the first positions, shape `(length, d_model)`, computed in float64."""
    step = np.exp(np.arange(0, d_model, 2) * (-log(10000.0) / d_model))
    angle = np.arange(length)[:, None] * step
    encoding = np.empty((length, d_model))
    encoding[:, 0::2] = np.sin(angle)
    encoding[:, 1::2] = np.cos(angle[:, : d_model // 2])
    encoding = encoding.astype(dtype)
    encoding.setflags(write=False)  # cached
    return encoding


class TokenTypeEmbedding(KeepsNothing, EmbeddingTable):
    """``y = x + weight[0]``: an Embedding of token types that are all 0, the default."""

    kind: Literal["token_type_embedding"] = "token_type_embedding"

    def output_shape(self, *inputs: Shape) -> Shape:
        last_axis(inputs[0], self.embedding_dim)
        return inputs[0]

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, None]:
        return inputs[0] + run.parameters[f"{self.name}.weight"][0], None

    def backward(self, run: Pass, saved: None, dy: Array, needs: Needs) -> Gradients:
        weight = f"{self.name}.weight"
        gradient = run.room(weight)
        flat = dy.reshape(-1, self.embedding_dim)
        gradient[0] = np.ones(len(flat), dtype=dy.dtype) @ flat
        gradient[1:] = 0
        run.add_gradient(weight, gradient)
        return (dy if needs[0] else None,)

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        """Gathers a row for every token, then adds it."""
        size = float(prod(inputs[0]))
        return [Kernel(0.0, 2 * size * itemsize), Kernel(size, 3 * size * itemsize)]

    def backward_cost(self, inputs: Sequence[Shape], itemsize: int, needs: Needs) -> list[Kernel]:
        size = float(prod(inputs[0]))
        return [self.clearing(itemsize), Kernel(size, 3 * size * itemsize)]


class ViTEmbeddings(KeepsNothing):
    """``[cls_token, patches row by row] + position_embeddings``, of a map of patches.

    Dosovitskiy et al., "An image is worth 16x16 words", ICLR 2021 (arXiv 2010.11929), equation 1;
    transformers/models/vit/modeling_vit.py.
    """

    kind: Literal["vit_embeddings"] = "vit_embeddings"

    autocast = "float32"  # it adds 32-bit positions

    num_patches: Int = Field(ge=1)
    hidden_size: Int = Field(ge=1)

    def parameters(self) -> list[Parameter]:
        cls, places = self._names
        d = self.hidden_size
        return [
            Parameter(cls, (1, 1, d), normal(0.02)),
            Parameter(places, (1, self.num_patches + 1, d), normal(0.02)),
        ]

    @property
    def _names(self) -> tuple[str, str]:
        return f"{self.name}.cls_token", f"{self.name}.position_embeddings"

    def ready_order(self) -> list[str]:
        return list(reversed(self._names))  # added last, ready first

    def output_shape(self, *inputs: Shape) -> Shape:
        channels, height, width = image_shape(inputs[0])
        if (channels, height * width) != (self.hidden_size, self.num_patches):
            raise ShapeError(
                f"takes {self.num_patches} patches of {self.hidden_size} channels, "
                f"but gets samples of shape {inputs[0]}"
            )
        return (self.num_patches + 1, channels)

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Shape]:
        x = inputs[0]
        cls, places = (run.parameters[name] for name in self._names)
        y: Array = np.empty((len(x), *self.output_shape(x.shape[1:])), dtype=x.dtype)
        y[:, :1] = cls
        y[:, 1:] = x.reshape(*x.shape[:2], self.num_patches).swapaxes(1, 2)
        y += places
        return y, x.shape

    def backward(self, run: Pass, saved: Shape, dy: Array, needs: Needs) -> Gradients:
        cls, places = self._names
        summed = dy.sum(axis=0, keepdims=True, out=run.room(places))
        first = run.room(cls)
        first[...] = summed[:, :1]
        run.add_gradient(places, summed)
        run.add_gradient(cls, first)
        if not needs[0]:
            return (None,)
        return (np.ascontiguousarray(dy[:, 1:].swapaxes(1, 2)).reshape(saved),)

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        """Joins the tokens, then adds the positions."""
        size = float(prod(self.output_shape(*inputs)))
        return [
            Kernel(0.0, 2 * size * itemsize),
            Kernel(size, 2 * size * itemsize, size * itemsize),
        ]

    def backward_cost(self, inputs: Sequence[Shape], itemsize: int, needs: Needs) -> list[Kernel]:
        """Sums over the samples; a copy in the convolution's memory order."""
        size, d = float(prod(self.output_shape(*inputs))), float(self.hidden_size)
        copied = Kernel(0.0, 2.0 * prod(inputs[0]) * itemsize)
        return [
            Kernel(size, size * itemsize, size * itemsize),
            Kernel(d, d * itemsize, d * itemsize),
            *[copied] * needs[0],
        ]
