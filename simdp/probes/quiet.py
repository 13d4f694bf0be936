"""How busy a machine is with what is not ours: a round that others disturbed is taken again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

STAT = Path("/proc/stat")
"""Linux's counters; where there are none, every round counts as quiet."""

PAUSE = 0.25
"""Seconds for which the machine is looked at before a round."""


class Usage(NamedTuple):
    """Counters at an instant: of the wall clock, this process, and all processes [s]."""

    wall: float
    own: float
    all: float


def usage() -> Usage:
    """Read the counters; where Linux has none, all processes count as idle."""
    ticks = 0.0
    if STAT.exists():
        user, nice, system = STAT.read_text().split(maxsplit=4)[1:4]
        ticks = (int(user) + int(nice) + int(system)) / os.sysconf("SC_CLK_TCK")
    return Usage(time.perf_counter(), time.process_time(), ticks)


def foreign(before: Usage, after: Usage, own: float) -> float:
    """Share of the machine's cores that others used between two instants.

    Parameters
    ----------
    before, after : Usage
        Of one rank.
    own : float
        CPU time that all ranks on the machine used in between [s].

    Returns
    -------
    float
        From 0 to 1.
    """
    cores = os.cpu_count() or 1
    theirs = after.all - before.all - own
    return max(0.0, theirs / (after.wall - before.wall) / cores)


def undisturbed(
    gathered: Callable[[Any], list[Any]], work: Callable[[], T], limit: float, tries: int
) -> tuple[T, float]:
    """Do some work on all ranks when nobody else disturbs it, or when the tries are used up.

    A try looks at the machine for a moment, and where it is busy, that was the try: waiting costs
    others nothing. Else the work is done, and counts if it was not disturbed; the last try does it
    in any case, if none did.

    Parameters
    ----------
    gathered : callable
        Gives every rank what each one puts in; all ranks call it together.
    work : callable
        Is measured.
    limit : float
        Share of the cores that others may use.
    tries : int
        At least 1.

    Returns
    -------
    result
        Of the quietest try.
    share : float
        What others used of the cores meanwhile, at most over the nodes.
    """
    found: list[tuple[float, int, T]] = []
    for number in range(tries):
        is_last = number == tries - 1 and not found
        if not is_last:
            _, share = _watched(gathered, lambda: time.sleep(PAUSE))
            if share > limit:
                continue
        result, share = _watched(gathered, work)
        found.append((share, number, result))
        if share <= limit:
            break
    share, _, result = min(found, key=lambda item: item[:2])
    return result, share


def _watched(gathered: Callable[[Any], list[Any]], work: Callable[[], T]) -> tuple[T, float]:
    """Do some work on all ranks together; its result, and what others used meanwhile."""
    gathered(None)
    before = usage()
    result = work()
    gathered(None)
    after = usage()
    here = os.uname().nodename
    ranks = gathered((here, after.own - before.own))
    own = sum(seconds for node, seconds in ranks if node == here)
    return result, max(gathered(foreign(before, after, own)))
