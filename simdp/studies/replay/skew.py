"""Aligns the starts of steps on all ranks to one clock."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simdp.studies.replay.timeline import StepWork

LEAST = 0.01
"""Ranks that begin a step later than the first by less of it begin together."""


def skewed(ranks: Sequence[int], works: Sequence[StepWork]) -> tuple[dict[int, float], float]:
    """Tell how late ranks begin their only step, and how long it is for all together.

    Clocks are aligned by the ends of collectives, which all ranks leave together.

    Parameters
    ----------
    ranks : sequence of int
        Whose they are.
    works : sequence of StepWork
        One per rank.

    Returns
    -------
    (dict of int to float, float)
        Ranks that begin after the first one, and by how much; from the first begin to the last end
        [s]. Without collectives that all have, the mean of the ranks' own steps.
    """
    named = [[sent.name for sent in one.sent] for one in works]
    if not named[0] or any(each != named[0] for each in named):
        return {}, float(np.mean([one.end - one.begin for one in works]))
    ends = np.array([[sent.end for sent in one.sent] for one in works])
    shift = np.median(ends - ends[0], axis=1)
    begin = np.array([one.begin for one in works]) - shift
    end = np.array([one.end for one in works]) - shift
    whole = float(end.max() - begin.min())
    late = begin - begin.min()
    return {
        rank: float(by) for rank, by in zip(ranks, late.tolist(), strict=True) if by > LEAST * whole
    }, whole
