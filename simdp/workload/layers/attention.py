"""Attention: scaled dot products of queries and keys weigh the values, in several heads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod, sqrt
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from simdp.arrays import Array
from simdp.spec import Bool, Float, Int
from simdp.workload.layers import attention_costs
from simdp.workload.layers.arrays.blocks import blocks
from simdp.workload.layers.arrays.flash import Parts, Sight, attend, attend_back
from simdp.workload.layers.arrays.scores import distances, look_back, softmax
from simdp.workload.layers.attention_costs import Work
from simdp.workload.layers.base import Kept, Kernel, Layer, Pass, Shape, ShapeError
from simdp.workload.layers.dropout import kept_elements, masked
from simdp.workload.layers.shapes import sequence_shape

if TYPE_CHECKING:
    from simdp.workload.graph import Value

BLOCK_SCORES = 2**16
"""Scores worked on at a time, so that they stay in a core's cache."""

Implementation = Literal["eager", "flash"]


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
    num_kv_heads : int or None
        Heads of keys and values, each of which serves as many heads of the queries as the others;
        by default there are as many. Ainslie et al., "GQA", arXiv 2305.13245.
    causal : bool
        Whether a query looks only at keys up to its own place.
    window : int or None
        How many keys a causal query looks at, its own the last of them; all by default.
    alibi : float or None
        Add to each score how far away its key is, times a slope of the head, down to
        ``2^-alibi``; see `distances`.
    dropout : float
        Probability that a weight is left out; it is drawn for each sample alone.
    pad_id : int or None
        Keys of this token are looked at by nobody.
    interleaved : bool
        Whether in one packed input each head's query, key and value stand side by side, as in
        GPT-NeoX, instead of all queries before all keys and values.
    implementation : {"eager", "flash"}
        Kernel by kernel, with all weights in memory; or one kernel each way that keeps a number of
        each row and computes scores again, as torch's flash and memory-efficient kernels do (Dao,
        arXiv 2307.08691). Both give the same numbers.
    upcast : bool
        Whether an eager softmax runs in float32 where the rest has 16 bits, as in transformers.

    References
    ----------
    Vaswani et al., "Attention is all you need", NIPS 2017, section 3.2.
    """

    kind: Literal["attention"] = "attention"
    num_heads: Int = Field(ge=1)
    num_kv_heads: Int | None = Field(None, ge=1)
    causal: Bool = False
    window: Int | None = Field(None, ge=1)
    alibi: Float | None = Field(None, gt=0)
    dropout: Float = Field(0.0, ge=0, le=1)
    pad_id: Int | None = None
    interleaved: Bool = False
    implementation: Implementation = "eager"
    upcast: Bool = False

    autocast: ClassVar[Literal["lower"]] = "lower"

    @property
    def costly(self) -> Literal["product", "fused_attention", "no"]:
        return "fused_attention" if self.implementation == "flash" else "no"

    def _kv_heads(self) -> int:
        return self.num_kv_heads or self.num_heads

    def _packs(self, num_inputs: int) -> tuple[tuple[int, ...], ...]:
        """Heads of what each input packs, by the number of inputs."""
        heads, others = self.num_heads, self._kv_heads()
        if num_inputs == 1:
            return ((heads, others, others),)
        return ((heads,), (others, others)) if num_inputs == 2 else ((heads,), (others,), (others,))

    def _work(self, inputs: Sequence[Shape]) -> Work:
        """Lengths, heads and their width."""
        packed = inputs[: len(inputs) - (self.pad_id is not None)]
        shapes = [sequence_shape(shape) for shape in packed]
        packs = [sum(heads) for heads in self._packs(len(packed))]
        (queries, width), (keys, _) = shapes[0], shapes[-1]
        depth = width // packs[0]
        lengths = (queries, *[keys] * (len(packs) - 1))
        wanted = [(length, heads * depth) for length, heads in zip(lengths, packs, strict=True)]
        if shapes != wanted:
            raise ShapeError(
                f"takes packed queries, keys and values of {self.num_heads} heads, but gets "
                f"samples of shape {' and '.join(map(str, packed))}"
            )
        if self.pad_id is not None and inputs[-1] != (keys,):
            raise ShapeError(f"gets {keys} keys, but tokens of shape {inputs[-1]}")
        heads, others, pairs = self.num_heads, self._kv_heads(), self.pairs(queries, keys)
        return Work(queries, keys, depth, heads, others, pairs, bool(self.dropout), self.upcast)

    def pairs(self, queries: int, keys: int) -> float:
        """Queries times the keys that each looks at; half of a square counts as its triangle."""
        if not self.causal:
            return float(queries * keys)
        seen = min(self.window or keys, keys)
        return queries * seen - seen**2 / 2

    def scores(self, inputs: Sequence[Shape]) -> float:
        """How many scores there are of a sample, of all heads."""
        return self._work(inputs).scores

    def output_shape(self, *inputs: Shape) -> Shape:
        work = self._work(inputs)
        return work.queries, work.width

    def _heads(self, *packed: Array) -> Parts:
        """Queries, keys and values as views."""
        found: list[Array] = []
        for array, packs in zip(packed, self._packs(len(packed)), strict=True):
            heads, shape = sum(packs), array.shape[:2]
            if self.interleaved:
                split = array.reshape(*shape, self.num_heads, 3, array.shape[2] // heads)
                found += [split[:, :, :, part] for part in range(3)]
                continue
            split = array.reshape(*shape, heads, array.shape[2] // heads)
            ends = np.cumsum(packs)
            found += [split[:, :, end - n : end] for n, end in zip(packs, ends, strict=True)]
        return Parts(*(self._grouped(array) for array in found))

    def _grouped(self, array: Array) -> Array:
        """From shape `(batch, length, heads, d)` to that of `Parts`."""
        batch, length, heads, depth = array.shape
        others = self._kv_heads()
        return array.reshape(batch, length, others, heads // others, depth).transpose(0, 2, 3, 1, 4)

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
        packed = inputs[: len(inputs) - (self.pad_id is not None)]
        parts = self._heads(*packed)
        sight = self._sight(parts, None if self.pad_id is None else inputs[-1])
        batch, *_, length, depth = parts.queries.shape
        y: Array = np.empty((batch, length, self.num_heads * depth), dtype=packed[0].dtype)
        out = self._grouped(y.reshape(batch, length, self.num_heads, depth))
        if self._in_blocks:
            sums = attend(parts, sight, out)
            return y, (packed, sight, sums, y)
        weights = np.empty((*parts.queries.shape[:4], parts.keys.shape[3]), dtype=y.dtype)
        kept = np.empty(weights.shape, dtype=bool) if self.dropout else None
        for part in sample_blocks(weights):
            scores = weights[part]
            _weigh(parts.of(part), sight, part, scores)
            if kept is not None:
                own = replace(run, samples=run.samples[part])
                drawn = (self.num_heads, *scores.shape[3:])
                stays = kept_elements(own, self.name, self.dropout, drawn)
                kept[part] = stays.reshape(scores.shape)
                scores = masked(scores, kept[part], self.dropout)
            np.matmul(scores, parts.values[part], out=out[part])
        return y, (packed, sight, weights, kept)

    @property
    def _in_blocks(self) -> bool:
        """Whether scores are computed again, and not kept; what dropout leaves is drawn at once."""
        return self.implementation == "flash" and not self.dropout

    def _sight(self, parts: Parts, tokens: Array | None) -> Sight:
        """What queries look at."""
        dtype, keys = parts.queries.dtype, parts.keys.shape[3]
        bias = hidden = None
        if self.alibi is not None:
            bias = distances(self.num_heads, keys, self.alibi, dtype.name)
            bias = bias.reshape(*parts.queries.shape[1:3], keys)
        if tokens is not None:
            hidden = np.where(tokens == self.pad_id, -np.inf, 0).astype(dtype)
        return Sight(self.causal, self.window, bias, hidden)

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
        packed, sight, weights, other = saved
        parts = self._heads(*packed)
        batch, *_, length, depth = parts.queries.shape
        slopes = self._grouped(dy.reshape(batch, length, self.num_heads, depth))
        fresh = np.zeros if self._in_blocks else np.empty
        gradients = [fresh(array.shape, dtype=array.dtype) for array in packed]
        dparts = self._heads(*gradients)
        if self._in_blocks:
            y = self._grouped(other.reshape(batch, length, self.num_heads, depth))
            attend_back(parts, sight, weights, y, slopes, dparts)
        else:
            for part in sample_blocks(weights):
                kept = None if other is None else other[part]
                self._back(parts.of(part), dparts.of(part), slopes[part], weights[part], kept)
        found = zip([*gradients, *[None] * (self.pad_id is not None)], needs, strict=True)
        return tuple(gradient if need else None for gradient, need in found)

    def _back(
        self, parts: Parts, dparts: Parts, slopes: Array, weights: Array, kept: Array | None
    ) -> None:
        used = weights if kept is None else masked(weights, kept, self.dropout)
        _product_sums(used, slopes, dparts.values)
        dscores = np.matmul(slopes, parts.values.swapaxes(3, 4))
        # softmax: dS = P (dP - sum(P dP)); with dropout the kept share of dP counts
        if kept is None:
            dscores -= np.vecdot(used, dscores)[..., None]
            dscores *= used
        else:
            dscores *= used
            dscores -= weights * dscores.sum(axis=4, keepdims=True)
        dscores *= dscores.dtype.type(1 / sqrt(slopes.shape[4]))
        np.matmul(dscores, parts.keys, out=dparts.queries)
        _product_sums(dscores, parts.queries, dparts.keys)

    # Costs ----------------------------------------------------------------------------------------

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        work = self._work(inputs)
        if self.implementation == "flash":
            return attention_costs.flash_forward(work, itemsize)
        return attention_costs.eager_forward(work, itemsize)

    def model_flops(self, inputs: Sequence[Shape]) -> float:
        """Of two products, without softmax; of all pairs of tokens, where it is causal too."""
        work = self._work(inputs)
        return 4.0 * work.queries * min(self.window or work.keys, work.keys) * work.width

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        work = self._work(inputs)
        if self.implementation == "flash":
            return attention_costs.flash_backward(work, itemsize)
        return attention_costs.eager_backward(work, itemsize)

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        work = self._work(inputs)
        packed = tuple(range(len(inputs) - (self.pad_id is not None)))
        if self.implementation == "flash":
            return attention_costs.flash_kept(work, packed)
        return attention_costs.eager_kept(work, itemsize, packed)

    def evaluated(self) -> Layer:
        return self.model_copy(update={"dropout": 0.0})


def sample_blocks(weights: Array) -> Iterator[slice]:
    """Cut a batch so that the scores of each part stay in a core's cache."""
    return blocks(len(weights), prod(weights.shape[1:]), BLOCK_SCORES)


def _weigh(parts: Parts, sight: Sight, part: slice, scores: Array) -> None:
    """Weights of a block of samples, before dropout, in their place."""
    np.matmul(parts.queries, parts.keys.swapaxes(3, 4), out=scores)
    scores *= scores.dtype.type(1 / sqrt(parts.queries.shape[4]))
    if sight.bias is not None:
        scores += sight.bias[:, :, None]
    if sight.causal:
        scores += look_back(*scores.shape[3:], 0, sight.window, scores.dtype.name)
    if sight.hidden is not None:
        scores += sight.hidden[part, None, None, None]
    softmax(scores)


def _product_sums(left: Array, right: Array, out: Array) -> None:
    """``left^T right`` in each head, summed over the heads that share keys and values."""
    turned = left.swapaxes(3, 4)
    if left.shape[2] == 1:
        np.matmul(turned, right, out=out)
    else:
        np.matmul(turned, right).sum(axis=2, keepdims=True, out=out)
