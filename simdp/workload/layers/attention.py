"""Attention: scaled dot product, multi-head, T5; costs with and without flash kernels.

Forward keeps one number of each row of scores, the log-sum-exp; backward computes the scores again.
Keys after a causal query are not computed. Dao, "FlashAttention-2", arXiv 2307.08691.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from math import ceil, log, log2, prod, sqrt
from typing import ClassVar, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from simdp.arrays import Array, Bools, Ints
from simdp.spec import Bool, Float, Int
from simdp.workload.layers.base import (
    Gradients,
    GraphBuilder,
    Kept,
    Kernel,
    Layer,
    Module,
    Needs,
    Parameter,
    Pass,
    Shape,
    ShapeError,
    Value,
    blocks,
    check_heads,
    kaiming_uniform,
    normal,
    sequence_shape,
    uniform,
    xavier_uniform,
)
from simdp.workload.layers.embedding import sums_by_token
from simdp.workload.layers.linear import Projection
from simdp.workload.layers.tensor_ops import dropout_cost, kept_elements, masked

LOGSUMEXP = 4
"""Bytes that a fused kernel keeps per row of scores: float32 for any dtype."""

FULL = 4
"""Bytes of a number in float32."""

BACKWARD_PRODUCTS = 2.5
"""Five products instead of forward's two: scores are computed again."""


class AttentionWork(NamedTuple):
    """Sizes of attention on one sample; ``depth`` is the number of features of a head."""

    queries: int
    keys: int
    depth: int
    num_heads: int
    num_kv_heads: int
    pairs: float
    """Query-key pairs that the mask allows, per head."""
    dropout: bool
    """Whether attention weights are dropped."""
    upcast: bool
    """Whether softmax runs in float32 if the rest has 16 bits."""

    @property
    def width(self) -> int:
        """Features of all heads."""
        return self.num_heads * self.depth

    @property
    def packed(self) -> int:
        """Elements of queries, keys and values."""
        return self.queries * self.width + 2 * self.keys * self.num_kv_heads * self.depth

    @property
    def scores(self) -> float:
        """Elements of all heads' scores."""
        return float(self.num_heads * self.queries * self.keys)


# Costs of eager attention -------------------------------------------------------------------------


def eager_forward(work: AttentionWork, itemsize: int) -> list[Kernel]:
    """Kernels of torch's plain code: split heads, QK^T, softmax, dropout, PV, merge heads."""
    product = _product(work, itemsize)
    return [
        Kernel(0.0, 2.0 * work.packed * itemsize),
        *_repeated(work, itemsize),
        product,
        *_casts(work, itemsize),
        Kernel(5 * work.scores, 2 * work.scores * _softmax_itemsize(work, itemsize)),
        *_casts(work, itemsize),
        *[dropout_cost(work.scores, itemsize)] * work.dropout,
        product,
        Kernel(0.0, 2.0 * work.queries * work.width * itemsize),
    ]


def eager_backward(work: AttentionWork, itemsize: int) -> list[Kernel]:
    """Kernels: gradients of V and P, dropout, softmax, gradients of Q and K, merge heads."""
    product = _product(work, itemsize)
    return [
        product,
        product,
        *[dropout_cost(work.scores, itemsize)] * work.dropout,
        *_casts(work, itemsize),
        Kernel(4 * work.scores, 3 * work.scores * _softmax_itemsize(work, itemsize)),
        *_casts(work, itemsize),
        product,
        product,
        *_repeated(work, itemsize),
        Kernel(0.0, 2.0 * work.packed * itemsize),
    ]


def eager_kept(work: AttentionWork, itemsize: int, inputs: tuple[int, ...]) -> Kept:
    """Queries, keys, values and all weights; with dropout the weights twice, and the mask.

    Keys and values shared by several heads are kept as copies for all heads. In 16 bits the float32
    softmax is kept besides its cast.
    """
    nbytes = work.scores * itemsize
    nbytes += work.scores * (itemsize + 1) * work.dropout
    nbytes += work.scores * FULL * _is_cast(work, itemsize)
    if work.num_kv_heads < work.num_heads and len(inputs) == 3:
        return Kept(inputs[:1], nbytes=nbytes + 2.0 * work.keys * work.width * itemsize)
    return Kept(inputs, nbytes=nbytes)


