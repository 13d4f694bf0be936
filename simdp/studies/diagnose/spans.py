"""Sets of instants: disjoint intervals in order, as `simdp.traces.intervals.union` makes them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simdp.arrays import Floats
from simdp.traces.intervals import covered, union


class Instants(NamedTuple):
    """Disjoint intervals in order [s].

    Attributes
    ----------
    start, end : ndarray, shape `(n,)`
        None empty.
    """

    start: Floats
    end: Floats

    @classmethod
    def of(cls, start: Floats, end: Floats) -> Instants:
        """The union of intervals in any order."""
        return cls(*union(start, end))

    def both(self, other: Instants) -> Instants:
        """Instants of this set that are in the other too."""
        return self._chosen(other, True)

    def without(self, other: Instants) -> Instants:
        """Instants of this set that are not in the other."""
        return self._chosen(other, False)

    def plus(self, other: Instants) -> Instants:
        """Instants of either."""
        return Instants.of(
            np.concatenate([self.start, other.start]), np.concatenate([self.end, other.end])
        )

    def length(self) -> float:
        """How long they are together [s]."""
        return float((self.end - self.start).sum())

    def within(self, begin: Floats, end: Floats) -> Floats:
        """How much of each interval from ``begin`` to ``end`` they are [s]."""
        return covered(self.start, self.end, end) - covered(self.start, self.end, begin)

    def _chosen(self, other: Instants, inside: bool) -> Instants:
        if not len(self.start):
            return self
        cuts = np.unique(np.concatenate([*self, *other]))
        begin, end = cuts[:-1], cuts[1:]
        keep = _holds(self, begin) & (_holds(other, begin) == inside)
        return Instants.of(begin[keep], end[keep])


NOTHING = Instants(np.zeros(0), np.zeros(0))


def _holds(some: Instants, at: Floats) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Whether what begins at each instant is in a set."""
    if not len(some.start):
        return np.zeros(len(at), dtype=bool)
    place = np.searchsorted(some.start, at, side="right") - 1
    held: np.ndarray[tuple[int], np.dtype[np.bool_]] = (place >= 0) & (
        at < some.end[np.maximum(place, 0)]
    )
    return held
