"""Infers times of ranks without a trace from one rank's collectives.

A slow link makes every collective longer by the same factor, a late peer makes some of them longer
by the same time, whatever their sizes. So, of large collectives of several sizes, the one that is
the nearest to what the machine gives tells how slow the links are, and what others last longer is
waiting for a rank that is not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from simdp.studies.diagnose.charges import UNKNOWN, CollectiveCharge
from simdp.studies.diagnose.expected import CollectiveSize, Should
from simdp.studies.diagnose.meetings import Meeting

LARGE = 1e6
"""Of smaller collectives, launches and protocols make more than links do [bytes]."""


STEADY = 1 / 3
"""Standard deviation over mean up to which steps wait about as long."""


def late_peers(
    calls: Sequence[CollectiveCharge],
    sizes: Mapping[int, CollectiveSize],
    expected: Mapping[CollectiveSize, Should],
    meetings: Sequence[Meeting],
) -> list[CollectiveCharge]:
    """Tell the transfers of one rank's collectives from waiting for ranks without a trace.

    Parameters
    ----------
    calls : sequence of Call
        The rank's.
    sizes : mapping of int to Size
        Of those that are known, by their places in ``calls``.
    expected : mapping of Size to Should
        What they should take.
    meetings : sequence of Meeting
        With other ranks; what all ranks have is left as it is.

    Returns
    -------
    list of Call
        In the same order.
    """
    alone = [
        place
        for place, size in sizes.items()
        if size in expected
        and size.nbytes >= LARGE
        and not (calls[place].meeting >= 0 and meetings[calls[place].meeting].is_complete)
    ]
    lasted = dict[CollectiveSize, list[float]]()
    for place in alone:
        lasted.setdefault(sizes[place], []).append(calls[place].end - calls[place].start)
    if len(lasted) < 2:
        return list(calls)
    factor = max(1.0, min(min(times) / expected[size].usual for size, times in lasted.items()))
    found = list(calls)
    for place in alone:
        call, takes = calls[place], factor * expected[sizes[place]].usual
        middle = max(call.start, call.middle, call.end - takes)
        found[place] = replace(
            call, middle=middle, late=UNKNOWN if middle > call.middle else call.late
        )
    return found


def is_steady(waits: Sequence[float]) -> bool:
    """Whether all steps wait about as long.

    Parameters
    ----------
    waits : sequence of float
        For unknown ranks, by step [s].
    """
    return len(waits) > 2 and float(np.std(waits)) <= STEADY * float(np.mean(waits))