def _product(work: AttentionWork, itemsize: int) -> Kernel:
    """One of the six products; each moves the scores and two of Q, K, V or their gradients."""
    moved = work.scores + (work.queries + work.keys) * work.width
    return Kernel(2.0 * work.queries * work.keys * work.width, float(moved * itemsize))


def _repeated(work: AttentionWork, itemsize: int) -> list[Kernel]:
    """Copies of keys and values for heads that share them; in backward, the sums of copies."""
    heads = work.num_heads + work.num_kv_heads
    copy = Kernel(0.0, float(work.keys * heads * work.depth * itemsize))
    return [copy, copy] if work.num_kv_heads < work.num_heads else []


def _is_cast(work: AttentionWork, itemsize: int) -> bool:
    return work.upcast and itemsize < FULL


def _softmax_itemsize(work: AttentionWork, itemsize: int) -> int:
    return max(itemsize, FULL) if work.upcast else itemsize


def _casts(work: AttentionWork, itemsize: int) -> list[Kernel]:
    return [Kernel(0.0, work.scores * (itemsize + FULL))] * _is_cast(work, itemsize)


# Costs of flash attention -------------------------------------------------------------------------


def flash_forward(work: AttentionWork, itemsize: int) -> list[Kernel]:
    """One kernel: reads queries, keys, values; writes the output and one number per row."""
    moved = (work.packed + work.queries * work.width) * itemsize + _rows_nbytes(work)
    return [Kernel(_flash_flops(work), moved)]


def flash_backward(work: AttentionWork, itemsize: int) -> list[Kernel]:
    """One kernel: reads these, the output and its gradient; writes the three gradients."""
    moved = 2 * (work.packed + work.queries * work.width) * itemsize + _rows_nbytes(work)
    return [Kernel(BACKWARD_PRODUCTS * _flash_flops(work), moved)]


def flash_kept(work: AttentionWork, inputs: tuple[int, ...]) -> Kept:
    """Queries, keys, values, the output, and one number per row; no weights."""
    return Kept(inputs, output=True, nbytes=_rows_nbytes(work))


def _flash_flops(work: AttentionWork) -> float:
    """Two products over the pairs that the mask allows."""
    return 4.0 * work.pairs * work.width


def _rows_nbytes(work: AttentionWork) -> float:
    return float(LOGSUMEXP * work.num_heads * work.queries)


# Masks and biases ---------------------------------------------------------------------------------


def softmax(scores: Array) -> None:
    """Softmax of the last axis, in place; a row of -inf becomes zeros."""
    top = scores.max(axis=-1, keepdims=True)
    np.maximum(top, np.finfo(scores.dtype).min, out=top)
    scores -= top
    np.exp(scores, out=scores)
    flat = scores.reshape(-1, scores.shape[-1])
    total = flat @ np.ones(flat.shape[1], dtype=scores.dtype)
    np.maximum(total, 1, out=total)  # at least 1 but in rows of zeros
    flat *= (1 / total)[:, None]


@lru_cache(maxsize=16)  # enough for one step; a mask of 1,024 tokens takes 4 MB
def look_back(queries: int, keys: int, ahead: int, window: int | None, dtype: str) -> Array:
    """Mask of shape `(queries, keys)`: -inf where a key is after the query or outside its window.

    ``ahead`` keys come before the first query; ``window`` keys, the query's own the last, are seen.
    """
    mask = np.triu(np.full((queries, keys), -np.inf, dtype=dtype), k=1 + ahead)
    if window is not None:
        far = np.arange(queries)[:, None] + ahead - np.arange(keys) >= window
        mask[far] = -np.inf
    mask.setflags(write=False)  # cached
    return mask


@lru_cache(maxsize=16)
def distances(num_heads: int, keys: int, bias_max: float, dtype: str) -> Array:
    """ALiBi: bias of each head's keys, shape `(num_heads, keys)`; the last key has 0.

    Head i has slope ``2^(-bias_max i / heads)``, i = 1, 2, ..., if their number is a power of two;
    else the next power of two is used, first its every second slope and then the rest.

    References
    ----------
    Press et al., "Train short, test long", arXiv 2108.12409; transformers, build_mpt_alibi_tensor.
    """
    rounded = 2 ** ceil(log2(num_heads))
    slopes = 2.0 ** (-bias_max / rounded * np.arange(1, rounded + 1))
    if rounded != num_heads:
        slopes = np.concatenate([slopes[1::2], slopes[::2]])[:num_heads]
    bias: Array = (slopes[:, None] * np.arange(1 - keys, 1)).astype(dtype)
    bias.setflags(write=False)
    return bias


