"""Ranks the causes of a step's time, the main one first, with evidence and remedies.

One principle ranks the causes: what a step would save if the cause were gone, as a share of the
step. It is read on the rank that waits longest for the others in that step: what they cost is in
its waits, and what remains is its own. Each of its instants goes to one cause only (see
`simdp.studies.diagnose.charges`):

- the host is late: `launch_bound`; it is late with data, or only a copy from it runs:
  `input_stall`;
- transfers in the open: as much as they take longer than they should is a `slow_link` (were links
  as they should be, first what is in the open would go), the rest `exposed_communication`;
- waiting in the open goes to what made the last rank late: its data, `input_stall` there; slow
  transfers with others, `slow_link`; else, of ranks that are late in other steps too, `straggler`,
  and of others `imbalance`, as `simdp.studies.diagnose.charges.lateness` tells them apart;
- compute is what the step is for. `compute_bound` comes first only where no other cause is worth
  `WORTH` of the step.

Ranks that call different collectives never finish a step: `desynchronised` comes before all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from simdp.arrays import Bools, Floats, Ints
from simdp.errors import ScenarioError
from simdp.reports.figures import nbytes, percent, seconds
from simdp.results.diagnosis import Cause, Finding, Remedy
from simdp.studies.diagnose.case import Case
from simdp.studies.diagnose.charges import KINDS, Lateness, is_steady, lateness
from simdp.studies.diagnose.expected import CollectiveSize
from simdp.studies.diagnose.mismatches import ranks_in_words
from simdp.studies.replay import remedies, replay_of
from simdp.traces import ANNOTATION, SYNC, RankTrace

# Evidence -----------------------------------------------------------------------------------------

ALMOST_NONE = 1e-3
"""Part of a difference below which the others have none of it."""

NOT_PHASES = ("ProfilerStep", "nccl:", "gloo:", "enumerate(")
"""Annotations that are no phases of the host's work."""


