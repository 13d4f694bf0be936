"""Ranks the causes of a step's time, the main one first.

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
  and of others `imbalance`, as `simdp.studies.diagnose.lateness` tells them apart;
- compute is what the step is for. `compute_bound` comes first only where no other cause is worth
  `WORTH` of the step.

Ranks that call different collectives never finish a step: `desynchronised` comes before all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from simdp.arrays import Bools, Floats, Ints
from simdp.results.diagnosis import Cause, Finding
from simdp.studies.diagnose.case import Case
from simdp.studies.diagnose.charges import KINDS
from simdp.studies.diagnose.evidence import Evidence
from simdp.studies.diagnose.lateness import Lateness, lateness
from simdp.studies.diagnose.peers import is_steady

WORTH = 0.07
"""A cause that a step owes less to does not keep it from being bound by its compute."""

MENTIONED = 0.01
"""Causes of less than this part of a step are not listed."""


TIE = 1e-6
"""Of ranks that wait equally long, the one is read whose transfers take longest."""


@dataclass(frozen=True, eq=False)
class Reading:
    """The steps, each on the rank that waits longest in it.

    Attributes
    ----------
    rank : ndarray, shape `(num_steps,)`, int64
        Which.
    window : float
        Their mean length [s].
    mean : dict of str to float
        Of each kind of charge, the mean of a step [s].
    unknown : float
        Of its waiting, that for ranks without a trace [s].
    late : Lateness
        Of the ranks that have one.
    """

    rank: Ints
    window: float
    mean: dict[str, float]
    unknown: float
    late: Lateness


def reading(case: Case) -> Reading:
    """Read the steps of a job."""
    wait, blamed = case.charge("wait"), case.blamed
    rank = (wait + TIE * case.charge("transfer")).argmax(axis=1)
    steps = np.arange(len(rank))
    known = blamed[:, :, :-1]
    return Reading(
        rank,
        float(case.window[steps, rank].mean()),
        {kind: float(case.charge(kind)[steps, rank].mean()) for kind in KINDS},
        float(blamed[steps, rank, -1].mean()),
        lateness(known.sum(axis=2), known),
    )


def findings(case: Case, read: Reading, lacks_events: bool) -> list[Finding]:
    """Say what a step owes its length to.

    Parameters
    ----------
    case : Case
        What was found out.
    read : Reading
        Its steps.
    lacks_events : bool
        Whether the traces are samples; what a device did not do is then not known.
    """
    if read.window <= 0:
        return []
    evidence = Evidence(case, read.rank, read.window)
    made = [
        _finding(cause, seconds, ranks, said, case, read.window)
        for cause, seconds, ranks, said in _causes(case, read, evidence)
        if seconds >= MENTIONED * read.window
        and not (lacks_events and cause in ("launch_bound", "compute_bound"))
    ]
    made.sort(key=lambda one: -one.share)
    made = _compute_where_it_belongs(made)
    return _slow_first(made)


def _finding(
    cause: Cause, seconds: float, ranks: tuple[int, ...], said: str, case: Case, window: float
) -> Finding:
    step = seconds if case.has_steps else None
    return Finding(cause, min(seconds / window, 1.0), said, ranks, step)


def _compute_where_it_belongs(made: list[Finding]) -> list[Finding]:
    worth = [one for one in made if one.cause != "compute_bound" and one.share >= WORTH]
    compute = [one for one in made if one.cause == "compute_bound"]
    small = [one for one in made if one not in worth and one not in compute]
    return [*worth, *compute, *small]


def _slow_first(made: list[Finding]) -> list[Finding]:
    """What is in the open since links are slow is repaired before it is hidden."""
    causes = [one.cause for one in made]
    if "slow_link" in causes and "exposed_communication" in causes:
        slow, open_ = causes.index("slow_link"), causes.index("exposed_communication")
        if open_ < slow and made[slow].share >= WORTH:
            made.insert(open_, made.pop(slow))
    return made


Told = tuple[Cause, float, tuple[int, ...], str]
"""A cause, its seconds, its ranks, and the evidence."""


def _causes(case: Case, read: Reading, evidence: Evidence) -> Iterator[Told]:
    mean = read.mean
    yield "compute_bound", mean["compute"], (), evidence.compute(mean["compute"])
    yield "launch_bound", mean["launch"], (), evidence.launch(mean["launch"])
    sent = _late_by(case, read, case.excess)
    yield from _transfers(case, read, evidence, sent)
    fetched = _late_by(case, read, case.charge("input"))
    own = mean["input"]
    places = () if own >= fetched.sum() else _ranks(case, np.flatnonzero(fetched > 0))
    seconds = own + float(fetched.sum())
    yield "input_stall", seconds, places, evidence.input(own, fetched)
    yield from _waits(case, read, evidence, fetched + sent)


def _transfers(case: Case, read: Reading, evidence: Evidence, sent: Floats) -> Iterator[Told]:
    open_ = case.charge("transfer")[np.arange(len(read.rank)), read.rank]
    excess = np.minimum(case.excess[np.arange(len(read.rank)), read.rank], open_)
    own, late = float(excess.mean()), float(sent.sum())
    rest = float(open_.mean()) - own
    ranks, said = evidence.slow(own + late)
    yield "slow_link", own + late, ranks, said
    yield "exposed_communication", rest, (), evidence.exposed(rest)


def _late_by(case: Case, read: Reading, spent: Floats) -> Floats:
    """What each rank made the reading rank wait by spending more on something than others do.

    Parameters
    ----------
    spent : ndarray, shape `(num_steps, num_ranks)`
        On it [s].

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
    waited = case.blamed[np.arange(len(read.rank)), read.rank, :-1]
    found: Floats = np.minimum(more, waited).mean(axis=0)
    return found


def _waits(case: Case, read: Reading, evidence: Evidence, told: Floats) -> Iterator[Told]:
    """Stragglers and imbalance, less what was told already; and ranks without a trace."""
    late = read.late
    known = read.mean["wait"] - read.unknown
    spent = late.straggling + late.moving
    lost = max(known - float(told.sum()), 0.0)
    is_late: Bools = np.isin(np.arange(len(told)), late.stragglers)
    share = late.straggling / spent if spent > 0 else 0.0
    stuck = float(np.clip(share * known - told[is_late].sum(), 0.0, lost))
    ranks = _ranks(case, np.array(late.stragglers, dtype=np.int64))
    blamed = case.blamed[np.arange(len(read.rank)), read.rank, -1].tolist()
    steady = read.unknown > lost and is_steady(blamed)
    if steady:
        yield "straggler", stuck + read.unknown, ranks, evidence.unknown(read.unknown, steady)
    else:
        yield "straggler", stuck, ranks, evidence.straggler(late, stuck)
    turns = _ranks(case, np.array(late.others, dtype=np.int64))
    moving = lost - stuck
    if steady or moving >= read.unknown:
        yield "imbalance", moving, turns, evidence.imbalance(late, moving)
    else:
        both = moving + read.unknown
        yield "imbalance", both, turns, evidence.unknown(read.unknown, steady)


def _ranks(case: Case, places: Ints) -> tuple[int, ...]:
    return tuple(sorted(case.lines[place].rank for place in places.tolist()))
