"""What attention does with its scores: softmax in place, and what is added for masks and ALiBi."""

from __future__ import annotations

from functools import lru_cache
from math import ceil, log2

import numpy as np

from simdp.arrays import Array


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


@lru_cache(maxsize=16)  # those of one step; a mask of 1,024 tokens takes 4 MB
def look_back(queries: int, keys: int, ahead: int, window: int | None, dtype: str) -> Array:
    """-inf where a key stands after the query, or too far before it, shape `(queries, keys)`.

    Parameters
    ----------
    queries, keys : int
        How many there are.
    ahead : int
        How many keys stand before the first query.
    window : int or None
        Keys that a query sees, its own the last of them; all up to its own by default.
    dtype : str
        Of the mask.
    """
    mask = np.triu(np.full((queries, keys), -np.inf, dtype=dtype), k=1 + ahead)
    if window is not None:
        far = np.arange(queries)[:, None] + ahead - np.arange(keys) >= window
        mask[far] = -np.inf
    mask.setflags(write=False)  # it is handed out again and again
    return mask


@lru_cache(maxsize=16)
def distances(num_heads: int, keys: int, bias_max: float, dtype: str) -> Array:
    """ALiBi: what is added to the scores of each head's keys, shape `(num_heads, keys)`.

    Parameters
    ----------
    num_heads : int
        Heads; each has a slope of its own, ``2^(-bias_max i / heads)`` for i = 1, 2, ... where
        their number is a power of two, else every second one of twice as many, and then the rest.
    keys : int
        How many there are; what is added to the last one is 0.
    bias_max : float
        Of the steepest exponent.
    dtype : str
        Of the array.

    References
    ----------
    Press et al., "Train short, test long", arXiv 2108.12409; transformers, build_mpt_alibi_tensor.
    """
    rounded = 2 ** ceil(log2(num_heads))
    slopes = 2.0 ** (-bias_max / rounded * np.arange(1, rounded + 1))
    if rounded != num_heads:
        slopes = np.concatenate([slopes[1::2], slopes[::2]])[:num_heads]
    found: Array = (slopes[:, None] * np.arange(1 - keys, 1)).astype(dtype)
    found.setflags(write=False)
    return found
