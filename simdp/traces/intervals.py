"""Unions and intersections of intervals, and their lengths."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simdp.arrays import Bools, Floats


def union(start: Floats, end: Floats) -> tuple[Floats, Floats]:
    """Merge intervals that touch or overlap.

    Parameters
    ----------
    start, end : ndarray, shape `(n,)`
        In any order; intervals that end before they start count as nothing.

    Returns
    -------
    start, end : ndarray, shape `(m,)`
        Disjoint, in order, none empty.
    """
    real = end > start
    start, end = start[real], end[real]
    if not len(start):
        return start, end
    order = np.argsort(start, kind="stable")
    start, latest = start[order], np.maximum.accumulate(end[order])
    first = np.concatenate([[True], start[1:] > latest[:-1]])
    last = np.concatenate([first[1:], [True]])
    return start[first], latest[last]


def covered(start: Floats, end: Floats, at: Floats) -> Floats:
    """Length that disjoint intervals in order cover before each instant.

    Parameters
    ----------
    start, end : ndarray, shape `(m,)`
        As `union` gives them.
    at : ndarray
        Instants.

    Returns
    -------
    ndarray, the shape of ``at``
    """
    if not len(start):
        return np.zeros(np.shape(at))
    total = np.concatenate([[0.0], np.cumsum(end - start)])
    begun = np.searchsorted(start, at, side="right")
    before = np.maximum(begun - 1, 0)
    within = np.clip(at - start[before], 0.0, end[before] - start[before])
    return np.where(begun > 0, total[before] + within, 0.0)


class Instants(NamedTuple):
    """Disjoint intervals in order [s]."""

    start: Floats
    """None empty; shape `(n,)`."""
    end: Floats
    """None empty; shape `(n,)`."""

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
        """Total length [s]."""
        return float((self.end - self.start).sum())

    def within(self, begin: Floats, end: Floats) -> Floats:
        """Length that each interval from ``begin`` to ``end`` has of them [s]."""
        return covered(self.start, self.end, end) - covered(self.start, self.end, begin)

    def _chosen(self, other: Instants, inside: bool) -> Instants:
        if not len(self.start):
            return self
        cuts = np.unique(np.concatenate([*self, *other]))
        begin, end = cuts[:-1], cuts[1:]
        keep = _holds(self, begin) & (_holds(other, begin) == inside)
        return Instants.of(begin[keep], end[keep])


NOTHING = Instants(np.zeros(0), np.zeros(0))


def _holds(some: Instants, at: Floats) -> Bools:
    """Whether what begins at each instant is in a set."""
    if not len(some.start):
        return np.zeros(len(at), dtype=bool)
    place = np.searchsorted(some.start, at, side="right") - 1
    return (place >= 0) & (at < some.end[np.maximum(place, 0)])
