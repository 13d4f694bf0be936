"""Softmax of arrays: the logarithm, so that nothing overflows."""

from __future__ import annotations

import numpy as np

from simdp.arrays import Array


def log_softmax(x: Array, axis: int = -1) -> Array:
    """``x - log(sum exp(x))`` along an axis, a new array."""
    y: Array = x - x.max(axis=axis, keepdims=True)
    y -= np.log(np.exp(y).sum(axis=axis, keepdims=True))
    return y