# Attention in blocks ------------------------------------------------------------------------------

SHORT_SCORES = 2**16
"""Scores per block, for samples with fewer scores than this."""

FEW_ROWS = 64
"""Queries per block of a longer sample."""


class AttentionParts(NamedTuple):
    """Queries, shape `(batch, kv_heads, heads of each, length, d)`, and matching keys and values.

    Heads that share keys and values are adjacent.
    """

    queries: Array
    keys: Array
    values: Array

    def of(self, samples: slice) -> AttentionParts:
        """The parts of some samples."""
        return AttentionParts(*(array[samples] for array in self))


class Sight(NamedTuple):
    """Mask and bias of the scores."""

    causal: bool
    """Whether a query sees no key after its own position."""
    window: int | None
    """Number of keys that it then sees; all by default."""
    bias: Array | None
    """Added to the scores of each head's keys, shape `(kv_heads, heads of each, keys)`."""
    hidden: Array | None
    """-inf for the padding keys of a sample, else 0, shape `(batch, keys)`."""


class _Block(NamedTuple):
    """Queries of some samples and heads, and the keys that they see."""

    samples: slice
    heads: slice
    queries: slice
    keys: slice


def attend(parts: AttentionParts, sight: Sight, out: Array) -> Array:
    """Write the output, of the queries' shape; return the log-sum-exp of each row of scores."""
    sums = np.empty((*parts.queries.shape[:4], 1), dtype=out.dtype)
    lowest = np.finfo(out.dtype).min
    for block in _cut(parts, sight):
        scores = _scores(_scaled(parts, block), parts, sight, block)
        top = scores.max(axis=4, keepdims=True)
        np.maximum(top, lowest, out=top)
        scores -= top
        np.exp(scores, out=scores)
        ones = np.ones(scores.shape[4], dtype=scores.dtype)
        total = (scores.reshape(-1, scores.shape[4]) @ ones).reshape(top.shape)
        np.maximum(total, 1, out=total)  # at least 1 but in rows of zeros
        weighted = _folded(scores) @ parts.values[block.samples, block.heads, :, block.keys]
        place = block.samples, block.heads, slice(None), block.queries
        np.divide(weighted.reshape(*scores.shape[:4], -1), total, out=out[place])
        sums[place] = top + np.log(total)
    return sums


def attend_back(
    parts: AttentionParts, sight: Sight, sums: Array, y: Array, dy: Array, gradients: AttentionParts
) -> None:
    """Add the gradients of queries, keys and values to ``gradients``, which start as zeros.

    ``sums`` is the result of `attend`; ``y`` and ``dy`` are the output and its gradient, of the
    queries' shape.
    """
    scale = dy.dtype.type(1 / sqrt(parts.queries.shape[4]))
    for block in _cut(parts, sight):
        place = block.samples, block.heads, slice(None), block.queries
        seen = block.samples, block.heads, slice(None), block.keys
        queries = _scaled(parts, block)
        weights = _scores(queries, parts, sight, block)
        weights -= sums[place]
        np.exp(weights, out=weights)
        slopes = np.ascontiguousarray(dy[place])
        flat, used = _folded(slopes), _folded(weights)
        gradients.values[seen] += used.swapaxes(3, 4) @ flat
        dscores = flat @ parts.values[seen].swapaxes(3, 4)
        # softmax: dS = P (dP - sum(P dP)), where that sum is y dy
        dscores -= np.vecdot(y[place], slopes)[..., None].reshape(*flat.shape[:4], 1)
        dscores *= used
        below = (dscores @ parts.keys[seen]).reshape(slopes.shape)
        np.multiply(below, scale, out=gradients.queries[place])
        gradients.keys[seen] += dscores.swapaxes(3, 4) @ _folded(queries)


def _cut(parts: AttentionParts, sight: Sight) -> Iterator[_Block]:
    batch, kv_heads, heads, length, _ = parts.queries.shape
    keys, everything = parts.keys.shape[3], slice(None)
    scores_per_sample = kv_heads * heads * length * keys
    if scores_per_sample <= SHORT_SCORES:
        for samples in blocks(batch, scores_per_sample, SHORT_SCORES):
            yield _Block(samples, everything, slice(0, length), slice(0, keys))
        return
    for sample, head in np.ndindex(batch, kv_heads):
        for begin in range(0, length, FEW_ROWS):
            end, first, last = min(begin + FEW_ROWS, length), 0, keys
            if sight.causal:
                last = min(end, keys)
                first = max(begin - (sight.window or keys) + 1, 0)
            yield _Block(
                slice(sample, sample + 1),
                slice(head, head + 1),
                slice(begin, end),
                slice(min(first, last - 1), last),
            )


