"""Charges each instant of a rank's step to exactly one cause, and waiting to the rank that is late.

In this order: compute; copies, casts and changes of a layout; transfers in the open; waiting in the
open, for the rank that came last; a copy from the host in the open; and where the device has
nothing to do, what kept the next kernel from it: the host, which had not launched it yet, since it
fetched data (`input`), compiled (`compile`), searched unused parameters (`search`), waited for the
device itself (`sync`), or was at other work (`launch`); or nothing that the trace shows (`other`).

A collective's kernel lasts from when its rank comes to when all are done. What it lasts on the rank
that came last is transfer, and what it lasts longer on the others is waiting before that. Where the
ranks of a group were not all traced, the shortest of like collectives in all steps stands for the
transfer, and what one lasts longer is waiting for a rank that is not known.

A slow link makes every collective longer by the same factor, a late peer makes some of them longer
by the same time, whatever their sizes. So, of large collectives of several sizes, the one that is
the nearest to what the machine gives tells how slow the links are, and what others last longer is
waiting for a rank that is not known.

What lateness costs a step is how long the rank waits that comes first: so much shorter would the
step be if all were as early. A rank's lateness is that less its own waiting. The other steps tell
which ranks are late in one: those whose mean lateness there is above the middle between the largest
and the smallest. What the step gains if just these were like the rest, less what it gains if the
rest were like these, is the part of a straggler (of how much later the last rank is than the middle
one of the others; less half of the mean's standard error, unless more than half is sure): all of it
where the same ranks are late in every step, or in every step that is late at all; about nothing
where lateness moves from rank to rank. The remainder is imbalance. Ranks that take turns are late
together in a few steps by chance: where a t-test of these gains gives chance more than one in
twenty (and so does the number of steps in which a single rank is last, if all take turns), and the
straggler would be the larger part, it is imbalance too. A single step has no others: the rank that
most is waited for counts as a straggler, and what is waited for others as imbalance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from simdp.arrays import Bools, Floats, grouped
from simdp.studies.diagnose.expected import CollectiveSize, ExpectedTime
from simdp.studies.diagnose.host import (
    KernelUses,
    behind,
    compiling,
    fetching,
    kernel_uses,
    late_gaps,
    searching,
    synchronising,
)
from simdp.traces import HostEvents, RankTrace
from simdp.traces.intervals import NOTHING, Instants
from simdp.traces.matching import MatchedCollective, MatchedTraces, matchable, signature_of
from simdp.traces.timeline import RankTimeline

# Instants -----------------------------------------------------------------------------------------

Like = tuple[object, ...]
"""Key of like collectives: group and signature, or name, size and number of ranks."""


class MeanCharges(NamedTuple):
    """Causes that instants are charged to, and the mean time of a step for each [s]."""

    compute: float
    copies: float
    transfer: float
    wait: float
    input: float
    sync: float
    compile: float
    search: float
    launch: float
    other: float


KINDS = MeanCharges._fields

HOST_LATE = ("sync", "compile", "search", "launch")
"""Those in which the host is late for another reason than data."""

UNKNOWN = -1  # a rank without a trace


@dataclass(frozen=True, eq=False)
class CollectiveCharge:
    """Waiting and transfer of one rank's collective."""

    # start, middle, end: it waits until ``middle``, and transfers from there [s]
    start: float
    middle: float
    end: float
    late: int  # place of the timeline that it waits for, or `UNKNOWN`
    match: int  # its index in `MatchedTraces.every`, or -1
    place: int  # its index among the rank's collectives


@dataclass(frozen=True, eq=False)
class StepCharges:
    """Time of a rank's steps by cause."""

    window: Floats  # length of each on the device [s]; `(num_steps,)`
    of: dict[str, Floats]  # of `KINDS`; they add up to the window [s]; `(num_steps,)`
    # waiting in the open by the rank that came last; the last column is `UNKNOWN` [s];
    # `(num_steps, num_ranks + 1)`
    blamed: Floats
    transferred: Floats  # transfers, hidden ones too [s]; `(num_steps,)`
    starved: float  # number of kernels per step behind a gap of ``launch`` or ``input``
    launch: Instants  # gaps in which the host is at other work [s]


def transfer_times(matches: MatchedTraces, least: Mapping[Like, float]) -> list[float]:
    """Time of each matched collective from when its last rank comes, by the traces [s]."""
    return [_transfer(collective, least) for collective in matches.every]


