"""Charges each instant of a rank's step to exactly one cause.

In this order: compute; transfers in the open; waiting in the open, for the rank that came last; a
copy from the host in the open; and where the device has nothing to do, what kept the next kernel
from it: the host, which had not launched it yet, either since it fetched data (`input`) or since it
was at other work (`launch`); or nothing that the trace shows (`other`).

A collective's kernel lasts from when its rank comes to when all are done. What it lasts on the rank
that came last is transfer, and what it lasts longer on the others is waiting before that. Where the
ranks of a group were not all traced, the shortest of like collectives in all steps stands for the
transfer, and what one lasts longer is waiting for a rank that is not known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from simdp.arrays import Bools, Floats, Ints
from simdp.studies.diagnose.meetings import Matched, Meeting, chosen_calls, signature_of
from simdp.studies.diagnose.spans import NOTHING, Instants
from simdp.studies.diagnose.timeline import RankTimeline
from simdp.traces import ANNOTATION, COMPUTE, COPY, SET, SYNC, HostEvents, RankTrace

LOADER = re.compile(
    r"dataloader.*(__next__|next)|wait_for_batch|(data|input)_?load|load_?(data|batch)|"
    r"(next|fetch|get)_?batch|copy_batch_to_gpu",
    re.IGNORECASE,
)
"""Annotations under which a host fetches data: torch's own, and usual ones of users."""

FROM_HOST = re.compile(r"HtoD|host.*device", re.IGNORECASE)

Like = tuple[object, ...]
"""Group and signature."""

KINDS = ("compute", "transfer", "wait", "input", "launch", "other")
"""What instants are charged to."""

UNKNOWN = -1
"""A rank without a trace."""


@dataclass(frozen=True, eq=False)
class CollectiveCharge:
    """A collective of one rank: what of it is transfer.

    Attributes
    ----------
    start, middle, end : float
        It waits until ``middle``, and transfers from there [s].
    late : int
        Place of the timeline that it waits for, or `UNKNOWN`.
    meeting : int
        Which of the meetings, or -1.
    place : int
        Which of the rank's collectives.
    """

    start: float
    middle: float
    end: float
    late: int
    meeting: int
    place: int


@dataclass(frozen=True, eq=False)
class StepCharges:
    """Where the steps of one rank go.

    Attributes
    ----------
    window : ndarray, shape `(num_steps,)`
        Length of each on the device [s].
    of : dict of str to ndarray, shape `(num_steps,)`
        Of `KINDS`; they add up to the window [s].
    blamed : ndarray, shape `(num_steps, num_ranks + 1)`
        Waiting in the open by the rank that came last; the last column is `UNKNOWN` [s].
    transferred : ndarray, shape `(num_steps,)`
        Transfers, hidden ones too [s].
    starved : float
        Of ``launch`` and ``input``, how many kernels there were behind such a gap, per step.
    """

    window: Floats
    of: dict[str, Floats]
    blamed: Floats
    transferred: Floats
    starved: float


def transfer_times(lines: Sequence[RankTimeline], found: Matched) -> list[float]:
    """What each meeting takes once its last rank has come, as far as the traces tell [s]."""
    least = shortest_of_like(lines)
    return [_transfer(meeting, least) for meeting in found.every]


def shortest_of_like(lines: Sequence[RankTimeline]) -> dict[Like, float]:
    """The shortest collective of each group and signature, over all ranks and steps [s]."""
    least = dict[Like, float]()
    for line in lines:
        calls = line.trace.collectives
        for place in chosen_calls(line).tolist():
            key = (str(calls.group[place]), *signature_of(line, place))
            lasted = float(calls.end[place] - calls.start[place])
            least[key] = min(lasted, least.get(key, np.inf))
    return least


def _transfer(meeting: Meeting, least: dict[Like, float]) -> float:
    if meeting.is_complete or meeting.signature.num_elements < 0:
        return meeting.shortest
    like = least.get((meeting.group, *meeting.signature), np.inf)
    return min(meeting.shortest, like)


def calls_of(
    lines: Sequence[RankTimeline],
    place: int,
    found: Matched,
    transfers: Sequence[float],
    least: Mapping[Like, float],
) -> list[CollectiveCharge]:
    """The collectives of one rank, on the first rank's clock; arguments as the others give them."""
    line, calls = lines[place], lines[place].trace.collectives
    met = {
        int(meeting.places[i]): (number, i)
        for number, meeting in enumerate(found.every)
        for i in np.flatnonzero(meeting.ranks == place).tolist()
    }
    listed = list[CollectiveCharge]()
    for one in sorted({*chosen_calls(line).tolist(), *met}):
        start, end = (float(t[one] - found.offset[place]) for t in (calls.start, calls.end))
        if one in met:
            number, _ = met[one]
            meeting = found.every[number]
            middle = max(start, end - transfers[number])
            late = meeting.last if meeting.shortest <= 1.5 * transfers[number] else UNKNOWN
            listed.append(
                CollectiveCharge(
                    start, middle, end, UNKNOWN if late == place else late, number, one
                )
            )
            continue
        key = (str(calls.group[one]), *signature_of(line, one))
        size = int(calls.group_size[one])
        known = signature_of(line, one).num_elements >= 0 and size != 1
        middle = max(start, end - least[key]) if known else start
        listed.append(CollectiveCharge(start, middle, end, UNKNOWN, -1, one))
    return listed


