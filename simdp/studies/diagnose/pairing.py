"""Matches collectives of two ranks by number, order or end times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from simdp.arrays import Floats, Ints

AGREE = 0.8
"""So many of the pairs must end together for an order to be right."""

LEAST_TOLERANCE = 0.5e-3
"""Ends that differ by no more than this are taken to be the same [s]."""

CHANCE = 0.2
"""Of fewer of the calls, ends agree by chance: the ranks are not of one job."""

MOST = 500
"""Calls of one name that clocks are compared by."""


class Signature(NamedTuple):
    """What has to be equal on all ranks; -1 and empty where it is not known."""

    name: str
    num_elements: int
    dtype: str


class Calls(NamedTuple):
    """A rank's collectives in one group, in order.

    Attributes
    ----------
    places, sequence, step : ndarray, shape `(num_calls,)`, int64
        Which of the rank's collectives each is; its number in the group, and that of its step; -1
        where these are not known.
    end : ndarray, shape `(num_calls,)`
        On the rank's own clock [s].
    signatures : list of Signature
        What was called.
    """

    places: Ints
    sequence: Ints
    step: Ints
    end: Floats
    signatures: list[Signature]


class Pairs(NamedTuple):
    """Which calls of two ranks are the same.

    Attributes
    ----------
    of : tuple of (str, int, int)
        The group, and the places of the two among the timelines.
    ours, theirs : ndarray, shape `(num_pairs,)`, int64
        Places among the calls of each.
    apart : ndarray, shape `(num_pairs,)`
        By how much their ends differ [s].
    by_ends : bool
        Whether they were paired by these.
    """

    of: tuple[str, int, int]
    ours: Ints
    theirs: Ints
    apart: Floats
    by_ends: bool


def paired(ours: Calls, theirs: Calls, apart: float, of: tuple[str, int, int]) -> Pairs:
    """Pair the calls of two ranks.

    Parameters
    ----------
    ours, theirs : Calls
        In one group.
    apart : float
        How their clocks differ, as the files say [s].
    of : tuple of (str, int, int)
        As in `Pairs`.
    """
    for mine, other, sure in _orders(ours, theirs):
        differ = theirs.end[other] - ours.end[mine]
        near = np.abs(differ - np.median(differ)) <= _tolerance(ours)
        if sure or (len(mine) and near.mean() >= AGREE):
            keep = np.ones(len(mine), dtype=bool) if sure else near
            return Pairs(of, mine[keep], other[keep], differ[keep], by_ends=False)
    mine, other = _by_ends(ours, theirs, apart)
    return Pairs(of, mine, other, theirs.end[other] - ours.end[mine], by_ends=True)


def _orders(ours: Calls, theirs: Calls) -> Iterator[tuple[Ints, Ints, bool]]:
    """Ways to put the calls of two ranks in order, and whether it needs no proof."""
    if _numbered(ours) and _numbered(theirs):
        _, mine, other = np.intersect1d(ours.sequence, theirs.sequence, return_indices=True)
        yield mine, other, True
    if (ours.step >= 0).all() and (theirs.step >= 0).all():
        keys = [_within(calls.step) for calls in (ours, theirs)]
        both = sorted(set(keys[0]) & set(keys[1]))
        yield _at(keys[0], both), _at(keys[1], both), False
    n = min(len(ours.places), len(theirs.places))
    yield np.arange(n), np.arange(n), False


def _numbered(calls: Calls) -> bool:
    return bool((calls.sequence >= 0).all()) and len(set(calls.sequence)) == len(calls.sequence)


def _within(steps: Ints) -> dict[tuple[int, int], int]:
    """Step and place in it, of each call."""
    seen, found = Counter[int](), dict[tuple[int, int], int]()
    for place, step in enumerate(steps.tolist()):
        found[step, seen[step]] = place
        seen[step] += 1
    return found


def _at(keys: dict[tuple[int, int], int], chosen: Sequence[tuple[int, int]]) -> Ints:
    return np.array([keys[key] for key in chosen], dtype=np.int64)


def _tolerance(calls: Calls) -> float:
    """How far ends may lie apart: a part of the time between one and the next [s]."""
    between = np.diff(np.sort(calls.end))
    return max(LEAST_TOLERANCE, float(np.median(between)) / 5 if len(between) else 0.0)


def _by_ends(ours: Calls, theirs: Calls, apart: float) -> tuple[Ints, Ints]:
    """Pair calls of one name whose ends agree once the clocks do.

    The clocks differ by what most ends agree on; of equally many, by what is nearest to the
    difference that the files tell.
    """
    differ = np.sort(_differences(ours, theirs))
    if not len(differ):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    last = np.searchsorted(differ, differ + LEAST_TOLERANCE, side="right")
    votes, far = last - np.arange(len(differ)), np.abs(differ - apart)
    best = int(np.lexsort((far, -votes))[0])
    centre = float(np.median(differ[best : last[best]]))
    pairs = sorted(_nearest(ours, theirs, centre))
    if len(pairs) < CHANCE * min(len(ours.places), len(theirs.places)):
        pairs = []
    return np.array([i for i, _ in pairs], dtype=np.int64), np.array(
        [j for _, j in pairs], dtype=np.int64
    )


def _by_name(calls: Calls) -> dict[str, list[int]]:
    """Places of the calls of each name; sizes may be unknown, or uneven."""
    found = dict[str, list[int]]()
    for place, signature in enumerate(calls.signatures):
        found.setdefault(signature.name, []).append(place)
    return found


def _differences(ours: Calls, theirs: Calls) -> Floats:
    """Between the ends of all calls of one name, of many the first [s]."""
    mine, others = _by_name(ours), _by_name(theirs)
    found = [
        np.subtract.outer(theirs.end[others[key][:MOST]], ours.end[mine[key][:MOST]]).ravel()
        for key in mine
        if key in others
    ]
    return np.concatenate(found) if found else np.zeros(0)


def _nearest(ours: Calls, theirs: Calls, apart: float) -> Iterator[tuple[int, int]]:
    """Calls of one name that end together on clocks so far apart; each in one pair."""
    mine, others = _by_name(ours), _by_name(theirs)
    for key in mine:
        if key not in others:
            continue
        places = np.array(others[key])
        ends = theirs.end[places]
        order = np.argsort(ends)
        taken = set[int]()
        for place in mine[key]:
            wanted = ours.end[place] + apart
            at = int(np.searchsorted(ends[order], wanted))
            near = [order[i] for i in (at - 1, at) if 0 <= i < len(order)]
            best = min(near, key=lambda i: abs(ends[i] - wanted))
            if abs(ends[best] - wanted) <= LEAST_TOLERANCE and best not in taken:
                taken.add(int(best))
                yield place, int(places[best])