def shortest_of_like(lines: Sequence[RankTimeline]) -> dict[Like, float]:
    """The shortest collective of each group and signature, over all ranks and steps [s]."""
    least = dict[Like, float]()
    for line in lines:
        calls = line.trace.collectives
        for place in matchable(line).tolist():
            key = (str(calls.group[place]), *signature_of(line, place))
            lasted = float(calls.end[place] - calls.start[place])
            least[key] = min(lasted, least.get(key, np.inf))
    return least


def _transfer(collective: MatchedCollective, least: Mapping[Like, float]) -> float:
    if collective.is_complete or collective.signature.num_elements < 0:
        return collective.shortest
    like = least.get((collective.group, *collective.signature), np.inf)
    return min(collective.shortest, like)


def calls_of(
    lines: Sequence[RankTimeline],
    place: int,
    matches: MatchedTraces,
    transfers: Sequence[float],
    least: Mapping[Like, float],
) -> list[CollectiveCharge]:
    """Split the collectives of one rank into waiting and transfer, on the first rank's clock.

    Parameters
    ----------
    lines : sequence of RankTimeline
        Of all ranks.
    place : int
        Place of the rank.
    matches : MatchedTraces
        Its collectives and those of the others.
    transfers : sequence of float
        As from `transfer_times` [s].
    least : mapping of tuple to float
        As from `shortest_of_like` [s].
    """
    line, calls = lines[place], lines[place].trace.collectives
    matched = {
        int(collective.places[i]): number
        for number, collective in enumerate(matches.every)
        for i in np.flatnonzero(collective.ranks == place).tolist()
    }
    listed = list[CollectiveCharge]()
    for call in sorted({*matchable(line).tolist(), *matched}):
        start, end = (float(t[call] - matches.offset[place]) for t in (calls.start, calls.end))
        if call in matched:
            number = matched[call]
            collective = matches.every[number]
            middle = max(start, end - transfers[number])
            if collective.one_clock:
                middle = max(start, min(float(collective.start.max()), end))
            late = collective.last if collective.shortest <= 1.5 * transfers[number] else UNKNOWN
            listed.append(
                CollectiveCharge(
                    start, middle, end, UNKNOWN if late == place else late, number, call
                )
            )
            continue
        key = (str(calls.group[call]), *signature_of(line, call))
        size = int(calls.group_size[call])
        known = signature_of(line, call).num_elements >= 0 and size != 1
        middle = max(start, end - least[key]) if known else start
        listed.append(CollectiveCharge(start, middle, end, UNKNOWN, -1, call))
    return listed


def charges(
    line: RankTimeline, offset: float, calls: Sequence[CollectiveCharge], num_ranks: int
) -> StepCharges:
    """Charge every instant of a rank's steps.

    Parameters
    ----------
    line : RankTimeline
        The rank's.
    offset : float
        Difference of its clock from the first rank's [s].
    calls : sequence of CollectiveCharge
        Its collectives.
    num_ranks : int
        Number of traces.
    """
    trace, uses = line.trace, kernel_uses(line.trace)
    begin, until = line.begin - offset, line.end - offset
    busy = _busy(trace, uses, offset)
    own = NOTHING
    for works in busy.values():
        own = own.plus(works)
    sent = _union([(call.middle, call.end) for call in calls])
    transfer = sent.without(own)
    taken = own.plus(transfer)
    wait = _union([(call.start, call.middle) for call in calls]).without(taken)
    taken = taken.plus(wait)
    copied = _instants(trace, uses.inputs, offset).without(taken)
    whole = Instants.of(begin[:1], until[-1:])
    gaps = whole.without(taken.plus(copied))
    late = late_gaps(trace, gaps, offset)
    idle = _idle(trace.host, late, busy["sync"], offset)
    sets = {kind: busy.get(kind, NOTHING).plus(idle.get(kind, NOTHING)) for kind in KINDS}
    sets |= {"transfer": transfer, "wait": wait, "other": gaps.without(late)}
    sets["input"] = sets["input"].plus(copied)
    return StepCharges(
        window=until - begin,
        of={kind: instants.within(begin, until) for kind, instants in sets.items()},
        blamed=_blamed(calls, wait, begin, until, num_ranks),
        transferred=sent.within(begin, until),
        starved=len(late.start) / max(line.num_steps, 1),
        launch=idle["launch"],
    )


