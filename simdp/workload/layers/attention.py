"""Attention: scaled dot products of queries and keys weigh the values, in several heads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod, sqrt
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from simdp.arrays import Array
from simdp.spec import Bool, Float, Int
from simdp.workload.layers.arrays.blocks import blocks
from simdp.workload.layers.base import Kept, Kernel, Layer, Pass, Shape, ShapeError
from simdp.workload.layers.dropout import dropout_cost, kept_elements, masked
from simdp.workload.layers.shapes import sequence_shape

if TYPE_CHECKING:
    from simdp.workload.graph import Value

BLOCK_SCORES = 2**16
"""Scores worked on at a time, so that they stay in a core's cache."""

PARTS = {1: (3,), 2: (1, 2), 3: (1, 1, 1)}
"""How many of queries, keys and values each input packs, by the number of inputs."""


class KeyPadding(NamedTuple):
    """Which keys nobody looks at: those whose token is the padding."""

    tokens: Value
    pad_id: int


class Attention(Layer):
    """``softmax(Q K^T / sqrt(d) + mask) V`` in each head, as torch's scaled_dot_product_attention.

    Takes queries, keys and values packed along the last axis; or the queries, and then keys and
    values packed; or all three apart. Where ``pad_id`` is given, last, the tokens that the keys
    belong to. A query that may look at nothing gets zeros, as in torch.

    Attributes
    ----------
    num_heads : int
        Heads, each of which has an equal part of the width.
    causal : bool
        Whether a query looks only at keys up to its own place.
    dropout : float
        Probability that a weight is left out; it is drawn for each sample alone.
    pad_id : int or None
        Keys of this token are looked at by nobody.

    References
    ----------
    Vaswani et al., "Attention is all you need", NIPS 2017, section 3.2.
    """

    kind: Literal["attention"] = "attention"
    num_heads: Int = Field(ge=1)
    causal: Bool = False
    dropout: Float = Field(0.0, ge=0, le=1)
    pad_id: Int | None = None

    autocast: ClassVar[Literal["lower"]] = "lower"

    @property
    def costly(self) -> Literal["product", "fused_attention", "no"]:
        return "no"

    def _sizes(self, inputs: Sequence[Shape]) -> tuple[int, int, int]:
        """Length of the queries, length of the keys, and features of all heads."""
        packed = inputs[: len(inputs) - (self.pad_id is not None)]
        shapes, parts = [sequence_shape(shape) for shape in packed], PARTS[len(packed)]
        (queries, width), (keys, _) = shapes[0], shapes[-1]
        embed_dim = width // parts[0]
        lengths = (queries, *[keys] * (len(parts) - 1))
        wanted = [(n, part * embed_dim) for n, part in zip(lengths, parts, strict=True)]
        if shapes != wanted or embed_dim % self.num_heads:
            raise ShapeError(
                f"takes packed queries, keys and values of {self.num_heads} heads, but gets "
                f"samples of shape {' and '.join(map(str, packed))}"
            )
        if self.pad_id is not None and inputs[-1] != (keys,):
            raise ShapeError(f"gets {keys} keys, but tokens of shape {inputs[-1]}")
        return queries, keys, embed_dim

    def output_shape(self, *inputs: Shape) -> Shape:
        queries, _, embed_dim = self._sizes(inputs)
        return queries, embed_dim

    def _heads(self, *packed: Array) -> list[Array]:
        """Queries, keys and values as views of shape `(batch, heads, length, d)`."""
        found = []
        for array, parts in zip(packed, PARTS[len(packed)], strict=True):
            depth = array.shape[2] // (parts * self.num_heads)
            split = array.reshape(*array.shape[:2], parts, self.num_heads, depth)
            found += [split[:, :, part].swapaxes(1, 2) for part in range(parts)]
        return found

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        packed = inputs[: len(inputs) - (self.pad_id is not None)]
        tokens = None if self.pad_id is None else inputs[-1]
        queries, keys, values = self._heads(*packed)
        y: Array = np.empty(queries.swapaxes(1, 2).shape, dtype=queries.dtype)
        weights = np.empty((*queries.shape[:3], keys.shape[2]), dtype=queries.dtype)
        kept = np.empty(weights.shape, dtype=bool) if self.dropout else None
        scale = queries.dtype.type(1 / sqrt(queries.shape[3]))
        for part in sample_blocks(weights):
            scores = np.matmul(queries[part], keys[part].swapaxes(2, 3), out=weights[part])
            scores *= scale
            if self.causal:
                scores += _look_back(*scores.shape[2:], scores.dtype.name)
            if tokens is not None:
                hidden = np.where(tokens[part] == self.pad_id, -np.inf, 0).astype(scores.dtype)
                scores += hidden[:, None, None]
            softmax(scores)
            if kept is not None:
                own = replace(run, samples=run.samples[part])
                kept[part] = kept_elements(own, self.name, self.dropout, scores.shape[1:])
                scores = masked(scores, kept[part], self.dropout)
            np.matmul(scores, values[part], out=y[part].swapaxes(1, 2))
        return y.reshape(*y.shape[:2], y.shape[2] * y.shape[3]), (packed, weights, kept)

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
        packed, weights, kept = saved
        queries, keys, values = self._heads(*packed)
        gradients = [np.empty_like(array) for array in packed]
        dqueries, dkeys, dvalues = self._heads(*gradients)
        depth = queries.shape[3]
        slopes = dy.reshape(*dy.shape[:2], self.num_heads, depth).swapaxes(1, 2)
        scale = dy.dtype.type(1 / sqrt(depth))
        for part in sample_blocks(weights):
            used = weights[part]
            if kept is not None:
                used = masked(used, kept[part], self.dropout)
            np.matmul(used.swapaxes(2, 3), slopes[part], out=dvalues[part])
            dscores = np.matmul(slopes[part], values[part].swapaxes(2, 3))
            # softmax: dS = P (dP - sum(P dP)); with dropout the kept share of dP counts
            if kept is None:
                dscores -= np.vecdot(used, dscores)[..., None]
                dscores *= used
            else:
                dscores *= used
                dscores -= weights[part] * dscores.sum(axis=3, keepdims=True)
            dscores *= scale
            np.matmul(dscores, keys[part], out=dqueries[part])
            np.matmul(dscores.swapaxes(2, 3), queries[part], out=dkeys[part])
        tokens = [None] * (self.pad_id is not None)
        found = zip([*gradients, *tokens], needs, strict=True)
        return tuple(gradient if need else None for gradient, need in found)

    # Costs, kernel by kernel, as torch's plain implementation launches them --------------------

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        """Heads apart, QK^T with the mask, softmax, dropout, PV, heads together."""
        queries, keys, width = self._sizes(inputs)
        scores = float(self.num_heads * queries * keys)
        packed = (queries + 2 * keys) * width * itemsize
        return [
            Kernel(0.0, 2.0 * packed),
            self._product(queries, keys, width, itemsize),
            Kernel(5 * scores, 2 * scores * itemsize),
            *[dropout_cost(scores, itemsize)] * bool(self.dropout),
            self._product(queries, keys, width, itemsize),
            Kernel(0.0, 2.0 * queries * width * itemsize),
        ]

    def model_flops(self, inputs: Sequence[Shape]) -> float:
        """Of two products, without softmax; of all pairs of tokens, where it is causal too."""
        queries, keys, width = self._sizes(inputs)
        return 4.0 * queries * keys * width

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        """Slopes of V and P, dropout, softmax, those of Q and K, heads together."""
        queries, keys, width = self._sizes(inputs)
        scores = float(self.num_heads * queries * keys)
        product = self._product(queries, keys, width, itemsize)
        return [
            product,
            product,
            *[dropout_cost(scores, itemsize)] * bool(self.dropout),
            Kernel(4 * scores, 3 * scores * itemsize),
            product,
            product,
            Kernel(0.0, 2.0 * (queries + 2 * keys) * width * itemsize),
        ]

    def _product(self, queries: int, keys: int, width: int, itemsize: int) -> Kernel:
        """One of the six products; each moves the scores and two of Q, K, V and their like."""
        moved = self.num_heads * queries * keys + (queries + keys) * width
        return Kernel(2.0 * queries * keys * width, float(moved * itemsize))

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        """Queries, keys, values and all weights; with dropout these once more, and the mask."""
        queries, keys, _ = self._sizes(inputs)
        scores = float(self.num_heads * queries * keys)
        dropped = scores * (itemsize + 1) * bool(self.dropout)
        packed = tuple(range(len(inputs) - (self.pad_id is not None)))
        return Kept(inputs=packed, nbytes=scores * itemsize + dropped)

    def evaluated(self) -> Layer:
        return self.model_copy(update={"dropout": 0.0})


def softmax(scores: Array) -> None:
    """Softmax of the last axis, in place; a row of -inf becomes zeros."""
    top = scores.max(axis=-1, keepdims=True)
    np.maximum(top, np.finfo(scores.dtype).min, out=top)
    scores -= top
    np.exp(scores, out=scores)
    flat = scores.reshape(-1, scores.shape[-1])
    total = flat @ np.ones(flat.shape[1], dtype=scores.dtype)
    np.maximum(total, 1, out=total)  # the largest counts as 1, so that only rows of zeros are less
    flat *= (1 / total)[:, None]


def sample_blocks(scores: Array) -> Iterator[slice]:
    """Cut a batch so that the scores of each part stay in a core's cache."""
    return blocks(len(scores), prod(scores.shape[1:]), BLOCK_SCORES)


@lru_cache(maxsize=16)  # those of one step; a mask of 1,024 tokens takes 4 MB
def _look_back(queries: int, keys: int, dtype: str) -> Array:
    """-inf where a key stands after the query, shape `(queries, keys)`."""
    mask = np.triu(np.full((queries, keys), -np.inf, dtype=dtype), k=1)
    mask.setflags(write=False)  # it is handed out again and again
    return mask
