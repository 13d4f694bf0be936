"""Columns: seconds of calls on many ranks, where ranks that take the same share a column."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


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
    column: NDArray[np.int64]

    def of(self, call: int) -> Floats:
        """Time of a call on every rank, shape `(world_size,)` [s]."""
        row = self.seconds[call]
        return row[self.column] if len(row) > 1 else np.full(len(self.column), row[0])
