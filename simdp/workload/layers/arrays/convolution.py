"""Convolution of channels-last images in NumPy: forward and backward, block by block.

Neighbourhoods of pixels are laid out as the rows of a matrix, which BLAS multiplies by the weight.
Only a part that fits into a core's cache is laid out at a time. No parameters and no costs.

References
----------
Chellapilla, Puri and Simard, "High performance convolutional neural networks for document
processing", IWFHR 2006.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod

import numpy as np

from simdp.arrays import Array
from simdp.workload.layers.arrays.window import Window, places
from simdp.workload.layers.base import Shape
from simdp.workload.layers.pairs import Pair

BLOCK_NBYTES = 150_000
"""Of the neighbourhoods that are laid out at a time, so that they stay in a core's cache."""

MIN_PIXELS = 256
"""Fewer in a block, and adding the weight gradients of the blocks would cost too much."""


def neighbourhoods(
    x: Array, window: Window, count: Pair, groups: int
) -> Iterator[tuple[slice, Array]]:
    """What the kernel sees at each of its places, a block that stays in the cache at a time.

    Parameters
    ----------
    x : ndarray, shape `(batch, height, width, channels)`
        In any order of memory.
    window : Window
        The kernel's places.
    count : (int, int)
        How many there are along each axis.
    groups : int
        Parts of the channels.

    Yields
    ------
    slice
        Pixels of the output that belong to the block.
    ndarray, shape `(groups, pixels, kernel height * kernel width * channels / groups)`
        Valid until the next block.
    """
    num_images, channels = len(x), x.shape[-1]
    depth, per_image = prod(window.kernel) * channels, prod(count)
    pixels = max(BLOCK_NBYTES // (depth * x.itemsize), MIN_PIXELS)
    if window.is_pixel and groups == 1 and x.flags.c_contiguous:
        flat = x.reshape(1, -1, channels)
        for begin in range(0, num_images * per_image, pixels):
            yield slice(begin, begin + pixels), flat[:, begin : begin + pixels]
        return
    images = min(max(pixels // per_image, 1), max(num_images, 1))
    lines = min(max(pixels // count[1], 1), count[0])
    frame = np.zeros((images, *window.span(count), channels), dtype=x.dtype)
    seen = window.taps(frame, count, groups)
    room = np.empty((groups, images * lines * count[1], depth // groups), dtype=x.dtype)
    end = 0
    for first in range(0, num_images, images):
        part = x[first : first + images]
        window.place(frame[: len(part)], part)
        for line in range(0, count[0], lines):
            here = seen[:, : len(part), line : line + lines]
            begin, end = end, end + prod(here.shape[1:4])
            block = room[:, : end - begin]
            np.copyto(block.reshape(here.shape), here)
            yield slice(begin, end), block


def convolved(x: Array, weight: Array, window: Window, count: Pair) -> Array:
    """Cross-correlate.

    Parameters
    ----------
    x : ndarray, shape `(batch, height, width, channels)`
        In any order of memory.
    weight : ndarray, shape `(groups, kernel height, kernel width, in / groups, out / groups)`
        In any order of memory.
    window : Window
        The kernel's places.
    count : (int, int)
        How many there are along each axis.

    Returns
    -------
    ndarray, shape `(batch, *count, out)`
    """
    groups, out = len(weight), weight.shape[-1]
    matrix = np.ascontiguousarray(weight).reshape(groups, -1, out)
    y = np.empty((len(x), *count, groups * out), dtype=x.dtype)
    pixels = _pixels(y, groups)
    for rows, block in neighbourhoods(x, window, count, groups):
        np.matmul(block, matrix, out=pixels[:, rows])
    return y


def _pixels(x: Array, groups: int) -> Array:
    """Channels-last values as one matrix per group, shape `(groups, pixels, channels / groups)`."""
    return x.reshape(prod(x.shape[:3]), groups, x.shape[3] // groups).transpose(1, 0, 2)


def gradients_of_unit_stride(
    x: Array, slope: Array, weight: Array, window: Window
) -> tuple[Array, Array]:
    """Gradients of the weight and of the input, both from the neighbourhoods of the slope.

    The input's is the slope correlated with the kernel turned by half a turn; the pixel that a
    neighbourhood of the slope goes back to is also the one which its weights were multiplied by.

    Parameters
    ----------
    x : ndarray, shape `(batch, height, width, in)`
        What was convolved.
    slope : ndarray, shape `(batch, rows, columns, out)`
        Gradient of the output.
    weight : ndarray, shape `(groups, out / groups, in / groups, kernel height, kernel width)`
        As torch has it, but for the groups.
    window : Window
        The kernel's places, a pixel apart.

    Returns
    -------
    (ndarray, ndarray)
        Shaped as the weight and as x.
    """
    (tall, wide), (top, left), (bottom, right) = window.reach, window.before, window.after
    before, after = (tall - 1 - top, wide - 1 - left), (tall - 1 - bottom, wide - 1 - right)
    back = Window(window.kernel, (1, 1), window.dilation, before, after)
    groups, out, share, *kernel = weight.shape
    matrix = np.ascontiguousarray(weight[..., ::-1, ::-1].transpose(0, 3, 4, 1, 2))
    matrix = matrix.reshape(groups, -1, share)
    dx = np.empty(x.shape, dtype=slope.dtype)
    onto = _pixels(dx, groups)
    given = _pixels(np.ascontiguousarray(x), groups).transpose(0, 2, 1)
    total = np.zeros((groups, share, matrix.shape[1]), dtype=slope.dtype)
    for rows, block in neighbourhoods(slope, back, (x.shape[1], x.shape[2]), groups):
        np.matmul(block, matrix, out=onto[:, rows])
        total += given[:, :, rows] @ block
    turned = total.reshape(groups, share, *kernel, out)[:, :, ::-1, ::-1]
    return turned.transpose(0, 4, 1, 2, 3), dx


def weight_gradient(x: Array, slope: Array, weight: Array, window: Window) -> Array:
    """Gradient of the weight from the neighbourhoods of the input; see the function above."""
    groups, out, share, *kernel = weight.shape
    turned = _pixels(slope, groups).transpose(0, 2, 1)
    total = np.zeros((groups, out, prod(kernel) * share), dtype=slope.dtype)
    for rows, block in neighbourhoods(x, window, (slope.shape[1], slope.shape[2]), groups):
        total += turned[:, :, rows] @ block
    return total.reshape(groups, out, *kernel, share).transpose(0, 1, 4, 2, 3)


def input_gradient(shape: Shape, slope: Array, weight: Array, window: Window) -> Array:
    """Gradient of the input: each place of the kernel sends something to the pixels it saw.

    Parameters
    ----------
    shape : tuple of int
        Of the input, channels-last.
    slope, weight, window
        As in `gradients_of_unit_stride`, but for the distance of the places.
    """
    groups, out, share, *kernel = weight.shape
    matrix = np.ascontiguousarray(weight.transpose(0, 1, 3, 4, 2)).reshape(groups, out, -1)
    count, top, left = (slope.shape[1], slope.shape[2]), *window.before
    span = window.span(count)
    tall, wide = max(span[0], top + shape[1]), max(span[1], left + shape[2])
    # Places of the kernel that lie side by side meet different pixels, and go in one piece.
    step = window.stride[1] if window.dilation[1] == 1 else 1
    frame = np.zeros((len(slope), tall, -(-wide // step), step, groups, share), dtype=slope.dtype)
    images = max(BLOCK_NBYTES // (prod(count) * matrix[:, 0].nbytes), 1)
    for first in range(0, len(slope), images):
        part, onto = slope[first : first + images], frame[first : first + images]
        sent = (_pixels(part, groups) @ matrix).reshape(groups, len(part), *count, *kernel, share)
        for row, column in product(range(kernel[0]), range(0, kernel[1], step)):
            down = places(row * window.dilation[0], window.stride[0], count[0])
            along = places(column * window.dilation[1] // step, window.stride[1] // step, count[1])
            here = sent[:, :, :, :, row, column : column + step]
            seen = onto[:, down, along, : here.shape[4]]
            seen += np.moveaxis(here, 0, 4)
    dx = frame.reshape(len(slope), tall, frame.shape[2] * step, groups * share)
    return dx[:, top : top + shape[1], left : left + shape[2]]