def _instants(trace: RankTrace, chosen: Bools, offset: float) -> Instants:
    """When some kernels run [s]."""
    kernels = trace.kernels
    return Instants.of(kernels.start[chosen] - offset, kernels.end[chosen] - offset)


def _busy(trace: RankTrace, uses: KernelUses, offset: float) -> dict[str, Instants]:
    """When kernels other than collectives and copies from the host run, by kind."""
    instants_of, taken = dict[str, Instants](), NOTHING
    for kind, chosen in (
        ("compute", uses.works),
        ("copies", uses.copies),
        ("sync", uses.reads),
        ("launch", uses.tiny),
        ("compile", uses.compiles),
        ("search", uses.searches),
    ):
        instants_of[kind] = _instants(trace, chosen, offset).without(taken)
        taken = taken.plus(instants_of[kind])
    return instants_of


def _idle(host: HostEvents, late: Instants, reads: Instants, offset: float) -> dict[str, Instants]:
    """Divide the gaps in which the host is late by what it did, for each kind of `HOST_LATE`."""
    instants_of = dict[str, Instants]()
    for kind, at in (
        ("input", fetching(host, offset)),
        ("compile", compiling(host, offset)),
        ("search", searching(host, offset)),
    ):
        instants_of[kind] = late.both(at)
        late = late.without(instants_of[kind])
    instants_of["sync"] = synchronising(host, late, offset).plus(behind(reads, late))
    instants_of["launch"] = late.without(instants_of["sync"])
    return instants_of


def _union(pairs: Sequence[tuple[float, float]]) -> Instants:
    if not pairs:
        return NOTHING
    start, end = np.array(pairs).T
    return Instants.of(start, end)


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


# Ranks without a trace ----------------------------------------------------------------------------

LARGE = 1e6  # of smaller collectives, launches and protocols make more than links do [bytes]


STEADY = 1 / 3  # standard deviation over mean up to which steps wait about as long


def untraced_waits(
    calls: Sequence[CollectiveCharge],
    sizes: Mapping[int, CollectiveSize],
    expected: Mapping[CollectiveSize, ExpectedTime],
    collectives: Sequence[MatchedCollective],
) -> list[CollectiveCharge]:
    """Charge waiting for ranks without a trace: what collectives last longer than links explain.

    Parameters
    ----------
    calls : sequence of CollectiveCharge
        The rank's.
    sizes : mapping of int to CollectiveSize
        Of those that are known, by their places in ``calls``.
    expected : mapping of CollectiveSize to ExpectedTime
        Of each size.
    collectives : sequence of MatchedCollective
        With other ranks; complete ones stay as they are.

    Returns
    -------
    list of CollectiveCharge
        In the same order.
    """
    alone = [
        place
        for place, size in sizes.items()
        if size in expected
        and size.nbytes >= LARGE
        and not (calls[place].match >= 0 and collectives[calls[place].match].is_complete)
    ]
    lasted = grouped((sizes[place], calls[place].end - calls[place].start) for place in alone)
    if len(lasted) < 2:
        return list(calls)
    factor = max(1.0, min(min(times) / expected[size].usual for size, times in lasted.items()))
    charged = list(calls)
    for place in alone:
        call, takes = calls[place], factor * expected[sizes[place]].usual
        middle = max(call.start, call.middle, call.end - takes)
        late = UNKNOWN if middle > call.middle else call.late
        charged[place] = replace(call, middle=middle, late=late)
    return charged


def is_steady(waits: Sequence[float]) -> bool:
    """Whether all steps wait about as long.

    Parameters
    ----------
    waits : sequence of float
        For unknown ranks, by step [s].
    """
    return len(waits) > 2 and float(np.std(waits)) <= STEADY * float(np.mean(waits))


# Late ranks ---------------------------------------------------------------------------------------

CHANCE = 0.05  # largest probability by chance of gains that count as a straggler's
SAME = 1e-9  # gains that differ by a smaller part are equal


