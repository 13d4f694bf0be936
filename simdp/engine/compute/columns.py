"""Columns: seconds of calls on many ranks, where ranks that take the same share a column."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simdp.arrays import Floats, Ints


class Columns(NamedTuple):
    """Seconds of calls on all ranks.

    Attributes
    ----------
    seconds : ndarray, shape `(num_calls, num_columns)`
        What differs [s].
    column : ndarray, shape `(world_size,)`, int64
        Which column holds for each rank.
    """

    seconds: Floats
    column: Ints

    def of(self, call: int) -> Floats:
        """Time of a call on every rank, shape `(world_size,)` [s]."""
        row = self.seconds[call]
        return row[self.column] if len(row) > 1 else np.full(len(self.column), row[0])


def alike(batch: Ints, which: Ints, device: Ints) -> tuple[Ints, Ints]:
    """Find the ranks that take the same time: same samples, shapes and device.

    Parameters
    ----------
    batch, which, device : ndarray, shape `(world_size,)`
        Samples of each rank, and numbers of their shapes and of its device.

    Returns
    -------
    (ndarray, ndarray)
        A rank for each column, and the column of each rank.
    """
    each = (which * (int(batch.max()) + 1) + batch) * (int(device.max()) + 1) + device
    _, first, column = np.unique(each, return_index=True, return_inverse=True)
    return first, column
