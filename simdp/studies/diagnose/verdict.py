"""Ranks the causes of a step's time, the main one first, with evidence and remedies.

One principle ranks the causes: what a step would save if the cause were gone, as a share of the
step. It is read on the rank that waits longest for the others in that step: what they cost is in
its waits, and what remains is its own. Each of its instants goes to one cause only (see
`simdp.studies.diagnose.charges`):

- the host is late: `launch_bound`; it waits for the device in a copy or in a synchronisation:
  `host_synchronisation`; it is late with data, or only a copy from it runs: `input_stall`;
- copies within a device, casts and changes of a layout are `copies`;
- what a few steps take longer than all others is `uneven_steps`
  (`simdp.studies.diagnose.critical`);
- transfers in the open: as much as they take longer than they should is a `slow_link` (were links
  as they should be, first what is in the open would go), what `unused_parameters` or
  `many_small_collectives` cost is theirs, the rest `exposed_communication`;
- waiting in the open goes to what made the last rank late: its data, `input_stall` there; slow
  transfers with others, `slow_link`; else, of ranks that are late in other steps too, `straggler`,
  and of others `imbalance`, as `simdp.studies.diagnose.charges.lateness` tells them apart; a rank
  that has more work than the others in every step is `imbalance`, too;
- compute is what the step is for. `compute_bound` comes first only where no other cause is worth
  `WORTH` of the step, or `WORTH_MORE` of one that mostly computes;
- what is left is `unexplained`, so that all causes add up to the step.

Ranks that call different collectives never finish a step: `desynchronised` comes before all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from simdp.arrays import Bools, Floats, Ints
from simdp.errors import ScenarioError
from simdp.results.diagnosis import Cause, Finding, Remedy
from simdp.studies.diagnose.case import Case
from simdp.studies.diagnose.charges import is_steady
from simdp.studies.diagnose.critical import CriticalSteps
from simdp.studies.diagnose.evidence import Evidence
from simdp.studies.diagnose.exposed import avoidable
from simdp.studies.diagnose.host import num_reads
from simdp.studies.replay.remedies import remedies
from simdp.studies.replay.scenario import replay_of
from simdp.traces import ANNOTATION, RankTrace
from simdp.traces.timeline import RankTimeline

# Causes -------------------------------------------------------------------------------------------

WORTH = 0.07  # share of a step below which causes leave it bound by its compute

MOSTLY_COMPUTE, WORTH_MORE = 0.8, 0.1
"""Share of compute from which a step is bound by it unless a cause is worth more."""

COPIES_WORTH = 0.2
"""The same for copies, which a device is busy with, too; they come behind others of this worth."""

MENTIONED = 1e-3  # causes of less than this part of a step are left to the unexplained time
UNEXPLAINED = 1e-3  # unexplained time of less than this part of a step is not listed

PROFILED = 3.8e-6
"""Time that the profiler takes from the host for each event that it records there [s].

Three eager jobs on an H200 with a Xeon host, with shapes: steps took 3.6 to 4.1 us more per event
than without the profiler (``records/h200-1gpu``).
"""

OF_EVERY_EVENT: tuple[Cause, ...] = (
    "launch_bound",
    "compute_bound",
    "copies",
    "host_synchronisation",
)
"""Causes that a sample of the events is no evidence of."""

WAITS: tuple[Cause, ...] = ("straggler", "imbalance")
"""Waiting for late ranks; the larger is worth what both are."""

MANY_READS = 50
"""Values read in a step, from which on these are the main cause in a trace without a device.

