"""Ledger: what every rank keeps in memory, as the script takes it and gives it back."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simdp.results.memory import PARTS

Floats = NDArray[np.float64]


class Ledger:
    """Running totals of every part of every rank's memory, and what its peak was made of.

    Parameters
    ----------
    world_size : int
        Number of ranks.

    Attributes
    ----------
    now : ndarray, shape `(len(PARTS), world_size)`
        What each rank keeps [bytes], part by part.
    peak : ndarray, shape `(world_size,)`
        The most that each rank has kept at a time [bytes].
    at_peak : ndarray, shape `(len(PARTS), world_size)`
        What that was made of [bytes].
    """

    def __init__(self, world_size: int) -> None:
        self.now = np.zeros((len(PARTS), world_size))
        self.peak = np.zeros(world_size)
        self.at_peak = np.zeros((len(PARTS), world_size))
        self._total = np.zeros(world_size)

    def hold(self, part: str, nbytes: float | Floats) -> None:
        """Let every rank take bytes, or give them back where they are negative.

        Parameters
        ----------
        part : str
            One of `simdp.results.memory.PARTS`.
        nbytes : float or ndarray, shape `(world_size,)`
            How much [bytes].
        """
        self.now[PARTS.index(part)] += nbytes
        self._total += nbytes
        higher = self._total > self.peak
        if higher.any():
            self.peak[higher] = self._total[higher]
            self.at_peak[:, higher] = self.now[:, higher]
