"""Kernels of comm hooks: what they compute and move, counted as torch would launch them.

Work on single entries moves memory; its arithmetic is not counted. Each tensor that a kernel reads
or writes is moved once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from simdp.arrays import Floats
from simdp.engine.compute.roofline import Roofline

RADIX_BITS = 8
"""Bits of a value by which torch.topk sorts in one pass (ATen/native/cuda/TensorTopK.cu)."""

GRAM_SCHMIDT_RANK = 2
"""Columns up to which torch's powerSGD_hook takes Gram-Schmidt; for more, it takes QR."""


class Kernel(NamedTuple):
    """Kernels that run one after the other.

    Attributes
    ----------
    flops : float
        Arithmetic of products [FLOP].
    nbytes : float
        Bytes read and written.
    launches : int
        How many kernels these are.
    """

    flops: float
    nbytes: float
    launches: int = 1


def seconds(kernels: Iterable[Kernel], roofline: Roofline, dtype: str) -> Floats:
    """How long kernels take on each rank's device, as in `simdp.engine.compute.roofline` [s].

    Parameters
    ----------
    kernels : iterable of Kernel
        One after the other.
    roofline : Roofline
        The devices.
    dtype : str
        What is computed in.

    Returns
    -------
    ndarray, shape `(world_size,)`
    """
    total = np.zeros(len(roofline.launch))
    for kernel in kernels:
        busy = roofline.moving(kernel.nbytes)
        if kernel.flops:
            arithmetic = (kernel.flops + roofline.half_work) / roofline.flops(dtype)
            busy = np.maximum(busy, arithmetic)
        total += busy + kernel.launches * roofline.launch
    return total


def entrywise(nbytes: float, passes: int, launches: int = 1) -> Kernel:
    """Read and write buffers of a size, so many in all."""
    return Kernel(0.0, nbytes * passes, launches)


def product(rows: int, inner: int, columns: int, itemsize: int, batch: int = 1) -> Kernel:
    """Multiply matrices, several of the same shapes in one launch."""
    moved = rows * inner + inner * columns + rows * columns
    return Kernel(2.0 * rows * inner * columns * batch, float(moved * itemsize * batch))


def orthonormal(rows: int, columns: int, itemsize: int, epsilon: float, batch: int = 1) -> Kernel:
    """Make the columns of matrices orthonormal.

    Gram-Schmidt, column by column: the norm (reads the column), with an epsilon one more kernel,
    and the division (reads and writes it); then, where columns are left, what they have of this one
    is taken out of them in four kernels, of which the first two and the last two read or write
    these columns three times each, and the column twice in all. QR, as LAPACK's geqrf and orgqr:
    `2 rows columns^2` FLOPs each, to leading order (LAPACK Working Note 41).
    """
    size = rows * itemsize * batch
    if not by_columns(columns, itemsize):
        return Kernel(4.0 * rows * columns**2 * batch, 4.0 * size * columns, 2)
    nbytes, launches = 0, 0
    for left in reversed(range(columns)):
        nbytes += size * (3 + bool(left) * (2 + 6 * left))
        launches += 2 + (epsilon > 0) + 4 * bool(left)
    return Kernel(0.0, float(nbytes), launches)


def by_columns(columns: int, itemsize: int) -> bool:
    """Whether matrices are made orthonormal by Gram-Schmidt, as torch decides it."""
    return columns <= GRAM_SCHMIDT_RANK or itemsize == 2


def selection(nbytes: float, itemsize: int, chosen: int, entry: int) -> list[Kernel]:
    """Choose the entries of largest magnitude of a buffer.

    ``abs`` reads and writes it. torch.topk reads it once for every `RADIX_BITS` bits of a value,
    to find the smallest one to be taken, and once more to take them out; each pass counts as a
    kernel. Then the chosen entries, of ``entry`` bytes with their places, are read, divided and
    written.
    """
    passes = itemsize * 8 // RADIX_BITS + 1
    return [
        entrywise(nbytes, 2),
        entrywise(nbytes, passes, passes),
        entrywise(float(chosen * entry), 2, 2),
    ]
