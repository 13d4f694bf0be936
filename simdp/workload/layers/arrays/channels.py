"""What layers do with channels: images in memory, sums per channel, one value for each channel.

Borders between layers are `(batch, channels, height, width)` as in torch, but the memory behind
them is channels-last wherever these layers have made it: a neighbourhood of pixels is then a few
long pieces, and the pixels are the rows of a matrix product.
"""

from __future__ import annotations

from math import prod

import numpy as np

from simdp.arrays import Array
from simdp.workload.layers.arrays.blocks import blocks

LANES = 512
"""Elements of a row that NumPy goes over at once; shorter rows cost more than their elements."""


def channels_last(x: Array) -> Array:
    """The same values with the channels along the last axis, in one piece of memory."""
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))


def channels_second(x: Array) -> Array:
    """View of channels-last values as torch orders the axes."""
    return np.moveaxis(x, -1, 1)


def channel_sum(x: Array) -> Array:
    """Sum of channels-last values over every axis but the last, float64."""
    rows = rows_of(x)
    total = np.zeros(rows.shape[1])
    for block in blocks(*rows.shape):
        total += rows[block].sum(axis=0)
    return folded(total, x)


def channel_sums(x: Array, y: Array) -> tuple[Array, Array]:
    """Sums of x and of x y over every axis but the last, float64; both are channels-last."""
    left, right = rows_of(x), rows_of(y)
    total, product = np.zeros(left.shape[1]), np.zeros(left.shape[1])
    for block in blocks(*left.shape):
        total += left[block].sum(axis=0)
        product += np.einsum("ij,ij->j", left[block], right[block])
    return folded(total, x), folded(product, x)


def rows_of(x: Array) -> Array:
    """View contiguous channels-last values as a matrix whose rows hold whole pixels."""
    width, axis = x.shape[-1], x.ndim - 1
    while axis and width < LANES:
        axis -= 1
        width *= x.shape[axis]
    return x.reshape(prod(x.shape[:axis]), width)


def repeated(channels: Array, rows: Array) -> Array:
    """One value per channel, for every column of `rows_of`, in its dtype."""
    return np.repeat(
        channels.astype(rows.dtype)[None], rows.shape[1] // len(channels), axis=0
    ).ravel()


def folded(columns: Array, x: Array) -> Array:
    """Add up the columns of `rows_of` that belong to one channel."""
    total: Array = columns.reshape(columns.size // x.shape[-1], x.shape[-1]).sum(axis=0)
    return total
