"""Ledger: what every rank keeps in memory, as the script takes it and gives it back."""

from __future__ import annotations

import numpy as np

from simdp.arrays import Floats
from simdp.results.memory import PARTS

PLACES = {part: place for place, part in enumerate(PARTS)}


class Ledger:
    """Running totals of every part of every rank's memory, and what its peak was made of.

    Ranks that have always kept the same share a column, so that a thousand equal ranks cost as much
    as one.

    Parameters
    ----------
    world_size : int
        Number of ranks.
    """

    def __init__(self, world_size: int) -> None:
        self._column = np.zeros(world_size, dtype=np.int64)
        self._now = np.zeros((len(PARTS), 1))
        self._total, self._peak = np.zeros(1), np.zeros(1)
        self._at_peak = np.zeros((len(PARTS), 1))

    @property
    def now(self) -> Floats:
        """What each rank keeps [bytes], part by part; shape `(len(PARTS), world_size)`."""
        return self._now[:, self._column]

    @property
    def peak(self) -> Floats:
        """The most that each rank has kept at a time [bytes], shape `(world_size,)`."""
        return self._peak[self._column]

    @property
    def at_peak(self) -> Floats:
        """What that was made of [bytes], shape `(len(PARTS), world_size)`."""
        return self._at_peak[:, self._column]

    def hold(self, part: str, nbytes: float | Floats) -> None:
        """Let every rank take bytes, or give them back where they are negative.

        Parameters
        ----------
        part : str
            One of `simdp.results.memory.PARTS`.
        nbytes : float or ndarray, shape `(world_size,)`
            How much [bytes].
        """
        if isinstance(nbytes, np.ndarray):
            columns = self._by_column(nbytes)
            nbytes = columns if len(columns) > 1 else columns.item()
        if len(self._total) == 1:
            self._hold_alike(PLACES[part], float(nbytes))
            return
        self._now[PLACES[part]] += nbytes
        self._total += nbytes
        higher = self._total > self._peak
        if higher.any():
            np.maximum(self._peak, self._total, out=self._peak)
            np.copyto(self._at_peak, self._now, where=higher)

    def _hold_alike(self, place: int, nbytes: float) -> None:
        """Hold, where all ranks have always kept the same: single numbers are no work for NumPy."""
        self._now[place, 0] += nbytes
        total = self._total[0] = self._total.item() + nbytes
        if total > self._peak.item():
            self._peak[0] = total
            self._at_peak[:] = self._now

    def _by_column(self, nbytes: Floats) -> Floats:
        """One number per column; a column whose ranks differ from now on is divided."""
        pairs = np.stack([self._column, nbytes])
        (columns, found), self._column = np.unique(pairs, axis=1, return_inverse=True)
        self._column = self._column.reshape(-1)
        old = columns.astype(np.int64)
        self._now, self._at_peak = self._now[:, old], self._at_peak[:, old]
        self._total, self._peak = self._total[old], self._peak[old]
        return np.asarray(found, dtype=float)
