"""Convolution of channels-last images in NumPy: forward and backward, block by block.

Images have one axis beside the channels, two, or three; one code serves them all.

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
from simdp.workload.layers.arrays.window import Window
from simdp.workload.layers.base import Shape
from simdp.workload.layers.extents import Extents

BLOCK_NBYTES = 150_000
"""Of the neighbourhoods that are laid out at a time, so that they stay in a core's cache."""

MIN_PIXELS = 256
"""Fewer in a block, and adding the weight gradients of the blocks would cost too much."""


def neighbourhoods(
    x: Array, window: Window, count: Extents, groups: int
) -> Iterator[tuple[slice, Array]]:
    """What the kernel sees at each of its places, a block that stays in the cache at a time.

    Parameters
    ----------
    x : ndarray, shape `(batch, *lengths, channels)`
        In any order of memory.
    window : Window
        The kernel's places.
    count : tuple of int
        How many there are along each axis.
    groups : int
        Parts of the channels.

    Yields
    ------
    slice
        Pixels of the output that belong to the block.
    ndarray, shape `(groups, pixels, kernel pixels * channels / groups)`
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
    cut = _cut(count, pixels)
    each = prod(count[cut + 1 :])
    lines = min(max(pixels // each, 1), count[cut])
    frame = np.zeros((images, *window.span(count), channels), dtype=x.dtype)
    seen = window.taps(frame, count, groups)
    room = np.empty((groups, images * lines * each, depth // groups), dtype=x.dtype)
    end = 0
    for first in range(0, num_images, images):
        part = x[first : first + images]
        window.place(frame[: len(part)], part)
        for outer in np.ndindex(count[:cut]):
            plane = seen[:, : len(part), *(slice(at, at + 1) for at in outer)]
            for line in range(0, count[cut], lines):
                here = plane[(slice(None),) * (cut + 2) + (slice(line, line + lines),)]
                begin, end = end, end + prod(here.shape[1 : 2 + len(count)])
                block = room[:, : end - begin]
                np.copyto(block.reshape(here.shape), here)
                yield slice(begin, end), block


def _cut(count: Extents, pixels: int) -> int:
    """The axis along which an image is cut into blocks of about so many pixels.

    The last one stays whole, unless it is the only one.
    """
    most = max(len(count) - 2, 0)
    return next((axis for axis in range(most) if prod(count[axis + 1 :]) <= pixels), most)


def convolved(x: Array, weight: Array, window: Window, count: Extents) -> Array:
    """Cross-correlate.

    Parameters
    ----------
    x : ndarray, shape `(batch, *lengths, channels)`
        In any order of memory.
    weight : ndarray, shape `(groups, *kernel, in / groups, out / groups)`
        In any order of memory.
    window : Window
        The kernel's places.
    count : tuple of int
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
    return x.reshape(prod(x.shape[:-1]), groups, x.shape[-1] // groups).transpose(1, 0, 2)


def gradients_of_unit_stride(
    x: Array, slope: Array, weight: Array, window: Window
) -> tuple[Array, Array]:
    """Gradients of the weight and of the input, both from the neighbourhoods of the slope.

    The input's is the slope correlated with the kernel turned by half a turn; the pixel that a
    neighbourhood of the slope goes back to is also the one which its weights were multiplied by.

    Parameters
    ----------
    x : ndarray, shape `(batch, *lengths, in)`
        What was convolved.
    slope : ndarray, shape `(batch, *count, out)`
        Gradient of the output.
    weight : ndarray, shape `(groups, out / groups, in / groups, *kernel)`
        As torch has it, but for the groups.
    window : Window
        The kernel's places, a pixel apart.

    Returns
    -------
    (ndarray, ndarray)
        Shaped as the weight and as x.
    """
    before = _beyond(window.reach, window.before)
    after = _beyond(window.reach, window.after)
    back = Window(window.kernel, window.stride, window.dilation, before, after)
    groups, out, share, *kernel = weight.shape
    matrix = np.ascontiguousarray(np.moveaxis(_turned(weight, 3), (1, 2), (-2, -1)))
    matrix = matrix.reshape(groups, -1, share)
    dx = np.empty(x.shape, dtype=slope.dtype)
    onto = _pixels(dx, groups)
    given = _pixels(np.ascontiguousarray(x), groups).transpose(0, 2, 1)
    total = np.zeros((groups, share, matrix.shape[1]), dtype=slope.dtype)
    for rows, block in neighbourhoods(slope, back, x.shape[1:-1], groups):
        np.matmul(block, matrix, out=onto[:, rows])
        total += given[:, :, rows] @ block
    turned = _turned(total.reshape(groups, share, *kernel, out), 2, 1)
    return np.moveaxis(turned, -1, 1), dx


def _beyond(reach: Extents, margin: Extents) -> Extents:
    """Padding of the slope, so that the turned kernel meets every pixel of the input."""
    return tuple(far - 1 - near for far, near in zip(reach, margin, strict=True))


def _turned(weight: Array, first: int, rest: int = 0) -> Array:
    """View of a weight with the axes of the kernel, from the first to the last, reversed."""
    back, as_it_is = slice(None, None, -1), slice(None)
    kernel = weight.ndim - first - rest
    return weight[(as_it_is,) * first + (back,) * kernel + (as_it_is,) * rest]


def weight_gradient(x: Array, slope: Array, weight: Array, window: Window) -> Array:
    """Gradient of the weight from the neighbourhoods of the input; see the function above."""
    groups, out, share, *kernel = weight.shape
    turned = _pixels(slope, groups).transpose(0, 2, 1)
    total = np.zeros((groups, out, prod(kernel) * share), dtype=slope.dtype)
    for rows, block in neighbourhoods(x, window, slope.shape[1:-1], groups):
        total += turned[:, :, rows] @ block
    return np.moveaxis(total.reshape(groups, out, *kernel, share), -1, 2)


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
    matrix = np.ascontiguousarray(np.moveaxis(weight, 2, -1)).reshape(groups, out, -1)
    count = slope.shape[1:-1]
    size = tuple(
        max(span, before + length)
        for span, before, length in zip(window.span(count), window.before, shape[1:-1], strict=True)
    )
    # Places of the kernel that lie side by side meet different pixels, and go in one piece.
    step = window.stride[-1] if window.dilation[-1] == 1 else 1
    wide = -(-size[-1] // step)
    frame = np.zeros((len(slope), *size[:-1], wide, step, groups, share), dtype=slope.dtype)
    along = Window(  # of pieces
        window.kernel,
        (*window.stride[:-1], window.stride[-1] // step),
        (*window.dilation[:-1], window.dilation[-1] if step == 1 else 1),
        window.before,
        window.after,
    )
    images = max(BLOCK_NBYTES // (prod(count) * matrix[:, 0].nbytes), 1)
    for first in range(0, len(slope), images):
        part, onto = slope[first : first + images], frame[first : first + images]
        sent = (_pixels(part, groups) @ matrix).reshape(groups, len(part), *count, *kernel, share)
        for place in product(*map(range, kernel[:-1]), range(0, kernel[-1], step)):
            here = sent[..., *place[:-1], place[-1] : place[-1] + step, :]
            seen = along.tap(onto, count, (*place[:-1], place[-1] // step))[
                ..., : here.shape[-2], :, :
            ]
            seen += np.moveaxis(here, 0, -2)
    dx = frame.reshape(len(slope), *size[:-1], wide * step, groups * share)
    inside = (slice(near, near + n) for near, n in zip(window.before, shape[1:-1], strict=True))
    return dx[slice(None), *inside]
