"""Rows less their mean, over their standard deviation: forward and backward, block by block."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simdp.arrays import Array
from simdp.workload.layers.arrays.blocks import blocks


class Rows(NamedTuple):
    """What backward needs, and what running statistics follow.

    Attributes
    ----------
    hat : ndarray, shape `(rows, length)`
        Normalised values.
    inverse : ndarray, shape `(rows, 1)`
        ``1 / sqrt(variance + eps)``.
    mean, variance : ndarray, shape `(rows,)`
        Of each row; the variance divides by the length.
    """

    hat: Array
    inverse: Array
    mean: Array
    variance: Array


def normalised(x: Array, eps: float) -> Rows:
    """``(x - mean) / sqrt(variance + eps)`` of each row.

    Parameters
    ----------
    x : ndarray, shape `(rows, length)`
        Left as it is.
    eps : float
        Added to the variance.
    """
    hat, length = np.empty_like(x), x.shape[1]
    mean, variance = np.empty(len(x), dtype=x.dtype), np.empty(len(x), dtype=x.dtype)
    inverse = np.empty((len(x), 1), dtype=x.dtype)
    for rows in blocks(len(x), length):
        mean[rows] = x[rows].mean(axis=1)
        centred = np.subtract(x[rows], mean[rows, None], out=hat[rows])
        variance[rows] = np.vecdot(centred, centred) / length
        inverse[rows, 0] = 1 / np.sqrt(variance[rows] + x.dtype.type(eps))
        centred *= inverse[rows]
    return Rows(hat, inverse, mean, variance)


def gradient(found: Rows, slope: Array) -> Array:
    """Gradient of the rows: ``inverse (slope - mean(slope) - hat mean(slope hat))``.

    Parameters
    ----------
    found : Rows
        From forward.
    slope : ndarray, shape `(rows, length)`
        Gradient of the normalised values; overwritten by what is returned.
    """
    length = slope.shape[1]
    for rows in blocks(len(slope), length):
        here, hat = slope[rows], found.hat[rows]
        projected = np.vecdot(here, hat)[:, None] / length
        here -= here.mean(axis=1, keepdims=True)
        here -= hat * projected
        here *= found.inverse[rows]
    return slope