def _scaled(parts: AttentionParts, block: _Block) -> Array:
    """The queries of a block over sqrt(d), contiguous."""
    queries = parts.queries[block.samples, block.heads, :, block.queries]
    scale = queries.dtype.type(1 / sqrt(queries.shape[4]))
    scaled: Array = np.multiply(queries, scale, order="C")
    return scaled


def _folded(array: Array) -> Array:
    """Join the rows of heads that share keys into those of one head, for larger products."""
    return array.reshape(*array.shape[:2], 1, prod(array.shape[2:4]), array.shape[4])


def _scores(queries: Array, parts: AttentionParts, sight: Sight, block: _Block) -> Array:
    keys = parts.keys[block.samples, block.heads, :, block.keys]
    scores: Array = _folded(queries) @ keys.swapaxes(3, 4)
    scores = scores.reshape(*queries.shape[:4], keys.shape[3])
    if sight.bias is not None:
        scores += sight.bias[block.heads, :, None, block.keys]
    if sight.causal:
        ahead = block.queries.start - block.keys.start
        if sight.window is None:  # only the last keys can come after a query
            near = scores[..., ahead:]
            near += look_back(*near.shape[3:], 0, None, scores.dtype.name)
        else:
            scores += look_back(*scores.shape[3:], ahead, sight.window, scores.dtype.name)
    if sight.hidden is not None:
        scores += sight.hidden[block.samples, None, None, None, block.keys]
    return scores


BLOCK_SCORES = 2**16
"""Scores per block, so that they fit a core's cache."""

Implementation = Literal["eager", "flash"]


class KeyPadding(NamedTuple):
    """Masks the keys of the padding token."""

    tokens: Value
    pad_id: int


Attended = tuple[tuple[Array, ...], Sight, Array, Array | None]
"""For backward: packed inputs, mask, and weights with what dropout keeps, or sums with the output.
"""

T5Attended = tuple[tuple[Array, ...], Array, Bools | None]
"""For backward: queries, keys and values; weights; what dropout keeps."""


