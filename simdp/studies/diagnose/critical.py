"""Finds the critical rank of each step, and steps that differ from the others.

The critical rank waits longest for the others. What a few steps take beyond the median of all is
charged to these steps, not to what they spend it on: a pause of the host, a compilation, or one
slow spell of the network says nothing of the other steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from simdp.arrays import Bools, Floats, Ints
from simdp.studies.diagnose.case import Case
from simdp.studies.diagnose.charges import KINDS, Lateness, MeanCharges, lateness

TIE = 1e-6  # weight of transfers in the choice among ranks that wait equally long
MOST_UNEVEN = 1 / 3  # fraction of the steps that differ from the others, at most
LEAST_UNEVEN = 0.02  # fraction of a step by which a step that differs is longer, at least
FACTOR = 1.5  # a step that differs takes so many times what the median takes
ONCE = 6.0  # the same for waiting, which differs more from step to step

FEW, MOST_OF_FEW = 8, 0.03
"""Of fewer steps, which is usual is not sure: what differs is a smaller part of a step there."""


class UnevenSteps(NamedTuple):
    """Steps that take longer than the median for one thing."""

    what: str  # `collectives`, `wait`, or one of `KINDS`
    places: Ints  # which steps
    more: Floats  # time beyond the median; 0 for the other steps [s]; `(num_steps,)`
    usual: float  # the median [s]


@dataclass(frozen=True, eq=False)
class CriticalSteps:
    """The steps, each on its critical rank: the one that waits longest."""

    rank: Ints  # the critical rank; `(num_steps,)`
    window: float  # their mean length [s]
    mean: MeanCharges  # without what uneven steps take more
    unknown: float  # part of the waiting that is for ranks without a trace [s]
    late: Lateness  # of the ranks with a trace
    uneven: tuple[UnevenSteps, ...]  # steps that differ from the others

    @property
    def uneven_s(self) -> float:
        """Time that steps take longer than others, mean of a step [s]."""
        return sum(float(part.more.mean()) for part in self.uneven)


def critical_steps(case: Case) -> CriticalSteps:
    """Find the critical rank of each step, and the mean time of each cause there."""
    wait, blamed = case.charge("wait"), case.blamed
    rank = (wait + TIE * case.charge("transfer")).argmax(axis=1)
    steps = np.arange(len(rank))
    of = {kind: case.charge(kind)[steps, rank] for kind in KINDS}
    waiting, transfer = of["wait"], of["transfer"]
    unknown: Floats = np.minimum(blamed[steps, rank, -1], waiting)
    known = waiting - unknown
    window = case.window[steps, rank]
    mean = float(window.mean())
    uneven = list[UnevenSteps]()
    if case.has_steps:
        sent = _beyond("collectives", transfer + unknown, mean)
        if sent is not None:
            uneven.append(sent)
            left = 1 - sent.more / np.maximum(transfer + unknown, 1e-300)
            transfer, unknown = transfer * left, unknown * left
        waited = _beyond("wait", known, mean, ONCE)
        if waited is not None:
            uneven.append(waited)
            known = known - waited.more
        for kind in ("sync", "launch", "other", "compile"):
            excess = _beyond(kind, of[kind], mean)
            if excess is not None:
                uneven.append(excess)
                of[kind] = of[kind] - excess.more
        of |= {"transfer": transfer, "wait": known + unknown}
    blamed_known = blamed[:, :, :-1]
    return CriticalSteps(
        rank,
        mean,
        MeanCharges._make(float(of[kind].mean()) for kind in KINDS),
        float(unknown.mean()),
        lateness(blamed_known.sum(axis=2), blamed_known),
        tuple(sorted(uneven, key=lambda part: -float(part.more.sum()))),
    )


def _beyond(what: str, took: Floats, window: float, factor: float = FACTOR) -> UnevenSteps | None:
    """The few steps that take longer than the median; None without any.

    Parameters
    ----------
    what : str
        As in `UnevenSteps`.
    took : ndarray, shape `(num_steps,)`
        Its time in each step [s].
    window : float
        Mean length of a step [s].
    factor : float
        Steps that differ take so many times the median.
    """
    if len(took) < 3:
        return None
    usual = float(np.median(took))
    differs: Bools = took > max(factor * usual, usual + LEAST_UNEVEN * window)
    if not 0 < differs.sum() <= MOST_UNEVEN * len(took):
        return None
    more: Floats = np.where(differs, took - usual, 0.0)
    if len(took) < FEW and more.mean() > MOST_OF_FEW * window:
        return None
    return UnevenSteps(what, np.flatnonzero(differs), more, usual)
