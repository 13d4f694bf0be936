"""Unions of a rank's kernels by step and over the whole trace."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simdp.results.diagnosis import StepRow
from simdp.studies.diagnose.timeline import Activity, RankTimeline, activity


def step_rows(line: RankTimeline) -> Iterator[StepRow]:
    """The figures of each step of a rank; none where the whole trace stands for one."""
    if not line.are:
        return
    order = np.argsort(line.step, kind="stable")
    bounds = np.searchsorted(line.step[order], np.arange(line.num_steps + 1))
    for place in range(line.num_steps):
        found = activity(line.trace, order[bounds[place] : bounds[place + 1]])
        lengths = lengths_of(found)
        yield StepRow(
            rank=line.rank,
            step=int(line.number[place]),
            step_time_s=float(line.time[place]),
            counted=bool(line.used[place]),
            exposed_comm_s=lengths["comm_s"] - lengths["hidden_comm_s"],
            **lengths,
        )


def lengths_of(found: Activity) -> dict[str, float]:
    """Span, and how long each kind of activity lasts, as `StepRow` names them [s]."""
    busy = found.busy
    span = float(busy.end[-1] - busy.start[0]) if len(busy.start) else 0.0
    return {
        "span_s": span,
        "busy_s": busy.length(),
        "compute_s": found.compute.length(),
        "comm_s": found.communication.length(),
        "hidden_comm_s": found.communication.both(found.compute).length(),
        "copy_s": found.other.without(found.compute).without(found.communication).length(),
    }


def mean(values: list[float]) -> float:
    """Their mean; 0 of none."""
    return float(np.mean(values)) if values else 0.0