class Attention(Layer):
    """``softmax(Q K^T / sqrt(d) + mask) V`` in each head, as torch's scaled_dot_product_attention.

    Takes queries, keys and values packed along the last axis; or queries, and keys and values
    packed; or all three separately. With ``pad_id``, the keys' tokens come last. A query without
    visible keys gets zeros, as in torch.

    References
    ----------
    Vaswani et al., "Attention is all you need", NIPS 2017, section 3.2.
    """

    kind: Literal["attention"] = "attention"
    num_heads: Int = Field(ge=1)
    """Heads, each with an equal part of the width."""
    num_kv_heads: Int | None = Field(None, ge=1)
    """Heads of keys and values, each shared by equally many heads of the queries; by default as
    many. Ainslie et al., "GQA", arXiv 2305.13245."""
    causal: Bool = False
    """Whether a query sees only keys up to its own position."""
    window: Int | None = Field(None, ge=1)
    """Number of keys that a causal query sees, its own the last; all by default."""
    alibi: Float | None = Field(None, gt=0)
    """Adds to each score the distance of its key times a slope of the head, down to ``2^-alibi``;
    see `distances`."""
    dropout: Float = Field(0.0, ge=0, le=1)
    """Probability that a weight is dropped, drawn per sample."""
    pad_id: Int | None = None
    """Keys of this token are masked."""
    interleaved: Bool = False
    """Whether one packed input holds each head's query, key and value together, as in GPT-NeoX,
    instead of all queries before all keys and values."""
    implementation: Implementation = "eager"
    """Kernel by kernel, with all weights in memory; or one kernel in each direction that keeps one
    number per row and recomputes scores, as torch's flash and memory-efficient kernels do (Dao,
    arXiv 2307.08691). Both give the same numbers."""
    upcast: Bool = False
    """Whether an eager softmax runs in float32 where the rest has 16 bits, as in transformers."""

    family = "attention"
    autocast = "lower"

    @property
    def costly(self) -> Literal["product", "fused_attention", "no"]:
        return "fused_attention" if self.implementation == "flash" else "no"

    def _kv_heads(self) -> int:
        return self.num_kv_heads or self.num_heads

    def _packs(self, num_inputs: int) -> tuple[tuple[int, ...], ...]:
        """Number of heads of each part that each input packs."""
        heads, others = self.num_heads, self._kv_heads()
        if num_inputs == 1:
            return ((heads, others, others),)
        return ((heads,), (others, others)) if num_inputs == 2 else ((heads,), (others,), (others,))

    def _work(self, inputs: Sequence[Shape]) -> AttentionWork:
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
        return AttentionWork(
            queries, keys, depth, heads, others, pairs, bool(self.dropout), self.upcast
        )

    def pairs(self, queries: int, keys: int) -> float:
        """Query-key pairs that the mask allows; a causal triangle counts as half of its square."""
        if not self.causal:
            return float(queries * keys)
        seen = min(self.window or keys, keys)
        return queries * seen - seen**2 / 2

    def scores(self, inputs: Sequence[Shape]) -> float:
        """Number of scores of a sample, over all heads."""
        return self._work(inputs).scores

    def output_shape(self, *inputs: Shape) -> Shape:
        work = self._work(inputs)
        return work.queries, work.width

    def _heads(self, *packed: Array) -> AttentionParts:
        """Queries, keys and values as views."""
        arrays: list[Array] = []
        for array, packs in zip(packed, self._packs(len(packed)), strict=True):
            heads, shape = sum(packs), array.shape[:2]
            if self.interleaved:
                split = array.reshape(*shape, self.num_heads, 3, array.shape[2] // heads)
                arrays += [split[:, :, :, part] for part in range(3)]
                continue
            split = array.reshape(*shape, heads, array.shape[2] // heads)
            ends = np.cumsum(packs)
            arrays += [split[:, :, end - n : end] for n, end in zip(packs, ends, strict=True)]
        return AttentionParts(*(self._grouped(array) for array in arrays))

    def _grouped(self, array: Array) -> Array:
        """From shape `(batch, length, heads, d)` to that of `AttentionParts`."""
        batch, length, heads, depth = array.shape
        others = self._kv_heads()
        return array.reshape(batch, length, others, heads // others, depth).transpose(0, 2, 3, 1, 4)

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Attended]:
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
        """Whether scores are recomputed; dropout keeps them, since its mask is drawn at once."""
        return self.implementation == "flash" and not self.dropout

    def _sight(self, parts: AttentionParts, tokens: Array | None) -> Sight:
        """Mask and bias of these parts."""
        dtype, keys = parts.queries.dtype, parts.keys.shape[3]
        bias = hidden = None
        if self.alibi is not None:
            bias = distances(self.num_heads, keys, self.alibi, dtype.name)
            bias = bias.reshape(*parts.queries.shape[1:3], keys)
        if tokens is not None:
            hidden = np.where(tokens == self.pad_id, -np.inf, 0).astype(dtype)
        return Sight(self.causal, self.window, bias, hidden)

    def backward(self, run: Pass, saved: Attended, dy: Array, needs: Needs) -> Gradients:
        packed, sight, weights, other = saved
        parts = self._heads(*packed)
        batch, *_, length, depth = parts.queries.shape
        slopes = self._grouped(dy.reshape(batch, length, self.num_heads, depth))
        fresh = np.zeros if self._in_blocks else np.empty
        gradients = [fresh(array.shape, dtype=array.dtype) for array in packed]
        dparts = self._heads(*gradients)
        if self._in_blocks:
            assert other is not None
            y = self._grouped(other.reshape(batch, length, self.num_heads, depth))
            attend_back(parts, sight, weights, y, slopes, dparts)
        else:
            for part in sample_blocks(weights):
                kept = None if other is None else other[part]
                self._back(parts.of(part), dparts.of(part), slopes[part], weights[part], kept)
        with_need = zip([*gradients, *[None] * (self.pad_id is not None)], needs, strict=True)
        return tuple(gradient if need else None for gradient, need in with_need)

    def _back(
        self,
        parts: AttentionParts,
        dparts: AttentionParts,
        slopes: Array,
        weights: Array,
        kept: Array | None,
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
            return flash_forward(work, itemsize)
        return eager_forward(work, itemsize)

    def model_flops(self, inputs: Sequence[Shape]) -> float:
        """FLOPs of the two products without softmax; a causal mask does not reduce them."""
        work = self._work(inputs)
        return 4.0 * work.queries * min(self.window or work.keys, work.keys) * work.width

    def backward_cost(self, inputs: Sequence[Shape], itemsize: int, needs: Needs) -> list[Kernel]:
        work = self._work(inputs)
        if self.implementation == "flash":
            return flash_backward(work, itemsize)
        return eager_backward(work, itemsize)

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        work = self._work(inputs)
        packed = tuple(range(len(inputs) - (self.pad_id is not None)))
        if self.implementation == "flash":
            return flash_kept(work, packed)
        return eager_kept(work, itemsize, packed)

    def evaluated(self) -> Layer:
        return self.model_copy(update={"dropout": 0.0})


def sample_blocks(weights: Array) -> Iterator[slice]:
    """Cut a batch so that each block's scores fit a core's cache."""
    return blocks(len(weights), prod(weights.shape[1:]), BLOCK_SCORES)


def _weigh(parts: AttentionParts, sight: Sight, part: slice, scores: Array) -> None:
    """Write the weights of a block of samples, before dropout, into ``scores``."""
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


class MultiheadAttention(Module):
    """Projections to queries, keys and values, attention, and an output projection."""

    kind: Literal["multihead_attention"] = "multihead_attention"
    embed_dim: Int = Field(ge=1, le=10**8)
    """Width of a token."""
    num_heads: Int = Field(ge=1)
    """Heads, each with an equal part of the width."""
    dropout: Float = Field(0.0, ge=0, le=1)
    """Share of the attention weights that are dropped."""
    bias: Bool = True
    """Whether the projections have one."""
    mask: Literal["none", "causal"] = "none"
    """Whether a query sees only keys up to its own position."""

    most_inputs: ClassVar[int] = 2

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        check_heads("num_heads", self.num_heads, "embed_dim", self.embed_dim)
        return self

    def add_to(self, graph: GraphBuilder, *inputs: Value) -> Value:
        projections = self.register(graph, cross=len(inputs) > 1)
        return self.attend(graph, projections, inputs[0], inputs[-1])

    def register(self, graph: GraphBuilder, cross: bool) -> list[Projection]:
        """Register the projections: one packed or two separate input projections, and the output's.

        ``cross``: queries and keys come from different inputs. The result is for `attend`.
        """
        d = self.embed_dim
        # torch: xavier_uniform_ of the packed weight of 3 d rows; out_proj is drawn first, as any
        # Linear, and its bias is cleared at the end.
        parts, packed = [(0, d), (d, 3 * d)] if cross else [(0, 3 * d)], xavier_uniform(d, 3 * d)
        inward = [self._projection("in_proj", 3 * d, rows, packed.size) for rows in parts]
        back = self._projection("out_proj", d, (0, d), kaiming_uniform(d).size)
        draws = back.parameters()
        if self.bias:
            draws[1:] = [draws[1]._replace(initial=uniform(1 / sqrt(d)))]
        draws += [*inward[0].parameters(), *back.parameters()[1:]]
        for projection in inward:
            graph.register(projection, draws=())
        return [*inward, graph.register(back, draws=draws)]

    def _projection(self, name: str, num_rows: int, rows: tuple[int, int], b: float) -> Projection:
        first, last = rows
        path = f"{self.name}.{name}"
        join = "_" if name == "in_proj" else "."  # in_proj_weight, but out_proj.weight
        return Projection(
            name=path,
            weight=f"{path}{join}weight",
            bias=f"{path}{join}bias" if self.bias else "",
            in_features=self.embed_dim,
            out_features=num_rows,
            first=first,
            last=last,
            bound=b,
        )

    def attend(
        self,
        graph: GraphBuilder,
        projections: list[Projection],
        x: Value,
        memory: Value,
        padding: KeyPadding | None = None,
    ) -> Value:
        """Append the calls of the registered projections to a graph.

        ``x`` and ``memory`` are the sources of the queries and of the keys, equal for
        self-attention; ``padding`` is the memory's.
        """
        *inward, back = projections
        sources = (x, memory)[: len(inward)]
        packed = [graph.call(p, source) for p, source in zip(inward, sources, strict=True)]
        core = Attention(
            name=self.name,
            num_heads=self.num_heads,
            causal=self.mask == "causal",
            dropout=self.dropout,
            pad_id=padding.pad_id if padding else None,
        )
        return graph.call(back, graph.call(core, *packed, *([padding.tokens] if padding else [])))


class T5Attention(Layer):
    """``softmax(Q K^T + bias) V`` in each head; takes queries, keys and values separately.

    With ``pad_id``, the keys' tokens come last. The layers of a stack share one bias, which the
    first of them looks up. The other fields are those of `Attention`.

    References
    ----------
    Raffel et al., "Exploring the limits of transfer learning with a unified text-to-text
    transformer", JMLR 21, 2020, section 2.1; transformers/models/t5/modeling_t5.py.
    """

    kind: Literal["t5_attention"] = "t5_attention"
    num_heads: Int = Field(ge=1)
    causal: Bool = False
    bias: str = ""
    """Name of the bias's weight, shape `(num_buckets, num_heads)`; empty for none."""
    looks_up: Bool = True
    """Whether this layer is the first, which pays for the lookup of the bias."""
    num_buckets: Int = Field(32, ge=4)
    """Number of distance buckets."""
    max_distance: Int = Field(128, ge=2)
    """Distance from which all fall into the last one."""
    dropout: Float = Field(0.0, ge=0, le=1)
    pad_id: Int | None = None

    family = "attention"
    autocast = "lower"

    @property
    def costly(self) -> Literal["product", "fused_attention", "no"]:
        return "no"

    def model_flops(self, inputs: Sequence[Shape]) -> float:
        """FLOPs of the two products, as in `Attention`."""
        work = self._work(inputs)
        return 4.0 * work.queries * work.keys * work.width

    def parameters(self) -> list[Parameter]:
        shape = (self.num_buckets, self.num_heads)
        return [Parameter(self.bias, shape, normal(1.0))] if self.bias else []

    def _work(self, inputs: Sequence[Shape]) -> AttentionWork:
        (queries, width), (keys, _) = (sequence_shape(shape) for shape in inputs[:2])
        wanted = [(queries, width), (keys, width), (keys, width)]
        tokens = [(keys,)] * (self.pad_id is not None)
        if list(inputs) != [*wanted, *tokens] or width % self.num_heads:
            raise ShapeError(
                f"takes queries, keys and values of {self.num_heads} heads, but gets samples of "
                f"shapes {', '.join(map(str, inputs))}"
            )
        heads, pairs = self.num_heads, float(queries * keys)
        if self.causal:
            pairs = queries * keys - keys**2 / 2
        return AttentionWork(
            queries, keys, width // heads, heads, heads, pairs, bool(self.dropout), upcast=True
        )

    def output_shape(self, *inputs: Shape) -> Shape:
        work = self._work(inputs)
        return work.queries, work.width

    def _heads(self, array: Array) -> Array:
        """A view of shape `(batch, heads, length, d)`."""
        batch, length, width = array.shape
        split = array.reshape(batch, length, self.num_heads, width // self.num_heads)
        return split.swapaxes(1, 2)

    def _buckets(self, queries: int, keys: int) -> Ints:
        return buckets(queries, keys, not self.causal, self.num_buckets, self.max_distance)

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, T5Attended]:
        queries, keys, values = (self._heads(array) for array in inputs[:3])
        y: Array = np.empty(inputs[0].shape, dtype=queries.dtype)
        weights = np.empty((*queries.shape[:3], keys.shape[2]), dtype=y.dtype)
        kept = np.empty(weights.shape, dtype=bool) if self.dropout else None
        added = self._added(run, y.dtype.name, *weights.shape[2:])
        for part in sample_blocks(weights):
            scores = np.matmul(queries[part], keys[part].swapaxes(2, 3), out=weights[part])
            if added is not None:
                scores += added
            if self.pad_id is not None:
                hidden = np.where(inputs[3][part] == self.pad_id, -np.inf, 0).astype(scores.dtype)
                scores += hidden[:, None, None]
            softmax(scores)
            if kept is not None:
                own = replace(run, samples=run.samples[part])
                kept[part] = kept_elements(own, self.name, self.dropout, scores.shape[1:])
                scores = masked(scores, kept[part], self.dropout)
            np.matmul(scores, values[part], out=self._heads(y)[part])
        return y, (inputs[:3], weights, kept)

    def _added(self, run: Pass, dtype: str, queries: int, keys: int) -> Array | None:
        """Bias plus mask, shape `(num_heads or 1, queries, keys)`; None if there is neither."""
        added = None
        if self.bias:
            table = run.parameters[self.bias].T
            added = table[:, self._buckets(queries, keys)]
        if self.causal:
            mask = look_back(queries, keys, 0, None, dtype)[None]
            added = mask if added is None else added + mask
        return added

    def backward(self, run: Pass, saved: T5Attended, dy: Array, needs: Needs) -> Gradients:
        given, weights, kept = saved
        queries, keys, values = (self._heads(array) for array in given)
        gradients = [np.empty(array.shape, dtype=array.dtype) for array in given]
        dqueries, dkeys, dvalues = (self._heads(array) for array in gradients)
        slopes = self._heads(dy)
        dbias = np.zeros(weights.shape[1:], dtype=dy.dtype)
        for part in sample_blocks(weights):
            used = weights[part]
            if kept is not None:
                used = masked(used, kept[part], self.dropout)
            np.matmul(used.swapaxes(2, 3), slopes[part], out=dvalues[part])
            dscores = np.matmul(slopes[part], values[part].swapaxes(2, 3))
            # softmax: dS = P (dP - sum(P dP)), where dropout leaves its share of dP
            dscores *= used
            dscores -= weights[part] * dscores.sum(axis=3, keepdims=True)
            dbias += dscores.sum(axis=0)
            np.matmul(dscores, keys[part], out=dqueries[part])
            np.matmul(dscores.swapaxes(2, 3), queries[part], out=dkeys[part])
        if self.bias:
            self._add_bias(run, dbias)
        with_need = zip([*gradients, *[None] * (self.pad_id is not None)], needs, strict=True)
        return tuple(gradient if need else None for gradient, need in with_need)

    def _add_bias(self, run: Pass, dbias: Array) -> None:
        """Sum the gradients of the scores of each bucket."""
        where = self._buckets(*dbias.shape[1:]).reshape(-1)
        buckets_seen, sums = sums_by_token(where, dbias.reshape(self.num_heads, -1).T)
        gradient = run.room(self.bias)
        gradient.fill(0)
        gradient[buckets_seen] = sums
        run.add_gradient(self.bias, gradient)

    # Costs ----------------------------------------------------------------------------------------

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        """Eager attention, and one lookup of the bias, which is added with the mask."""
        work = self._work(inputs)
        nbytes = float(work.num_heads * work.queries * work.keys * itemsize)
        looked_up = [Kernel(0.0, 0.0, 2 * nbytes)] * (bool(self.bias) and self.looks_up)
        return [*looked_up, *eager_forward(work, itemsize)]

    def backward_cost(self, inputs: Sequence[Shape], itemsize: int, needs: Needs) -> list[Kernel]:
        """Eager attention, and the bias's gradient: a sum over the samples, then by bucket."""
        work = self._work(inputs)
        scores = float(work.num_heads * work.queries * work.keys)
        summed = [Kernel(scores, scores * itemsize, scores * itemsize)] * bool(self.bias)
        sorted_in = [Kernel(0.0, 0.0, 2 * scores * itemsize)] * (bool(self.bias) and self.looks_up)
        return [*eager_backward(work, itemsize), *summed, *sorted_in]

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        return eager_kept(self._work(inputs), itemsize, (0, 1, 2))

    def evaluated(self) -> Layer:
        return self.model_copy(update={"dropout": 0.0})


@lru_cache(maxsize=16)
def buckets(queries: int, keys: int, both_ways: bool, num_buckets: int, max_distance: int) -> Ints:
    """Bucket of the distance of each query and key, shape `(queries, keys)`.

    Half of the buckets hold one distance each, the others ranges that grow exponentially up to
    ``max_distance``. The logarithm is taken in float32, as transformers does, so that bucket
    borders are the same. With ``both_ways``, keys after the query get half of the buckets; else
    they count as distance 0.
    """
    distance = np.arange(keys) - np.arange(queries)[:, None]
    bucket = np.zeros((queries, keys), dtype=np.int64)
    if both_ways:
        num_buckets //= 2
        bucket += (distance > 0) * num_buckets
        distance = np.abs(distance)
    else:
        distance = -np.minimum(distance, 0)
    exact = num_buckets // 2
    growth = np.log(np.maximum(distance, 1).astype(np.float32) / np.float32(exact))
    share = growth / np.float32(log(max_distance / exact)) * np.float32(num_buckets - exact)
    far = np.minimum(exact + share.astype(np.int64), num_buckets - 1)
    bucket += np.where(distance < exact, distance, far)
    bucket.setflags(write=False)  # cached
    return bucket
