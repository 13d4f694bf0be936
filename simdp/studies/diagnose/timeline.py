"""Timeline of a rank: its steps, on its host and on its device, as sets of instants.

A step is a ``ProfilerStep#N``; without them, the time between the ends of two ``Optimizer.step``;
without these, the whole trace is one.

On the device a step lasts from where the one before ended to the last kernel that was launched in
it, or to its end on the host, whichever is later. The two clocks of a step differ while the launch
queue (about 1,000 kernels) still fills: the host then runs ahead, and its marks are no step times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from simdp.arrays import Bools, Floats, Ints
from simdp.traces import ANNOTATION, COMMUNICATION, COMPUTE, SYNC, HostEvents, RankTrace
from simdp.traces.intervals import covered, union

# Instants -----------------------------------------------------------------------------------------


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


# Steps --------------------------------------------------------------------------------------------

FILLING = 0.9
"""A host that takes less than this part of its device's time for a step runs ahead of it."""

OPTIMIZER = "Optimizer.step#"


@dataclass(frozen=True, eq=False)
class RankTimeline:
    """A rank's steps.

    Attributes
    ----------
    trace : RankTrace
        The rank's.
    rank : int
        Its number; its place among the traces where it is not known.
    are : str
        What its steps are: the name of what marks them, or empty for the whole trace.
    number : ndarray, shape `(num_steps,)`, int64
        As the trace counts them.
    host : ndarray, shape `(num_steps,)`
        Time between the host's marks [s].
    begin, end : ndarray, shape `(num_steps,)`
        On the device [s].
    counted : ndarray, shape `(num_steps,)`, bool
        Whether the marks tell the time of a step.
    step : ndarray, shape `(num_kernels,)`, int64
        In which step each kernel was launched, or -1.
    """

    trace: RankTrace
    rank: int
    are: str
    number: Ints
    host: Floats
    begin: Floats
    end: Floats
    counted: Bools
    step: Ints

    @property
    def num_steps(self) -> int:
        """How many; 1 where the whole trace stands for one."""
        return len(self.number)

    @property
    def time(self) -> Floats:
        """Time of each step: the host's, or the device's where the queue fills all along [s]."""
        return self.host if self.counted.any() else self.end - self.begin

    @property
    def used(self) -> Bools:
        """Which steps are in the means."""
        if self.counted.any():
            return self.counted
        later = np.arange(self.num_steps) > 0
        return later if later.any() else ~later


def timeline(trace: RankTrace, place: int) -> RankTimeline:
    """Find the steps of a rank.

    Parameters
    ----------
    trace : RankTrace
        The rank's.
    place : int
        Its place among the traces.
    """
    kernels = trace.kernels
    number, marks, step, are = _steps(trace)
    ran = kernels.kind != SYNC
    if not len(number):
        first, last = _extent(trace)
        number, marks = np.array([0]), (np.array([first]), np.array([last]))
        step = np.where(ran, 0, -1)
    last_end = np.full(len(number), -np.inf)
    mine = ran & (step >= 0)
    np.maximum.at(last_end, step[mine], kernels.end[mine])
    last_end = np.where(np.isfinite(last_end), last_end, np.nan)
    first_start = _earliest(kernels.start[ran & (step == 0)])
    end = np.maximum.accumulate(np.fmax(marks[1], last_end))
    begin = np.concatenate([[np.fmin(marks[0][0], first_start)], end[:-1]])
    at = np.where(np.isnan(kernels.launched), kernels.start, kernels.launched)
    before = _latest(kernels.end[ran & (at < marks[0][0])])
    first = first_start if np.isnan(before) else max(before, marks[0][0])
    on_device = last_end - np.concatenate([[first], last_end[:-1]])
    host = marks[1] - marks[0]
    ahead = host < FILLING * on_device
    counted = ~_filling(ahead, last_end - marks[1]) if are else np.ones(1, dtype=bool)
    rank = place if trace.rank is None else trace.rank
    return RankTimeline(trace, rank, are, number, host, begin, end, counted, step)


def _filling(ahead: Bools, lag: Floats) -> Bools:
    """The first steps, as long as the host runs ahead of a device that never catches up again."""
    least = np.fmin.accumulate(lag[::-1])[::-1]
    filling: Bools = np.logical_and.accumulate(ahead & (least >= FILLING * lag))
    return filling


def _steps(trace: RankTrace) -> tuple[Ints, tuple[Floats, Floats], Ints, str]:
    """Numbers, marks of the host, and in which step each kernel was launched."""
    kernels, steps = trace.kernels, trace.steps
    if len(steps):
        return steps.number, (steps.start, steps.end), kernels.step, "ProfilerStep"
    ends = np.sort(_annotated(trace.host, OPTIMIZER)[1])
    if len(ends) < 2:
        return np.zeros(0, dtype=np.int64), (ends[:0], ends[:0]), kernels.step, ""
    at = np.where(np.isnan(kernels.launched), kernels.start, kernels.launched)
    step = np.searchsorted(ends, at, side="right") - 1
    step[step >= len(ends) - 1] = -1
    return np.arange(1, len(ends)), (ends[:-1], ends[1:]), step, "Optimizer.step"


def _annotated(host: HostEvents, beginning: str) -> tuple[Floats, Floats]:
    wanted = np.array([name.startswith(beginning) for name in host.names], dtype=bool)
    at = wanted[host.name] & (host.kind == ANNOTATION) if len(wanted) else host.kind < 0
    return host.start[at], host.end[at]


def _extent(trace: RankTrace) -> tuple[float, float]:
    """From the first to the last device event; of the host's, where there is none [s]."""
    ran = trace.kernels.kind != SYNC
    some = trace.kernels if ran.any() else trace.host
    start, end = (some.start[ran], some.end[ran]) if ran.any() else (some.start, some.end)
    return (float(start.min()), float(end.max())) if len(start) else (0.0, 0.0)


def _latest(values: Floats) -> float:
    return float(values.max()) if len(values) else np.nan


def _earliest(values: Floats) -> float:
    return float(values.min()) if len(values) else np.nan


@dataclass(frozen=True, eq=False)
class Activity:
    """What a device did, as sets of instants.

    Attributes
    ----------
    compute, communication, other : Instants
        Kernels of each kind; copies and sets. They may overlap.
    """

    compute: Instants
    communication: Instants
    other: Instants

    @property
    def busy(self) -> Instants:
        """Instants of any of them."""
        return self.compute.plus(self.communication).plus(self.other)


def activity(trace: RankTrace, chosen: Ints | None = None) -> Activity:
    """Put a device's events together by kind.

    Parameters
    ----------
    trace : RankTrace
        The rank's.
    chosen : ndarray, int64, optional
        Places of its kernels; all of them by default.
    """
    kernels = trace.kernels
    places = np.arange(len(kernels)) if chosen is None else chosen
    kind, start, end = (column[places] for column in (kernels.kind, kernels.start, kernels.end))
    works, sends = kind == COMPUTE, kind == COMMUNICATION
    copies = ~works & ~sends & (kind != SYNC)
    return Activity(*(Instants.of(start[at], end[at]) for at in (works, sends, copies)))
