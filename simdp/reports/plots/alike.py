"""Groups of ranks that do the same at the same time: they share a row and a name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from simdp.arrays import Floats, Ints
from simdp.reports.figures import consecutive
from simdp.results.trace import Trace

MAX_SAID = 22
"""Letters of a list of ranks; of a longer one the middle is left out."""


def groups(trace: Trace, world_size: int, tolerance: float) -> list[list[int]]:
    """Sort ranks into groups whose spans are the same.

    Parameters
    ----------
    trace : Trace
        Of the time that is looked at.
    world_size : int
        Number of ranks.
    tolerance : float
        How far instants may lie apart, and still look the same [s].

    Returns
    -------
    list of list of int
        Ranks of each group, in order; the groups by their first ranks.
    """
    label = np.zeros(world_size, dtype=np.int64)
    for block in trace.blocks:
        if label.max(initial=0) == world_size - 1:  # each rank is a group by itself
            break
        lanes = block.lane if isinstance(block.lane, np.ndarray) else None
        if len(block.ranks) == world_size and lanes is None:
            if np.ptp(block.start) > tolerance:
                label = _split(label, _level(block.start, tolerance))
            if np.ptp(block.end) > tolerance:
                label = _split(label, _level(block.end, tolerance))
            continue
        for column in (lanes, block.start, block.end):
            if column is not None:
                here = np.zeros(world_size, dtype=np.int64)  # ranks that have no such span
                here[block.ranks] = _level(np.asarray(column, dtype=np.float64), tolerance) + 1
                label = _split(label, here)
    _, first, number = np.unique(label, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    return [np.flatnonzero(number == group).tolist() for group in order]


def _level(values: Floats, tolerance: float) -> Ints:
    """Number values so that those with one number lie no further apart than the tolerance."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    run = np.concatenate([[0], np.cumsum(np.diff(ordered) > tolerance)])
    heads = ordered[np.flatnonzero(np.diff(run, prepend=-1))]
    # A chain of neighbours may reach far; it is cut into pieces as long as the tolerance.
    inside = ((ordered - heads[run]) / (tolerance or 1.0)).astype(np.int64)
    inside = np.where(ordered - heads[run] <= tolerance, 0, inside)
    level = np.empty(len(values), dtype=np.int64)
    level[order] = run * (int(inside.max(initial=0)) + 1) + inside
    return level


def _split(label: Ints, other: Ints) -> Ints:
    """Part groups whose ranks differ in something else."""
    _, number = np.unique(label * (int(other.max()) + 1) + other, return_inverse=True)
    found: Ints = number.reshape(-1).astype(np.int64)
    return found


def listed(ranks: Iterable[int], dash: str = "–") -> str:
    """Write ranks in short: ``"0–6, 8–31"``; of many the middle is left out."""
    said = [
        str(a) if a == b else f"{a}{', ' if b == a + 1 else dash}{b}" for a, b in consecutive(ranks)
    ]
    text = ", ".join(said)
    if len(text) <= MAX_SAID:
        return text
    shown = len(said) - 1
    while shown > 1 and len(", ".join([*said[:shown], "…", said[-1]])) > MAX_SAID:
        shown -= 1
    return ", ".join([*said[:shown], "…", said[-1]])


def row_name(ranks: Sequence[int], slow: Mapping[int, str]) -> str:
    """Name the row of a group of ranks; a slow one has a marker and its factor.

    Parameters
    ----------
    ranks : sequence of int
        Of the group.
    slow : mapping of int to str
        See `simdp.reports.slow_ranks.slow_ranks`.
    """
    factors = dict.fromkeys(slow[rank] for rank in ranks if rank in slow)
    return f"▲ {listed(ranks)}{next(iter(factors))}" if factors else listed(ranks)


def choose(found: Sequence[Sequence[int]], named: Sequence[int], limit: int) -> list[int]:
    """Choose groups to show: the first, the last, those of named ranks, and some between.

    Parameters
    ----------
    found : sequence of sequences of int
        Ranks of each group.
    named : sequence of int
        Ranks that are to be seen, the most important first.
    limit : int
        Groups that have room.

    Returns
    -------
    list of int
        Places in ``found``, in order.
    """
    if len(found) <= limit:
        return list(range(len(found)))
    place = {rank: number for number, ranks in enumerate(found) for rank in ranks}
    kept = dict.fromkeys([0, len(found) - 1])
    kept |= dict.fromkeys(place[rank] for rank in named if rank in place)
    chosen = [*kept][:limit]
    rest = [number for number in range(len(found)) if number not in kept]
    room = limit - len(chosen)
    chosen += [rest[(2 * i + 1) * len(rest) // (2 * room)] for i in range(room)]
    return sorted(chosen)
