"""Largest: the numbers of top-k sparsification, on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simdp.arrays import Array, Ints
from simdp.engine.buffers import FlatBuffers
from simdp.engine.compression.errors import Errors
from simdp.engine.threads import each_rank


class Entries(NamedTuple):
    """Entries of one rank's bucket: where they stand, and their values, divided."""

    places: Ints
    values: Array


class Largest:
    """What top-k keeps on every rank: errors."""

    def __init__(self) -> None:
        self.errors = Errors()

    def select(
        self, bucket: FlatBuffers, count: int, divisor: float, error_feedback: bool
    ) -> list[Entries]:
        """Add the errors, and choose every rank's entries of largest magnitude.

        What is chosen is taken out of the bucket, so that what is left in it is lost.
        """
        if error_feedback:
            self.errors.add(bucket)

        def work(rank: int) -> Entries:
            flat = bucket.flat[rank]
            places = largest(flat, count)
            values = flat[places] * flat.dtype.type(1.0 / divisor)
            kept = flat[places]
            flat[...] = 0
            flat[places] = kept
            return Entries(places, values)

        chosen = each_rank(work, len(bucket.flat), bucket.flat[0].size)
        if error_feedback:
            self.errors.settle(bucket)
        return chosen


def add(chosen: Sequence[Entries], bucket: FlatBuffers) -> None:
    """Make every rank's bucket the sum of all that was chosen, in the order of the ranks.

    An all_gather adds nothing, and all ranks do the same with what it brings: it is done once.
    """
    total = np.zeros_like(bucket.flat[0])
    for places, values in chosen:
        total[places] += values
    for flat in bucket.flat:
        flat[...] = total


def largest(values: Array, count: int) -> Ints:
    """Places of the entries of largest magnitude; of equal ones, the first.

    Parameters
    ----------
    values : ndarray, shape `(num_elements,)`
        nan counts as infinite.
    count : int
        How many; 1 <= count <= num_elements.

    Returns
    -------
    ndarray, shape `(count,)`, int64
        In rising order.
    """
    wide = values.astype(np.float32) if values.dtype.itemsize == 2 else values
    size = np.abs(wide)
    size[np.isnan(size)] = np.inf
    last = np.partition(size, len(size) - count)[len(size) - count]
    above, equal = np.flatnonzero(size > last), np.flatnonzero(size == last)
    return np.sort(np.concatenate([above, equal[: count - len(above)]]))