@dataclass(frozen=True, eq=False)
class Lateness:
    """Time lost to late ranks, in two parts."""

    cost: Floats  # time that each step loses to late ranks [s]; `(num_steps,)`
    # straggling, moving: the two parts of its mean [s]
    straggling: float
    moving: float
    # stragglers, others: places of the ranks that are late in most steps, and by turns
    stragglers: tuple[int, ...]
    others: tuple[int, ...]
    late: Floats  # lateness of each rank behind the first [s]; `(num_steps, num_ranks)`
    # places of ranks that are late in most steps, but in too few to tell that from chance
    doubtful: tuple[int, ...] = ()


def lateness(waits: Floats, blamed: Floats) -> Lateness:
    """Divide the time lost to late ranks into stragglers' and imbalance.

    Parameters
    ----------
    waits : ndarray, shape `(num_steps, num_ranks)`
        Waiting of each rank in the open, for ranks that are known [s].
    blamed : ndarray, shape `(num_steps, num_ranks, num_ranks)`
        The same by the late rank [s].
    """
    cost = waits.max(axis=1, initial=0.0)
    late = cost[:, np.newaxis] - waits
    num_steps, num_ranks = waits.shape
    charged = blamed.sum(axis=1)
    total = float(cost.mean()) if num_steps else 0.0
    if num_ranks < 2 or total <= 0:
        return Lateness(cost, 0.0, 0.0, (), (), late)
    if num_steps == 1:
        first = blamed[0, int(np.argmax(waits[0]))]
        top = int(np.argmax(charged[0]))
        straggling = min(float(first[top]), total)
        return Lateness(cost, straggling, total - straggling, (top,), _turns(first, {top}), late)
    gains, chosen = np.zeros(num_steps), np.zeros(num_ranks)
    for step in range(num_steps):
        others = np.delete(late, step, axis=0).mean(axis=0)
        late_elsewhere: Bools = others > (others.max() + others.min()) / 2
        if late_elsewhere.any() and not late_elsewhere.all():
            gains[step] = late[step][late_elsewhere].max() - late[step][~late_elsewhere].max()
            chosen += late_elsewhere
    middle = np.median(np.sort(late, axis=1)[:, :-1], axis=1)
    spare = float((late.max(axis=1) - middle).mean())
    part = _part(gains, spare)
    straggling = total * part
    often = np.flatnonzero(chosen > num_steps / 2)
    lasts = set(often.tolist()) if straggling > 0 else set()
    mean = charged.mean(axis=0)
    doubtful = tuple[int, ...]()
    if part > 1 / 2 and lasts and min(_chance(gains), _last_by_chance(late, lasts)) > CHANCE:
        doubtful, straggling, lasts = tuple(sorted(lasts)), 0.0, set()
    return Lateness(
        cost,
        straggling,
        total - straggling,
        tuple(sorted(lasts)),
        _turns(mean, lasts),
        late,
        doubtful,
    )


def _chance(gains: Floats) -> float:
    """Probability of such gains if no rank is late more than others: a two-sided t-test.

    Two-sided, since of any two ranks either may be the one that is late by chance.
    """
    from scipy.special import stdtr  # few processes need it, and it takes long to import

    error = float(gains.std(ddof=1)) / np.sqrt(len(gains))
    if error <= SAME * abs(float(gains.mean())):
        return 0.0
    return 2 * float(stdtr(len(gains) - 1, -float(gains.mean()) / error))


def _last_by_chance(late: Floats, late_ranks: set[int]) -> float:
    """Probability that any one rank is last so often if all take turns; 1 for several ranks."""
    from scipy.stats import binom

    if len(late_ranks) != 1:
        return 1.0
    num_steps, num_ranks = late.shape
    often = int((late.argmax(axis=1) == next(iter(late_ranks))).sum())
    return float(min(num_ranks * binom.sf(often - 1, num_steps, 1 / num_ranks), 1.0))


def _part(gains: Floats, spare: float) -> float:
    """Fraction of the lost time that stragglers cost, 0 to 1."""
    if spare <= 0:
        return 0.0
    sure = (gains.mean() - gains.std(ddof=1) / np.sqrt(len(gains)) / 2) / spare
    return float(np.clip(gains.mean() / spare if sure > 1 / 2 else sure, 0.0, 1.0))


def _turns(charged: Floats, but: set[int]) -> tuple[int, ...]:
    """Ranks that the others wait for at least half as long as for the worst, but some."""
    rest = {place: float(charged[place]) for place in range(len(charged)) if place not in but}
    worst = max(rest.values(), default=0.0)
    return tuple(place for place, value in rest.items() if worst and value >= worst / 2)
