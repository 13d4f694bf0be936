"""Selects a typical step, and measures how ranks differ from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from simdp.arrays import Floats, Ints
from simdp.scenario.overrides import Raw
from simdp.studies.replay.timeline import (
    BACKWARD,
    FORWARD,
    UNIT_COPIES,
    UPDATE,
    StepCollective,
    StepWork,
)
from simdp.traces import RankTrace
from simdp.traces.matching import match
from simdp.traces.timeline import OPTIMIZER, RankTimeline

# Typical step -------------------------------------------------------------------------------------

LEAST_SLOW = 0.03  # relative excess of work from which a rank is a straggler
LEAST_LATE = 0.01  # fraction of a step that a late rank's host loses before it, at least


class RankWork(NamedTuple):
    """Mean times of one rank's steps [s]: its work, and the host's time before it begins."""

    work: float
    lead: float


@dataclass(frozen=True, eq=False)
class Typical:
    """A step that stands for all."""

    step: StepWork  # kernel by kernel, means over the steps that have the same kernels
    step_time: float  # mean over steps and ranks [s]
    num_steps: int  # of all ranks together
    lead: float  # host's time before the first kernel, without its input [s]
    stalled: float  # time that the device waits for input [s]
    slow: dict[int, float]  # ranks with longer work than the others, and the factor
    late: dict[int, float]  # ranks whose host loses time before each step, and this time [s]


def typical(steps: Mapping[int, Sequence[StepWork]]) -> Typical:
    """Make a typical step of all steps.

    Parameters
    ----------
    steps : mapping of int to sequence of StepWork
        Of each rank.
    """
    works = {rank: _work_of(mine) for rank, mine in steps.items()}
    middle = float(np.median([step.work for step in works.values()]))
    normal = [r for r, step in works.items() if step.work <= (1 + LEAST_SLOW) * middle] or [*works]
    base = float(np.mean([works[rank].work for rank in normal]))
    lead = float(np.median([works[rank].lead for rank in works]))
    all_steps = [step for mine in steps.values() for step in mine]
    step_time = float(np.mean([step.end - step.begin for step in all_steps]))
    slow = {r: step.work / base for r, step in works.items() if step.work > (1 + LEAST_SLOW) * base}
    late = {
        r: step.lead - lead
        for r, step in works.items()
        if step.lead - lead > LEAST_LATE * step_time
    }
    chosen = [step for rank in normal for step in steps[rank]]
    return Typical(
        step=_mean(chosen, base, all_steps),
        step_time=step_time,
        num_steps=len(all_steps),
        lead=lead,
        stalled=float(np.mean([step.stalled for step in all_steps])),
        slow=slow if len(works) > 1 else {},
        late=late if len(works) > 1 else {},
    )


def _work_of(steps: Sequence[StepWork]) -> RankWork:
    leads = [float(step.idle[0]) for step in steps]
    work = [float((step.busy + step.idle).sum()) - float(step.idle[0]) for step in steps]
    return RankWork(float(np.mean(work)), float(np.mean(leads)))


def _mean(steps: Sequence[StepWork], work: float, all_steps: Sequence[StepWork]) -> StepWork:
    """Mean of the steps with the most common kernels, scaled to the work of all."""
    names, _ = Counter(step.names for step in steps).most_common(1)[0]
    equal = [step for step in steps if step.names == names]
    if len(equal) == 1 and len(steps) > 1:
        equal = [sorted(steps, key=lambda step: step.end - step.begin)[len(steps) // 2]]
    busy = np.mean([step.busy for step in equal], axis=0)
    idle = np.mean([step.idle for step in equal], axis=0)
    waits = np.mean([step.waits for step in equal], axis=0)
    total = float((busy + idle).sum() - idle[0])
    factor = work / total if total else 1.0
    first = equal[0]
    sent = _shortest(equal, all_steps)
    return replace(first, busy=busy * factor, idle=idle * factor, waits=waits, sent=sent)


def _shortest(
    equal: Sequence[StepWork], all_steps: Sequence[StepWork]
) -> tuple[StepCollective, ...]:
    """The collectives of the first step, each as long as the shortest of its likes on any rank."""
    first = equal[0].sent
    named = [sent.name for sent in first]
    same = [step.sent for step in equal if len(step.sent) == len(first)]
    others = [step.sent for step in all_steps if [sent.name for sent in step.sent] == named]
    return tuple(
        replace(
            sent,
            seconds=min(step[i].seconds for step in [*same, *others]),
            after=int(np.median([step[i].after for step in same])),
        )
        for i, sent in enumerate(first)
    )


def micro_steps(step: StepWork, least: float = 0.02) -> list[Ints]:
    """Cut a step's kernels where a further forward begins.

    Parameters
    ----------
    step : StepWork
        Kernel by kernel.
    least : float
        Part of the step that a forward takes at least; what is shorter lies within backward.

    Returns
    -------
    list of ndarray
        Indices of each micro-step's kernels, without those of the update.
    """
    at = np.flatnonzero((step.phase == FORWARD) | (step.phase == BACKWARD))
    took = step.busy + step.idle
    whole = took[at].sum()
    cuts = np.flatnonzero(np.diff(step.phase[at])) + 1
    micros, current, seen_back = list[Ints](), list[int](), False
    for run in np.split(at, cuts):
        is_forward = bool(len(run)) and step.phase[run[0]] == FORWARD
        if is_forward and seen_back and took[run].sum() > least * whole:
            micros.append(np.array(current))
            current, seen_back = [], False
        current += run.tolist()
        seen_back |= not is_forward
    return [*micros, np.array(current, dtype=np.int64)]


class Critical(NamedTuple):
    """A typical step whose phases are those of the ranks that all others wait for."""

    typical: Typical  # without slow ranks, since it contains their times
    ranks: tuple[int, ...]  # of forward, backward and the update


def critical(
    usual: Typical, steps: Mapping[int, Sequence[StepWork]], late: Mapping[int, float]
) -> Critical:
    """Let the slowest rank of each phase stand for all.

    If ranks synchronise within a step, at collectives that are not replayed, one rank's forward and
    another one's backward make the step long. The rank that ends forward last is forward's.

    Parameters
    ----------
    usual : Typical
        Of all ranks.
    steps : mapping of int to sequence of StepWork
        Of each rank.
    late : mapping of int to float
        When ranks begin after the first [s].
    """
    phases = {
        rank: np.mean([_by_phase(work) for work in mine], axis=0) for rank, mine in steps.items()
    }
    leads = {rank: float(np.mean([work.idle[0] for work in mine])) for rank, mine in steps.items()}
    first = max(phases, key=lambda rank: late.get(rank, 0.0) + leads[rank] + phases[rank][FORWARD])
    ranks = (
        first,
        *(max(phases, key=lambda rank: phases[rank][phase]) for phase in (BACKWARD, UPDATE)),
    )
    own = _by_phase(usual.step)
    busy, idle = usual.step.busy.copy(), usual.step.idle.copy()
    for phase, rank in enumerate(ranks):
        at = usual.step.phase == phase
        factor = phases[rank][phase] / own[phase] if own[phase] else 1.0
        busy[at], idle[at] = busy[at] * factor, idle[at] * factor
    step = replace(usual.step, busy=busy, idle=idle)
    stalled = float(np.mean([work.stalled for work in steps[first]]))
    return Critical(replace(usual, step=step, slow={}, lead=leads[first], stalled=stalled), ranks)


def _by_phase(step: StepWork) -> Floats:
    """Time of each phase without what it waited for, and without the host's before the step [s]."""
    took = step.busy + step.idle
    took[0] = step.busy[0]
    return np.bincount(step.phase, took, minlength=3).astype(float)


