"""Attention block by block, whose scores never leave a core's cache: FlashAttention with NumPy.

Forward keeps one number of each row of scores, the logarithm of the sum of their exponentials;
backward computes the scores again. What lies ahead of a causal query is not computed at all.
Dao, "FlashAttention-2", arXiv 2307.08691.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod, sqrt
from typing import NamedTuple

import numpy as np

from simdp.arrays import Array
from simdp.workload.layers.arrays.blocks import blocks
from simdp.workload.layers.arrays.scores import look_back

SHORT_SCORES = 2**16
"""Of shorter samples, so many scores are worked on at a time."""

FEW_ROWS = 64
"""Queries of a block of a longer sample."""


class Parts(NamedTuple):
    """Queries, shape `(batch, kv_heads, heads of each, length, d)`, and keys and values for them.

    Heads that share keys and values lie side by side.
    """

    queries: Array
    keys: Array
    values: Array

    def of(self, samples: slice) -> Parts:
        """Some of the samples."""
        return Parts(*(array[samples] for array in self))


class Sight(NamedTuple):
    """What is looked at.

    Attributes
    ----------
    causal : bool
        Whether a query sees no key behind its own place.
    window : int or None
        How many keys it sees then; all by default.
    bias : ndarray or None
        What is added to the scores of each head's keys, shape `(kv_heads, heads of each, keys)`.
    hidden : ndarray or None
        -inf for the keys of a sample that nobody sees, else 0, shape `(batch, keys)`.
    """

    causal: bool
    window: int | None
    bias: Array | None
    hidden: Array | None


class _Block(NamedTuple):
    """Some samples' queries of some heads, and the keys that any of them sees."""

    samples: slice
    heads: slice
    queries: slice
    keys: slice


def attend(parts: Parts, sight: Sight, out: Array) -> Array:
    """Write the output, of the queries' shape.

    Returns
    -------
    ndarray, shape `(batch, kv_heads, heads of each, length, 1)`
        Of each row of scores the logarithm of the sum of their exponentials.
    """
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
        np.maximum(total, 1, out=total)  # the largest counts as 1; only rows of zeros are less
        found = _folded(scores) @ parts.values[block.samples, block.heads, :, block.keys]
        place = block.samples, block.heads, slice(None), block.queries
        np.divide(found.reshape(*scores.shape[:4], -1), total, out=out[place])
        sums[place] = top + np.log(total)
    return sums


def attend_back(
    parts: Parts, sight: Sight, sums: Array, y: Array, dy: Array, gradients: Parts
) -> None:
    """Add the gradients of queries, keys and values to arrays of zeros.

    Parameters
    ----------
    parts, sight
        As in `attend`.
    sums : ndarray
        From there.
    y, dy : ndarray
        The output and its gradient, of the queries' shape.
    gradients : Parts
        What is added to.
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


def _cut(parts: Parts, sight: Sight) -> Iterator[_Block]:
    batch, kv_heads, heads, length, _ = parts.queries.shape
    keys, everything = parts.keys.shape[3], slice(None)
    each = kv_heads * heads * length * keys
    if each <= SHORT_SCORES:
        for samples in blocks(batch, each, SHORT_SCORES):
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


def _scaled(parts: Parts, block: _Block) -> Array:
    """The queries of a block over sqrt(d), one behind the other in memory."""
    queries = parts.queries[block.samples, block.heads, :, block.queries]
    scale = queries.dtype.type(1 / sqrt(queries.shape[4]))
    found: Array = np.multiply(queries, scale, order="C")
    return found


def _folded(array: Array) -> Array:
    """Rows of heads that share keys as those of one head, so that products are larger."""
    return array.reshape(*array.shape[:2], 1, prod(array.shape[2:4]), array.shape[4])


def _scores(queries: Array, parts: Parts, sight: Sight, block: _Block) -> Array:
    keys = parts.keys[block.samples, block.heads, :, block.keys]
    scores: Array = _folded(queries) @ keys.swapaxes(3, 4)
    scores = scores.reshape(*queries.shape[:4], keys.shape[3])
    if sight.bias is not None:
        scores += sight.bias[block.heads, :, None, block.keys]
    if sight.causal:
        ahead = block.queries.start - block.keys.start
        if sight.window is None:  # only the last keys may lie behind a query
            near = scores[..., ahead:]
            near += look_back(*near.shape[3:], 0, None, scores.dtype.name)
        else:
            scores += look_back(*scores.shape[3:], ahead, sight.window, scores.dtype.name)
    if sight.hidden is not None:
        scores += sight.hidden[block.samples, None, None, None, block.keys]
    return scores