class Evidence:
    """Sentences about a job.

    Parameters
    ----------
    case : Case
        The job's traces.
    rank : ndarray, shape `(num_steps,)`, int64
        The critical rank of each step.
    window : float
        Mean length of a step there [s].
    """

    def __init__(self, case: Case, rank: Ints, window: float) -> None:
        self._case, self._rank, self._window = case, rank, window
        self._step = "a step's" if case.has_steps else "the trace's"

    def _of(self, value: float) -> str:
        """``4 ms of a step's 10 ms (40.0 %)``."""
        share = percent(value / self._window)
        return f"{seconds(value)} of {self._step} {seconds(self._window)} ({share})"

    def compute(self, value: float) -> str:
        """Time that the device computes."""
        return f"kernels that compute take {self._of(value)}."

    def launch(self, value: float) -> str:
        """Time that the device waits for the host."""
        case, place = self._case, int(np.bincount(self._rank).argmax())
        line, steps = case.lines[place], max(case.lines[place].num_steps, 1)
        kernels = line.trace.kernels
        number = int(((line.marks.kernel >= 0) & (kernels.kind != SYNC)).sum()) / steps
        if np.isnan(kernels.launched).all():
            return f"no operator runs for {self._of(value)}."
        text = f"the device has nothing to do for {self._of(value)} since its host is late"
        starved = min(case.charged[place].starved / number, 1.0) if number else 0.0
        text += f": of {number:,.0f} kernels {percent(starved)} find it idle when launched"
        phases = ", ".join(f"{name} {seconds(value)}" for name, value in self._phases(place))
        return text + (f" (host: {phases})." if phases else ".")

    def _phases(self, place: int) -> list[tuple[str, float]]:
        """The annotations that take the host longest, per step [s]."""
        line = self._case.lines[place]
        host, found = line.trace.host, dict[str, float]()
        at = np.flatnonzero(host.kind == ANNOTATION)
        for i in at.tolist():
            name = host.names[host.name[i]]
            if not name.startswith(NOT_PHASES):
                lasted = float(host.end[i] - host.start[i])
                found[name] = found.get(name, 0.0) + lasted / line.num_steps
        return sorted(found.items(), key=lambda item: -item[1])[:2]

    def exposed(self, value: float) -> str:
        """Transfers that nothing hides, without the excess of slow ones."""
        case = self._case
        hidden = float(
            np.mean([each.transferred.mean() - each.of["transfer"].mean() for each in case.charged])
        )
        text = f"transfers in the open take {self._of(value)}, {seconds(hidden)} more are hidden"
        largest = self._slowest(None)
        if largest is not None:
            size, lasted, _ = largest
            text += f"; {_named(size)} takes {seconds(lasted)}"
            if size in case.expected and case.reference.is_given:
                text += f", where {seconds(case.expected[size].usual)} is to be expected"
        return f"{text}."

    def slow(self, value: float) -> tuple[tuple[int, ...], str]:
        """Transfers that take longer than expected, and their ranks."""
        slowest = self._slowest(self._case.excess)
        if slowest is None or value <= 0:
            return (), ""
        size, lasted, expected = slowest
        world = self._case.reference.world_size
        ranks = size.ranks if len(size.ranks) < world else ()
        times = (
            f"{lasted / expected:.1f} times what it should" if expected else "longer than others"
        )
        against = f" ({seconds(expected)})" if expected else ""
        text = (
            f"transfers that are too slow cost {self._of(value)}: {_named(size)} takes "
            f"{seconds(lasted)}, {times}{against}"
        )
        return ranks, f"{text}{_between(ranks)}."

    def _slowest(self, excess: Floats | None) -> tuple[CollectiveSize, float, float | None] | None:
        """The collective that takes most of a step, or the most beyond the expected time."""
        case, lasted = self._case, dict[CollectiveSize, list[float]]()
        for calls, sizes in zip(case.calls, case.sizes, strict=True):
            for place, size in sizes.items():
                lasted.setdefault(size, []).append(calls[place].end - calls[place].middle)
        if not lasted:
            return None
        means = {size: float(np.mean(times)) for size, times in lasted.items()}
        expected = case.expected_times(means)
        if excess is None:
            size = max(means, key=lambda size: means[size] * len(lasted[size]))
        else:
            size = max(means, key=lambda size: means[size] - expected.get(size, means[size]))
        return size, means[size], expected.get(size)

    def input(self, own: float, fetched: Floats) -> str:
        """Time that the device waits for data."""
        own_words = f"the device waits for data for {self._of(own)}"
        late = float(fetched.sum())
        if not late:
            return f"{own_words}."
        place = int(fetched.argmax())
        rank, more = self._case.lines[place].rank, seconds(self._more("input", place))
        others = (
            f"ranks wait {self._of(late)} for others whose data are late: the loader and the "
            f"copies of rank {rank} take {more} longer than those of the others"
        )
        return f"{others}; {own_words}." if late > own else f"{own_words}; {others}."

    def _more(self, kind: str, place: int) -> float:
        """Time of a cause on a rank, beyond the median of the others; mean of a step [s]."""
        return float(self._case.charge(kind).mean(axis=0)[place]) - self._usual(kind, place)

    def _usual(self, kind: str, place: int) -> float:
        """Median time of a cause on the other ranks; mean of a step [s]."""
        return float(np.median(np.delete(self._case.charge(kind).mean(axis=0), place)))

    def straggler(self, late: Lateness, value: float) -> str:
        """Ranks that are late step after step, by how much, and why."""
        if not late.stragglers:
            return ""
        case, num_steps = self._case, len(late.cost)
        by = late.late[:, list(late.stragglers)]
        often = int((by.max(axis=1) >= late.cost / 2).sum())
        rank = late.stragglers[int(by.mean(axis=0).argmax())]
        numbers = self._numbers(late.stragglers)
        text = (
            f"{ranks_in_words(numbers)}{self._nodes(numbers)} come{'s' * (len(numbers) == 1)} last "
            f"to collectives in {often} of {num_steps} steps, and the rank that waits longest "
            f"waits {self._of(value)}"
        )
        text += self._before(rank, case) or self._why(rank)
        if num_steps == 1:
            text += "; one step alone does not tell a straggler from imbalance"
        return f"{text}."

    def _nodes(self, ranks: Sequence[int]) -> str:
        """Name the nodes, if these are all their ranks."""
        local_size = self._case.reference.local_size
        if local_size is None or local_size < 2:
            return ""
        nodes = sorted({rank // local_size for rank in ranks})
        if len(ranks) != local_size * len(nodes):
            return ""
        return f" (all of node{'s' * (len(nodes) > 1)} {', '.join(map(str, nodes))})"

    @property
    def _kernels(self) -> str:
        """Name of kernels: without a device, the host's operators stand for them."""
        launched = self._case.lines[0].trace.kernels.launched
        return "operators" if np.isnan(launched).all() else "kernels"

    def _why(self, place: int) -> str:
        """Cause that takes longest on the late rank, relative to the others."""
        words = {
            "compute": f"its {self._kernels} take{{}} as long as those of the others",
            "launch": "its host leaves it idle{} as long as the others",
            "input": "it waits for data{} as long as the others",
            "other": "its device rests{} as long as the others",
        }
        if len(self._case.lines) < 2:
            return ""
        more = {kind: self._more(kind, place) for kind in words}
        kind = max(more, key=lambda kind: more[kind])
        mean = float(self._case.blamed[:, :, place].sum(axis=1).mean())
        if more[kind] <= 0 or more[kind] < 0.02 * mean:
            return ""
        usual = self._usual(kind, place)
        if usual <= ALMOST_NONE * more[kind]:
            return f"; {words[kind].format('').replace(' as long as', ', unlike')}"
        return f"; {words[kind].format(f' {1 + more[kind] / usual:.3g} times')}"

    def _before(self, place: int, case: Case) -> str:
        """Lateness of a rank from before the traces."""
        begins = np.array(
            [line.begin[0] - case.found.offset[i] for i, line in enumerate(case.lines)]
        )
        behind = float(begins[place] - begins.min())
        waited = float(case.blamed[0, :, place].max())
        if len(case.numbers) > 1 or behind < waited / 2 or waited <= 0:
            return ""
        first = case.lines[int(begins.argmin())].rank
        return (
            f"; its step begins {seconds(behind)} after that of rank {first}, so that it lost this "
            "time before the trace began, and not in this step"
        )

    def imbalance(self, late: Lateness, value: float) -> str:
        """Ranks that are late by turns."""
        if not late.others:
            return ""
        last = late.late.argmax(axis=1)
        counts = {place: int((last == place).sum()) for place in late.others}
        ranks = ranks_in_words(self._numbers(late.others))
        text = f"ranks wait {self._of(value)} for others that are late by turns: {ranks}"
        if len(last) > 1:
            most = max(counts.values(), default=0)
            text += f", none of them last in more than {most} of {len(last)} steps"
        if late.doubtful:
            ranks = ranks_in_words(self._numbers(late.doubtful))
            text += f"; {ranks} may be slow, but {len(last)} steps are too few to tell"
        return f"{text}."

    def unknown(self, value: float, steady: bool) -> str:
        """Waiting for ranks without a trace, in all steps or in some."""
        if steady:
            return (
                f"collectives last {self._of(value)} longer than links explain, whatever their "
                "size, in all steps alike: a rank whose trace is not here is late; its own trace "
                "would tell which."
            )
        return (
            f"collectives last {self._of(value)} longer than the shortest of their size: ranks "
            "whose traces are not here are late, or links slow at times; these traces alone can "
            "only suggest it."
        )

    def _numbers(self, places: Sequence[int]) -> list[int]:
        return sorted(self._case.lines[place].rank for place in places)


def _named(size: CollectiveSize) -> str:
    return f"{size.name} of {nbytes(size.nbytes)} among {len(size.ranks)} ranks"


def _between(ranks: tuple[int, ...]) -> str:
    return f", between {ranks_in_words(ranks)}" if ranks else ""


# Causes -------------------------------------------------------------------------------------------

WORTH = 0.07
"""Share of a step below which causes leave it bound by its compute."""

MENTIONED = 0.01
"""Causes of less than this part of a step are not listed."""


TIE = 1e-6
"""Weight of transfers in the choice among ranks that wait equally long."""


@dataclass(frozen=True, eq=False)
class CriticalSteps:
    """The steps, each on its critical rank: the one that waits longest."""

    rank: Ints  # the critical rank; `(num_steps,)`
    window: float  # their mean length [s]
    mean: dict[str, float]  # of each kind of charge, the mean of a step [s]
    unknown: float  # part of the waiting that is for ranks without a trace [s]
    late: Lateness  # of the ranks with a trace


def critical_steps(case: Case) -> CriticalSteps:
    """Find the critical rank of each step, and the mean time of each cause there."""
    wait, blamed = case.charge("wait"), case.blamed
    rank = (wait + TIE * case.charge("transfer")).argmax(axis=1)
    steps = np.arange(len(rank))
    known = blamed[:, :, :-1]
    return CriticalSteps(
        rank,
        float(case.window[steps, rank].mean()),
        {kind: float(case.charge(kind)[steps, rank].mean()) for kind in KINDS},
        float(blamed[steps, rank, -1].mean()),
        lateness(known.sum(axis=2), known),
    )


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
    evidence = Evidence(case, critical.rank, critical.window)
    made = [
        _finding(cause, seconds, ranks, text, case, critical.window)
        for cause, seconds, ranks, text in _causes(case, critical, evidence)
        if seconds >= MENTIONED * critical.window
        and not (lacks_events and cause in ("launch_bound", "compute_bound"))
    ]
    made.sort(key=lambda one: -one.worth)
    made = _compute_before_minor_causes(made)
    return _slow_first(made)


def _finding(
    cause: Cause, seconds: float, ranks: tuple[int, ...], text: str, case: Case, window: float
) -> Finding:
    step = seconds if case.has_steps else None
    return Finding(cause, min(seconds / window, 1.0), text, ranks, step)


def _compute_before_minor_causes(made: list[Finding]) -> list[Finding]:
    worth = [one for one in made if one.cause != "compute_bound" and one.worth >= WORTH]
    compute = [one for one in made if one.cause == "compute_bound"]
    small = [one for one in made if one not in worth and one not in compute]
    return [*worth, *compute, *small]


def _slow_first(made: list[Finding]) -> list[Finding]:
    """Put slow links before exposed communication, since repair comes before overlap."""
    causes = [one.cause for one in made]
    if "slow_link" in causes and "exposed_communication" in causes:
        slow, open_ = causes.index("slow_link"), causes.index("exposed_communication")
        if open_ < slow and made[slow].worth >= WORTH:
            made.insert(open_, made.pop(slow))
    return made


CauseTime = tuple[Cause, float, tuple[int, ...], str]
"""A cause, its time in a step [s], its ranks, and the evidence."""


def _causes(case: Case, critical: CriticalSteps, evidence: Evidence) -> Iterator[CauseTime]:
    mean = critical.mean
    yield "compute_bound", mean["compute"], (), evidence.compute(mean["compute"])
    yield "launch_bound", mean["launch"], (), evidence.launch(mean["launch"])
    sent = _late_by(case, critical, case.excess)
    yield from _transfers(case, critical, evidence, sent)
    fetched = _late_by(case, critical, case.charge("input"))
    own = mean["input"]
    places = () if own >= fetched.sum() else _ranks(case, np.flatnonzero(fetched > 0))
    seconds = own + float(fetched.sum())
    yield "input_stall", seconds, places, evidence.input(own, fetched)
    yield from _waits(case, critical, evidence, fetched + sent)


def _transfers(
    case: Case, critical: CriticalSteps, evidence: Evidence, sent: Floats
) -> Iterator[CauseTime]:
    open_ = case.charge("transfer")[np.arange(len(critical.rank)), critical.rank]
    excess = np.minimum(case.excess[np.arange(len(critical.rank)), critical.rank], open_)
    own, late = float(excess.mean()), float(sent.sum())
    rest = float(open_.mean()) - own
    ranks, text = evidence.slow(own + late)
    yield "slow_link", own + late, ranks, text
    yield "exposed_communication", rest, (), evidence.exposed(rest)


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
    found: Floats = np.minimum(more, waited).mean(axis=0)
    return found


def _waits(
    case: Case, critical: CriticalSteps, evidence: Evidence, explained: Floats
) -> Iterator[CauseTime]:
    """Stragglers and imbalance, less the explained time; and ranks without a trace."""
    late = critical.late
    known = critical.mean["wait"] - critical.unknown
    spent = late.straggling + late.moving
    lost = max(known - float(explained.sum()), 0.0)
    is_late: Bools = np.isin(np.arange(len(explained)), late.stragglers)
    share = late.straggling / spent if spent > 0 else 0.0
    stuck = float(np.clip(share * known - explained[is_late].sum(), 0.0, lost))
    ranks = _ranks(case, np.array(late.stragglers, dtype=np.int64))
    blamed = case.blamed[np.arange(len(critical.rank)), critical.rank, -1].tolist()
    steady = critical.unknown > lost and is_steady(blamed)
    if steady:
        yield (
            "straggler",
            stuck + critical.unknown,
            ranks,
            evidence.unknown(critical.unknown, steady),
        )
    else:
        yield "straggler", stuck, ranks, evidence.straggler(late, stuck)
    turns = _ranks(case, np.array(late.others, dtype=np.int64))
    moving = lost - stuck
    if steady or moving >= critical.unknown:
        yield "imbalance", moving, turns, evidence.imbalance(late, moving)
    else:
        both = moving + critical.unknown
        yield "imbalance", both, turns, evidence.unknown(critical.unknown, steady)


def _ranks(case: Case, places: Ints) -> tuple[int, ...]:
    return tuple(sorted(case.lines[place].rank for place in places.tolist()))


# Remedies -----------------------------------------------------------------------------------------

MOST_CAUSES = 2
"""Number of causes with simulated remedies: each replays the job a few times."""


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
    found = list(verdict)
    worth = [place for place, one in enumerate(found) if one.worth >= WORTH]
    listed: dict[int, tuple[Remedy, ...]] = {}
    base: float | None = None
    try:
        for place in worth[:MOST_CAUSES]:
            listed[place] = tuple(remedies(traces, found[place].cause, machine))
        if any(listed.values()):
            played = replay_of(traces, machine=machine).simulate()
            base = float(played.metrics["step_time_s"])
    except ScenarioError as error:
        return WithRemedies(
            tuple(found), None, (f"No remedies were simulated: {error.problems[0]}",)
        )
    for place, those in listed.items():
        found[place] = replace(found[place], remedies=those)
    return WithRemedies(tuple(found), base, ())