Such a trace does not show what they cost: on a device each waits for all kernels before it.
"""

OF_RANKS: tuple[Cause, ...] = ("straggler", "imbalance", "input_stall", "uneven_steps")
MOST_OF_RANKS = 0.5  # causes that come before these reads if they take half of the step

BEFORE_EXPOSED: tuple[Cause, ...] = ("slow_link", "unused_parameters", "many_small_collectives")
"""Put before exposed communication, since repair comes before overlap."""


def findings(case: Case, critical: CriticalSteps, lacks_events: bool) -> list[Finding]:
    """Rank the causes of a step's time.

    Parameters
    ----------
    case : Case
        The job's traces.
    critical : CriticalSteps
        Its steps.
    lacks_events : bool
        Whether the traces are samples, in which an idle device is no evidence.
    """
    if critical.window <= 0:
        return []
    evidence = Evidence(case, critical, profiled(case, critical))
    spent, made = 0.0, list[Finding]()
    for cause, seconds, ranks, text in _causes(case, critical, evidence):
        if seconds < MENTIONED * critical.window or (lacks_events and cause in OF_EVERY_EVENT):
            continue
        spent += seconds
        made.append(_finding(cause, seconds, ranks, text, case, critical.window))
    made.sort(key=lambda finding: -finding.worth)
    rest = critical.window - spent
    unknown = list[Finding]()
    if rest >= UNEXPLAINED * critical.window and (made or not lacks_events):
        text = evidence.unexplained(rest, critical.mean.other, lacks_events)
        unknown = [_finding("unexplained", rest, (), text, case, critical.window)]
    if not lacks_events:
        made = sorted([*made, *unknown], key=lambda finding: -finding.worth)
        unknown = []
    made = _compute_before_minor_causes(made, evidence.profiled, critical.window)
    made = _repairs_first(made)
    if num_reads(case.lines[int(np.bincount(critical.rank).argmax())]) >= MANY_READS:
        made = _reads_first(made)
    return [*made, *unknown]


def profiled(case: Case, critical: CriticalSteps) -> float:
    """Time of a step that the profiler takes from its host, at most; mean of a step [s]."""
    line = case.lines[int(np.bincount(critical.rank).argmax())]
    trace = line.trace
    if trace.source != "kineto" or trace.on_host or not len(trace.steps):
        return 0.0
    number = int(((trace.host.step >= 0) & (trace.host.kind != ANNOTATION)).sum())
    return PROFILED * number / line.num_steps


def _finding(
    cause: Cause, seconds: float, ranks: tuple[int, ...], text: str, case: Case, window: float
) -> Finding:
    step = seconds if case.has_steps else None
    return Finding(cause, min(seconds / window, 1.0), text, ranks, step)


def _compute_before_minor_causes(
    made: list[Finding], profiled: float, window: float
) -> list[Finding]:
    """Lead with compute unless another cause is worth more.

    Late launches are not, if the profiler causes them.
    """
    compute = [finding for finding in made if finding.cause == "compute_bound"]
    share = sum(finding.worth for finding in compute)

    def is_worth(finding: Finding) -> bool:
        least = WORTH_MORE if share >= MOSTLY_COMPUTE else WORTH
        if finding.cause == "copies":
            least = COPIES_WORTH
        if finding.cause == "launch_bound" and share > finding.worth:
            return finding.worth * window - profiled >= least * (window - profiled)
        if finding.cause in WAITS and finding == max(waits, key=lambda finding: finding.worth):
            return sum(other.worth for other in waits) >= least
        return finding.worth >= least

    waits = [finding for finding in made if finding.cause in WAITS]
    others = [finding for finding in made if finding.cause != "compute_bound"]
    worth = sorted(filter(is_worth, others), key=lambda finding: finding.cause == "copies")
    return [*worth, *compute, *(finding for finding in others if finding not in worth)]


def _repairs_first(made: list[Finding]) -> list[Finding]:
    """Put what can be repaired before exposed communication."""
    causes = [finding.cause for finding in made]
    if "exposed_communication" not in causes:
        return made
    exposed = causes.index("exposed_communication")
    first = [
        finding
        for finding in made[exposed:]
        if finding.cause in BEFORE_EXPOSED and finding.worth >= WORTH
    ]
    rest = [finding for finding in made[exposed:] if finding not in first]
    return [*made[:exposed], *first, *rest]


def _reads_first(made: list[Finding]) -> list[Finding]:
    """Lead with many values that a host without a device reads, unless ranks lose much time."""
    waits = [
        finding for finding in made if finding.cause in OF_RANKS and finding.worth >= MOST_OF_RANKS
    ]
    reads = [finding for finding in made if finding.cause == "host_synchronisation"]
    rest = (finding for finding in made if finding not in waits and finding not in reads)
    return [*waits, *reads, *rest]


CauseTime = tuple[Cause, float, tuple[int, ...], str]
"""A cause, its time in a step [s], its ranks, and the evidence."""


def _causes(case: Case, critical: CriticalSteps, evidence: Evidence) -> Iterator[CauseTime]:
    mean = critical.mean
    yield "compute_bound", mean.compute, (), evidence.compute(mean.compute)
    yield "copies", mean.copies, (), evidence.copies(mean.copies)
    launch = mean.launch + mean.compile
    yield "launch_bound", launch, (), evidence.launch(launch, mean.compile)
    yield "host_synchronisation", mean.sync, (), evidence.synchronisation(mean.sync)
    yield "uneven_steps", critical.uneven_s, *evidence.uneven()
    fetched = _late_by(case, critical, case.charge("input"))
    sent = np.minimum(
        _late_by(case, critical, case.excess), _waited(case, critical) - fetched
    ).clip(0.0)
    late = float(fetched.sum() + sent.sum())
    left = min(1.0, max(mean.wait - critical.unknown, 0.0) / late) if late > 0 else 1.0
    fetched, sent = fetched * left, sent * left
    yield from _transfers(case, critical, evidence, sent)
    own = mean.input
    places = () if own >= fetched.sum() else _ranks(case, np.flatnonzero(fetched > 0))
    seconds = own + float(fetched.sum())
    yield "input_stall", seconds, places, evidence.input(own, fetched)
    yield from _waits(case, critical, evidence, fetched + sent)


def _transfers(
    case: Case, critical: CriticalSteps, evidence: Evidence, sent: Floats
) -> Iterator[CauseTime]:
    open_, search = critical.mean.transfer, critical.mean.search
    avoided = avoidable(case, int(np.bincount(critical.rank).argmax()))
    unused, small = avoided.unused * open_, avoided.small * open_
    yield "unused_parameters", search + unused, (), evidence.unused(search, unused, avoided)
    yield "many_small_collectives", small, (), evidence.small(small, avoided)
    open_ -= unused + small
    excess = case.excess[np.arange(len(critical.rank)), critical.rank]
    own, late = min(float(excess.mean()), open_), float(sent.sum())
    if unused + small > open_:  # what is left is not what is slow
        own = 0.0
    ranks, text = evidence.slow(own + late)
    yield "slow_link", own + late, ranks, text
    yield "exposed_communication", open_ - own, (), evidence.exposed(open_ - own)


def _waited(case: Case, critical: CriticalSteps) -> Floats:
    """Time that the critical rank waits for each rank, mean of a step [s]; `(num_ranks,)`."""
    waited: Floats = case.blamed[np.arange(len(critical.rank)), critical.rank, :-1].mean(axis=0)
    return waited


def _late_by(case: Case, critical: CriticalSteps, spent: Floats) -> Floats:
    """Time that the critical rank waits for each rank, for its longer time of one kind.

    Parameters
    ----------
    spent : ndarray, shape `(num_steps, num_ranks)`
        Time of that kind [s].

    Returns
    -------
    ndarray, shape `(num_ranks,)`
        In the mean of a step [s].
    """
    num_ranks = spent.shape[1]
    if num_ranks < 2:
        return np.zeros(num_ranks)
    others = [np.median(np.delete(spent, place, axis=1), axis=1) for place in range(num_ranks)]
    more = np.maximum(spent - np.stack(others, axis=1), 0.0)
    waited = case.blamed[np.arange(len(critical.rank)), critical.rank, :-1]
    late: Floats = np.minimum(more, waited).mean(axis=0)
    return late


def _waits(
    case: Case, critical: CriticalSteps, evidence: Evidence, explained: Floats
) -> Iterator[CauseTime]:
    """Stragglers and imbalance, less the explained time; and ranks without a trace."""
    late = critical.late
    known = critical.mean.wait - critical.unknown
    spent = late.straggling + late.moving
    lost = max(known - float(explained.sum()), 0.0)
    is_late: Bools = np.isin(np.arange(len(explained)), late.stragglers)
    share = late.straggling / spent if spent > 0 else 0.0
    stuck = float(np.clip(share * known - explained[is_late].sum(), 0.0, lost))
    ranks = _ranks(case, np.array(late.stragglers, dtype=np.int64))
    blamed = case.blamed[np.arange(len(critical.rank)), critical.rank, -1].tolist()
    steady = critical.unknown > lost and is_steady(blamed)
    uneven = uneven_work(case, late.stragglers)
    if uneven is not None and not steady:
        moving = lost + critical.unknown
        yield "imbalance", moving, ranks, evidence.uneven_work(late, stuck, lost, uneven)
        return
    if steady:
        words = evidence.unknown(critical.unknown, steady)
        yield "straggler", stuck + critical.unknown, ranks, words
    else:
        yield "straggler", stuck, ranks, evidence.straggler(late, stuck)
    turns = _ranks(case, np.array(late.others, dtype=np.int64))
    moving = lost - stuck
    if steady or moving >= critical.unknown:
        yield "imbalance", moving, turns, evidence.imbalance(late, moving)
    else:
        both = moving + critical.unknown
        yield "imbalance", both, turns, evidence.unknown(critical.unknown, steady)


BATCHES = ("aten::linear", "aten::conv", "aten::embedding")
"""Operators whose inputs have as many elements as a batch does."""

MORE_WORK = 1.15
"""A rank has more work than the others if its inputs have so many times the elements."""


def uneven_work(case: Case, places: Sequence[int]) -> tuple[float, float] | None:
    """Elements of inputs of a step, of ranks with more of them, and of the others.

    None where the ranks have no more than the others, or where traces have no shapes.
    """
    batches = [batch_elements(line) for line in case.lines]
    late = [size for place, size in enumerate(batches) if place in places]
    others = [size for place, size in enumerate(batches) if place not in places]
    if not late or not others:
        return None
    mine, usual = min(late), float(np.median(others))
    return (mine, usual) if usual > 0 and mine >= MORE_WORK * usual else None


def batch_elements(line: RankTimeline) -> float:
    """Elements that go into layers in a step; 0 if the trace has no shapes."""
    host = line.trace.host
    at = host.named(*BATCHES) & (host.elements >= 0)
    if len(line.trace.steps):
        at &= host.step >= 0
    return float(host.elements[at].sum()) / line.num_steps


def _ranks(case: Case, places: Ints) -> tuple[int, ...]:
    return tuple(sorted(case.lines[place].rank for place in places.tolist()))


# Remedies -----------------------------------------------------------------------------------------

MOST_CAUSES = 2  # number of causes with simulated remedies: each replays the job a few times


def _no_more_than_the_cause(
    those: Sequence[Remedy], share: float, base: float
) -> tuple[Remedy, ...]:
    """Remedies that save no more than the cause that they are against costs.

    What a change saves beyond that, such as launches for the same samples, is another cause's.
    """
    least = (1 - share) * base
    return tuple(replace(remedy, step_time_s=max(remedy.step_time_s, least)) for remedy in those)


class WithRemedies(NamedTuple):
    """Findings with remedies."""

    verdict: tuple[Finding, ...]  # in their order
    replayed_s: float | None  # step of the replay without a remedy; None if none was simulated [s]
    remarks: tuple[str, ...]  # reasons for which none was simulated


def with_remedies(
    verdict: Sequence[Finding], traces: Sequence[RankTrace], machine: str | None
) -> WithRemedies:
    """Add remedies to the main causes.

    Parameters
    ----------
    verdict : sequence of Finding
        The main cause first.
    traces, machine
        As for `simdp.studies.diagnose.diagnose`.

    Returns
    -------
    WithRemedies
        With the same findings.
    """
    findings = list(verdict)
    worth = [place for place, finding in enumerate(findings) if finding.worth >= WORTH]
    listed: dict[int, tuple[Remedy, ...]] = {}
    base: float | None = None
    try:
        for place in worth[:MOST_CAUSES]:
            listed[place] = tuple(remedies(traces, findings[place].cause, machine))
        if any(listed.values()):
            played = replay_of(traces, machine=machine).simulate()
            base = float(played.metrics.step_time_s)
    except ScenarioError as error:
        why = f"No remedies were simulated: {error.problems[0]}"
        return WithRemedies(tuple(findings), None, (why,))
    for place, those in listed.items():
        limited = _no_more_than_the_cause(those, findings[place].worth, base or 0.0)
        findings[place] = replace(findings[place], remedies=limited)
    return WithRemedies(tuple(findings), base, ())