def charges(
    line: RankTimeline, offset: float, calls: Sequence[CollectiveCharge], num_ranks: int
) -> StepCharges:
    """Charge every instant of a rank's steps.

    Parameters
    ----------
    line : Timeline
        The rank's.
    offset : float
        To be taken off its times [s].
    calls : sequence of Call
        Its collectives.
    num_ranks : int
        Traces.
    """
    kernels = line.trace.kernels
    start, end = kernels.start - offset, kernels.end - offset
    begin, until = line.begin - offset, line.end - offset
    copies = kernels.kind == COPY
    inputs = copies & _named(kernels.names, kernels.name, FROM_HOST)
    works = (kernels.kind == COMPUTE) | (kernels.kind == SET) | (copies & ~inputs)
    compute = Instants.of(start[works], end[works])
    sent = _union([(call.middle, call.end) for call in calls])
    transfer = sent.without(compute)
    taken = compute.plus(transfer)
    wait = _union([(call.start, call.middle) for call in calls]).without(taken)
    taken = taken.plus(wait)
    copied = Instants.of(start[inputs], end[inputs]).without(taken)
    whole = Instants.of(begin[:1], until[-1:])
    gaps = whole.without(taken.plus(copied))
    late, starved = _host_late(line.trace, gaps, offset)
    fetching = late.both(_loader(line.trace.host, offset))
    sets = {
        "compute": compute,
        "transfer": transfer,
        "wait": wait,
        "input": copied.plus(fetching),
        "launch": late.without(fetching),
        "other": gaps.without(late),
    }
    return StepCharges(
        window=until - begin,
        of={kind: found.within(begin, until) for kind, found in sets.items()},
        blamed=_blamed(calls, wait, begin, until, num_ranks),
        transferred=sent.within(begin, until),
        starved=starved / max(line.num_steps, 1),
    )


def _union(pairs: Sequence[tuple[float, float]]) -> Instants:
    if not pairs:
        return NOTHING
    start, end = np.array(pairs).T
    return Instants.of(start, end)


def _named(names: Sequence[str], codes: Ints, pattern: re.Pattern[str]) -> Bools:
    """Which events have a name in which the pattern is found."""
    wanted = np.array([bool(pattern.search(name)) for name in names] or [False], dtype=bool)
    found: Bools = wanted[codes]
    return found


def _loader(host: HostEvents, offset: float) -> Instants:
    at = _named(host.names, host.name, LOADER) & (host.kind == ANNOTATION)
    return Instants.of(host.start[at] - offset, host.end[at] - offset)


def _host_late(trace: RankTrace, gaps: Instants, offset: float) -> tuple[Instants, int]:
    """Gaps before kernels that were launched after the device ran dry, and their number."""
    kernels = trace.kernels
    ran = np.flatnonzero(kernels.kind != SYNC)
    if not len(ran) or not len(gaps.start):
        return NOTHING, 0
    follows = np.searchsorted(kernels.start[ran] - offset, gaps.end - 1e-9)
    at = ran[np.minimum(follows, len(ran) - 1)]
    launched = np.fmax(kernels.launched, kernels.launch_end)[at] - offset
    if np.isnan(kernels.launched[ran]).all():
        late = np.ones(len(at), dtype=bool)  # no device: what runs is the host itself
    else:
        late = (launched > gaps.start) | (follows == len(ran))
    return Instants(gaps.start[late], gaps.end[late]), int(late.sum())


def _blamed(
    calls: Sequence[CollectiveCharge], wait: Instants, begin: Floats, until: Floats, num_ranks: int
) -> Floats:
    """Share what a rank waits in the open among those that it waits for, step by step [s]."""
    blamed = np.zeros((len(begin), num_ranks + 1))
    for call in calls:
        if call.middle <= call.start:
            continue
        low, high = np.maximum(begin, call.start), np.minimum(until, call.middle)
        at = np.flatnonzero(high > low)
        blamed[at, call.late] += wait.within(low[at], high[at])
    every, whole = blamed.sum(axis=1), wait.within(begin, until)
    scale = np.divide(whole, every, out=np.zeros(len(begin)), where=every > 0)
    scaled: Floats = blamed * scale[:, np.newaxis]
    return scaled