# One step of each rank ----------------------------------------------------------------------------

LEAST_SKEW = 0.01
"""Ranks that begin a step by a smaller fraction of it after the first begin with it."""


def start_skew(
    lines: Sequence[RankTimeline], works: Sequence[StepWork]
) -> tuple[dict[int, float], float]:
    """Find the ranks that begin their only step late, and its time for all ranks together.

    Parameters
    ----------
    lines : sequence of RankTimeline
        One per rank.
    works : sequence of StepWork
        Its only step.

    Returns
    -------
    (dict of int to float, float)
        Ranks that begin after the first one, and by how much; from the first begin to the last end
        [s]. If ranks do not call the same collectives, the mean of their own steps.
    """
    names = [[sent.name for sent in work.sent] for work in works]
    matches = match(lines)
    shared = {place for work in matches.collectives for place in work.ranks.tolist()}
    if any(step_names != names[0] for step_names in names) or len(shared) < len(lines):
        return {}, float(np.mean([work.end - work.begin for work in works]))
    begin = np.array([work.begin for work in works]) - matches.offset
    end = np.array([work.end for work in works]) - matches.offset
    whole = float(end.max() - begin.min())
    late = (begin - begin.min()).tolist()
    skew = {line.rank: by for line, by in zip(lines, late, strict=True) if by > LEAST_SKEW * whole}
    return skew, whole


# Without what the scenario charges ----------------------------------------------------------------

STATELESS = {"kind": "sgd", "lr": 0.1}

OPTIMIZERS = {"adam": "adam", "adamw": "adamw", "adagrad": "adagrad", "sgd": "sgd"}
"""Of those that annotations name, what a scenario calls them; sgd for all others."""


def optimizer_of(trace: RankTrace) -> Raw | str:
    """The optimizer, by the annotation of its step."""
    for name in trace.host.names:
        if name.startswith(OPTIMIZER):
            kind = name.removeprefix(OPTIMIZER).split(".")[0].lower()
            return {"kind": OPTIMIZERS.get(kind, "sgd"), "lr": 0.1}
    return dict(STATELESS)


READY = "torch::autograd::AccumulateGrad"


def ready_times(trace: RankTrace, step: StepWork) -> list[float]:
    """Instants at which gradients of a step are ready on the host, on the trace's clock [s]."""
    host = trace.host
    if READY not in host.names or not len(step.launched):
        return []
    code = host.names.index(READY)
    at = host.start[(host.name == code)]
    low, high = step.launched.min(), step.launched.max()
    return [float(instant) for instant in at[(at >= low) & (at <= high)]]


def with_foreign(step: StepWork, foreign: Sequence[StepCollective]) -> StepWork:
    """The step with collectives of no strategy as work: what kernels waited for them."""
    busy, waits = step.busy.copy(), step.waits.copy()
    for sent in foreign:
        behind = np.flatnonzero(waits[sent.after :] > 0)
        if len(behind):
            kernel = sent.after + int(behind[0])
            took = min(sent.seconds, float(waits[kernel]))
            busy[kernel] += took
            waits[kernel] -= took
    return replace(step, busy=busy, waits=waits)


def without_unit_copies(step: StepWork) -> StepWork:
    """The step without the copies of units, which the strategy charges by itself."""
    copied = np.array([any(word in name for word in UNIT_COPIES) for name in step.names])
    return replace(step, busy=np.where(copied, 0.0, step.busy))
