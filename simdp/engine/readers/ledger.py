"""Ledger: what every rank keeps in memory, as the script takes it and gives it back."""

from __future__ import annotations

import numpy as np

from simdp.arrays import Floats
from simdp.results.memory import PARTS

PLACES = {part: place for place, part in enumerate(PARTS)}


class Ledger:
    """Running totals of every part of every rank's memory, and what its peak was made of.

    Ranks that have always kept the same share a column, so that a thousand equal ranks cost as much
    as one. What all take alike is counted once, and told to the columns when one differs again.

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
        self._begin_alike()

    def _begin_alike(self) -> None:
        self._alike, self._sum = [0.0] * len(PARTS), 0.0
        self._most, self._at_most = 0.0, self._alike.copy()

    @property
    def now(self) -> Floats:
        """What each rank keeps [bytes], part by part; shape `(len(PARTS), world_size)`."""
        self._settle()
        return self._now[:, self._column]

    @property
    def peak(self) -> Floats:
        """The most that each rank has kept at a time [bytes], shape `(world_size,)`."""
        self._settle()
        return self._peak[self._column]

    @property
    def at_peak(self) -> Floats:
        """What that was made of [bytes], shape `(len(PARTS), world_size)`."""
        self._settle()
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
            if (nbytes != nbytes[0]).any():
                self._hold_by_column(PLACES[part], nbytes)
                return
            nbytes = nbytes.item(0)
        self._hold_alike(PLACES[part], nbytes)

    def _hold_alike(self, place: int, nbytes: float) -> None:
        self._alike[place] += nbytes
        self._sum += nbytes
        if self._sum > self._most:
            self._most, self._at_most = self._sum, self._alike.copy()

    def _hold_by_column(self, place: int, nbytes: Floats) -> None:
        self._settle()
        columns = self._by_column(nbytes)
        self._now[place] += columns
        self._total += columns
        self._note(self._total, self._now)

    def _settle(self) -> None:
        """Tell the columns what all have taken alike since it was last told."""
        self._note(self._total + self._most, self._now + np.array(self._at_most)[:, None])
        self._now += np.array(self._alike)[:, None]
        self._total += self._sum
        self._begin_alike()

    def _note(self, total: Floats, now: Floats) -> None:
        """Keep it if it is a peak."""
        higher = total > self._peak
        np.copyto(self._peak, total, where=higher)
        np.copyto(self._at_peak, now, where=higher)

    def _by_column(self, nbytes: Floats) -> Floats:
        """One number per column; a column whose ranks differ from now on is divided."""
        pairs = np.stack([self._column, nbytes])
        (columns, found), self._column = np.unique(pairs, axis=1, return_inverse=True)
        self._column = self._column.reshape(-1)
        old = columns.astype(np.int64)
        self._now, self._at_peak = self._now[:, old], self._at_peak[:, old]
        self._total, self._peak = self._total[old], self._peak[old]
        return np.asarray(found, dtype=float)
