"""Timeline of a rank: its steps, on its host and on its device.

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
from simdp.traces.rows import SYNC, RankTrace

FILLING = 0.9
"""A host that takes less than this part of its device's time for a step runs ahead of it."""

OPTIMIZER = "Optimizer.step#"
"""Beginning of the annotation of an optimizer's step."""


class StepMarks(NamedTuple):
    """Steps as the host marks them."""

    # name of the annotation, ``ProfilerStep`` or ``Optimizer.step``; empty if the whole trace is
    # one step
    mark: str
    number: Ints  # as the trace counts them; `(num_steps,)`
    # start, end: on the host; infinite for the whole trace [s]; `(num_steps,)`
    start: Floats
    end: Floats
    # kernel, collective: index of the step in which each kernel was launched and each collective
    # called, or -1
    kernel: Ints
    collective: Ints


def step_marks(trace: RankTrace) -> StepMarks:
    """Find the marks of a rank's steps; one step at least."""
    kernels, calls, steps = trace.kernels, trace.collectives, trace.steps
    if len(steps):
        marks = steps.number, steps.start, steps.end
        return StepMarks("ProfilerStep", *marks, kernels.step, calls.step)
    ends = np.sort(trace.host.end[trace.host.named(OPTIMIZER)])
    if len(ends) > 1:
        marks = np.arange(1, len(ends)), ends[:-1], ends[1:]
        inside = [_between(ends, at) for at in (kernels.called, calls.called)]
        return StepMarks("Optimizer.step", *marks, *inside)
    whole = np.array([0]), np.array([-np.inf]), np.array([np.inf])
    inside = [np.zeros(len(columns), dtype=np.int64) for columns in (kernels, calls)]
    return StepMarks("", *whole, *inside)


def _between(bounds: Floats, at: Floats) -> Ints:
    """In which of the intervals between bounds each instant lies; -1 for none."""
    place = np.searchsorted(bounds, at, side="right") - 1
    return np.where(place < len(bounds) - 1, place, -1)


@dataclass(frozen=True, eq=False)
class RankTimeline:
    """A rank's steps."""

    trace: RankTrace  # the rank's
    rank: int  # its number; its place among the traces where it is not known
    marks: StepMarks  # marks of its steps
    host: Floats  # time between the host's marks [s]; `(num_steps,)`
    # begin, end: on the device [s]; `(num_steps,)`
    begin: Floats
    end: Floats
    counted: Bools  # whether the time between the marks is a step's; `(num_steps,)`

    @property
    def number(self) -> Ints:
        """Numbers of the steps, as the trace counts them."""
        return self.marks.number

    @property
    def num_steps(self) -> int:
        """Number of steps; 1 for the whole trace."""
        return len(self.marks.number)

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


def timeline(trace: RankTrace, place: int = 0) -> RankTimeline:
    """Find the steps of a rank.

    Parameters
    ----------
    trace : RankTrace
        The rank's.
    place : int
        Its place among the traces.
    """
    kernels, marks = trace.kernels, step_marks(trace)
    ran, step = kernels.kind != SYNC, marks.kernel
    start, end = (marks.start, marks.end) if marks.mark else _extent(trace)
    last_end = np.full(len(start), -np.inf)
    inside = ran & (step >= 0)
    np.maximum.at(last_end, step[inside], kernels.end[inside])
    last_end = np.where(np.isfinite(last_end), last_end, np.nan)
    first_start = _earliest(kernels.start[ran & (step == 0)])
    until = np.maximum.accumulate(np.fmax(end, last_end))
    begin = np.concatenate([[np.fmin(start[0], first_start)], until[:-1]])
    before = _latest(kernels.end[ran & (kernels.called < start[0])])
    first = first_start if np.isnan(before) else max(before, start[0])
    on_device = last_end - np.concatenate([[first], last_end[:-1]])
    host = end - start
    ahead = host < FILLING * on_device
    counted = ~_filling(ahead, last_end - end) if marks.mark else np.ones(1, dtype=bool)
    rank = place if trace.rank is None else trace.rank
    return RankTimeline(trace, rank, marks, host, begin, until, counted)


def _filling(ahead: Bools, lag: Floats) -> Bools:
    """The first steps, as long as the host runs ahead of a device that never catches up again."""
    least = np.fmin.accumulate(lag[::-1])[::-1]
    return np.logical_and.accumulate(ahead & (least >= FILLING * lag))


def _extent(trace: RankTrace) -> tuple[Floats, Floats]:
    """First and last instant of the device; of the host without a device event [s]."""
    ran = trace.kernels.kind != SYNC
    some = trace.kernels if ran.any() else trace.host
    start, end = (some.start[ran], some.end[ran]) if ran.any() else (some.start, some.end)
    ends = (start.min(), end.max()) if len(start) else (0.0, 0.0)
    return np.array(ends[:1]), np.array(ends[1:])


def _latest(values: Floats) -> float:
    return float(values.max()) if len(values) else np.nan


def _earliest(values: Floats) -> float:
    return float(values.min()) if len(values) else np.nan
