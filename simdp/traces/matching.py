"""Matches the collectives and messages of several ranks, and aligns their clocks.

Ranks leave a collective together, so that the ends of the same collective give the difference of
their clocks: the median over all of them, which a few late ends do not move. Collectives are the
same by process group and sequence number; without numbers by their order in each step, or in the
trace. Order alone is wrong where events were dropped or a trace was cut: if the ends of one pairing
do not agree, collectives of one name are paired by their ends.

Without a device, as with gloo, the threads of a backend swap collectives and leave them apart.
There, collectives of one name and size are paired in order, step by step, and the clocks of the
files are one clock unless by them a collective ends on a rank before it begins on another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

import numpy as np

from simdp.arrays import Bools, Floats, Ints
from simdp.errors import ScenarioError
from simdp.traces.rows import RankTrace
from simdp.traces.timeline import RankTimeline

# Two ranks ----------------------------------------------------------------------------------------

MOST_AGREE = 0.8
"""Fraction of the pairs that end together if an order is right."""

LEAST_TOLERANCE = 0.5e-3
"""Ends that differ by no more than this count as the same [s]."""

LEAST_SHARE = 0.2
"""Ends of a smaller fraction of the calls agree by chance: the ranks are not of one job."""

MOST_CALLS = 500
"""Calls of one name whose ends are compared, at most."""

MEETINGS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Collectives that no rank leaves before all have entered."""

ALMOST_ALL = 0.98
"""Share of the collectives that clocks of one host hold in order; events may be paired wrongly."""

ONE_CLOCK = 1e-3
"""Clocks of one host, as the threads of a backend read them, differ by less [s]."""


Key = TypeVar("Key")


class Signature(NamedTuple):
    """Properties that are equal on all ranks; -1 and empty where they are not known."""

    name: str
    num_elements: int
    dtype: str


class GroupCalls(NamedTuple):
    """A rank's collectives in one group, in order."""

    # places, sequence, step: index among the rank's collectives; number in the group, and number of
    # the step, -1 where these are not known; `(num_calls,)`
    places: Ints
    sequence: Ints
    step: Ints
    # start, end: on the rank's own clock [s]; `(num_calls,)`
    start: Floats
    end: Floats
    signatures: list[Signature]  # of each call
    on_host: bool = False  # whether a backend without a device carried them out


class CallPairs(NamedTuple):
    """Which calls of two ranks are the same."""

    of: tuple[str, int, int]  # the group, and the places of the two among the timelines
    # ours, theirs: places among the calls of each; `(num_pairs,)`
    ours: Ints
    theirs: Ints
    apart: Floats  # difference of their ends [s]; `(num_pairs,)`
    by_ends: bool  # whether they were paired by their ends
    # least, most: differences of the clocks by which neither rank leaves a collective before the
    # other one enters it; infinite for calls with a device [s]; `(num_pairs,)`
    least: Floats
    most: Floats


def pair(ours: GroupCalls, theirs: GroupCalls, apart: float, of: tuple[str, int, int]) -> CallPairs:
    """Pair the calls of two ranks.

    Parameters
    ----------
    ours, theirs : GroupCalls
        In one group.
    apart : float
        Difference of their clocks, by the files [s].
    of : tuple of (str, int, int)
        As in `CallPairs`.
    """
    for mine, other, sure in _orders(ours, theirs):
        differ = theirs.end[other] - ours.end[mine]
        if sure:
            return _pairs(ours, theirs, of, mine, other)
        near = np.abs(differ - np.median(differ)) <= _tolerance(ours) if len(differ) else differ
        if len(near) and near.mean() >= MOST_AGREE:
            return _pairs(ours, theirs, of, mine[near], other[near])
    return _pairs(ours, theirs, of, *_by_ends(ours, theirs, apart))._replace(by_ends=True)


def _pairs(
    ours: GroupCalls, theirs: GroupCalls, of: tuple[str, int, int], mine: Ints, other: Ints
) -> CallPairs:
    """The pairs of two ranks, and what they say of their clocks."""
    least, most = np.full(len(mine), -np.inf), np.full(len(mine), np.inf)
    if ours.on_host and theirs.on_host:
        meets = np.array([ours.signatures[i].name in MEETINGS for i in mine.tolist()], dtype=bool)
        least[meets] = (theirs.start[other] - ours.end[mine])[meets]
        most[meets] = (theirs.end[other] - ours.start[mine])[meets]
    apart = theirs.end[other] - ours.end[mine]
    return CallPairs(of, mine, other, apart, False, least, most)


def _orders(ours: GroupCalls, theirs: GroupCalls) -> Iterator[tuple[Ints, Ints, bool]]:
    """Orders in which the calls of two ranks may be equal, and whether each is certain."""
    if _numbered(ours) and _numbered(theirs):
        _, mine, other = np.intersect1d(ours.sequence, theirs.sequence, return_indices=True)
        yield mine, other, True
    if ours.on_host and theirs.on_host:
        by_size = [
            _places(zip(calls.signatures, calls.step.tolist(), strict=True))
            for calls in (ours, theirs)
        ]
        same = sorted(set(by_size[0]) & set(by_size[1]))
        if same:
            yield _at(by_size[0], same), _at(by_size[1], same), True
    if (ours.step >= 0).all() and (theirs.step >= 0).all():
        keys = [_places(calls.step.tolist()) for calls in (ours, theirs)]
        both = sorted(set(keys[0]) & set(keys[1]))
        yield _at(keys[0], both), _at(keys[1], both), False
    n = min(len(ours.places), len(theirs.places))
    yield np.arange(n), np.arange(n), False


def _numbered(calls: GroupCalls) -> bool:
    return bool((calls.sequence >= 0).all()) and len(set(calls.sequence)) == len(calls.sequence)


def _places(keys: Iterable[Key]) -> dict[tuple[Key, int], int]:
    """Places of some keys, each of which is numbered among those that are equal."""
    seen, places = Counter[Key](), dict[tuple[Key, int], int]()
    for place, key in enumerate(keys):
        places[key, seen[key]] = place
        seen[key] += 1
    return places


def _at(keys: dict[Key, int], chosen: Sequence[Key]) -> Ints:
    return np.array([keys[key] for key in chosen], dtype=np.int64)


def _tolerance(calls: GroupCalls) -> float:
    """Largest difference of ends: a part of the time between one and the next [s]."""
    between = np.diff(np.sort(calls.end))
    return max(LEAST_TOLERANCE, float(np.median(between)) / 5 if len(between) else 0.0)


def _by_ends(ours: GroupCalls, theirs: GroupCalls, apart: float) -> tuple[Ints, Ints]:
    """Pair calls of one name whose ends agree once the clocks do.

    The clocks differ by what most ends agree on; of equally many, by what is nearest to the
    difference in the files.
    """
    differ = np.sort(_differences(ours, theirs))
    if not len(differ):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    last = np.searchsorted(differ, differ + LEAST_TOLERANCE, side="right")
    votes, far = last - np.arange(len(differ)), np.abs(differ - apart)
    best = int(np.lexsort((far, -votes))[0])
    pairs = sorted(_nearest(ours, theirs, float(np.median(differ[best : last[best]]))))
    if len(pairs) < LEAST_SHARE * min(len(ours.places), len(theirs.places)):
        pairs = []
    return np.array([i for i, _ in pairs], dtype=np.int64), np.array(
        [j for _, j in pairs], dtype=np.int64
    )


def _by_name(calls: GroupCalls) -> dict[str, list[int]]:
    """Places of the calls of each name; sizes may be unknown, or uneven."""
    places = dict[str, list[int]]()
    for place, signature in enumerate(calls.signatures):
        places.setdefault(signature.name, []).append(place)
    return places


def _differences(ours: GroupCalls, theirs: GroupCalls) -> Floats:
    """Differences between the ends of the calls of each name; of many, the first [s]."""
    mine, others = _by_name(ours), _by_name(theirs)
    differences = [
        np.subtract.outer(
            theirs.end[others[key][:MOST_CALLS]], ours.end[mine[key][:MOST_CALLS]]
        ).ravel()
        for key in mine
        if key in others
    ]
    return np.concatenate(differences) if differences else np.zeros(0)


def _nearest(ours: GroupCalls, theirs: GroupCalls, apart: float) -> Iterator[tuple[int, int]]:
    """Calls of one name that end together on clocks so far apart; each in one pair."""
    mine, others = _by_name(ours), _by_name(theirs)
    for key in mine:
        if key not in others:
            continue
        places = np.array(others[key])
        ends = theirs.end[places]
        order = np.argsort(ends)
        taken = set[int]()
        for place in mine[key]:
            wanted = ours.end[place] + apart
            at = int(np.searchsorted(ends[order], wanted))
            near = [order[i] for i in (at - 1, at) if 0 <= i < len(order)]
            best = min(near, key=lambda i: abs(ends[i] - wanted))
            if abs(ends[best] - wanted) <= LEAST_TOLERANCE and best not in taken:
                taken.add(int(best))
                yield place, int(places[best])


# Messages -----------------------------------------------------------------------------------------

MESSAGES = ("send", "recv")
"""Names of messages, which have two ranks."""


class MessagePath(NamedTuple):
    """Senders and receivers of messages in a group."""

    group: str
    source: int
    target: int


class MessageExchange(NamedTuple):
    """All messages from one rank to another."""

    # sent, received: of the two ranks
    sent: GroupCalls
    received: GroupCalls
    pairs: CallPairs  # which of them are the same


def exchanges(lines: Sequence[RankTimeline], origin: Floats) -> list[MessageExchange]:
    """Pair the messages of ranks, without those whose peer is not known or has no trace.

    Parameters
    ----------
    lines : sequence of RankTimeline
        Of ranks of one job.
    origin : ndarray, shape `(num_ranks,)`
        Differences of their clocks, by the files [s].
    """
    places = {line.trace.rank: place for place, line in enumerate(lines)}
    paths = [_by_path(line) for line in lines]
    messages = []
    for place, line in enumerate(lines):
        for path, sent in paths[place]["send"].items():
            other = places.get(path.target)
            if path.source != line.trace.rank or other is None:
                continue
            received = paths[other]["recv"].get(path)
            if received is not None:
                apart = float(origin[place] - origin[other])
                pairs = pair(sent, received, apart, (path.group, place, other))
                messages.append(MessageExchange(sent, received, pairs))
    return messages


def _by_path(line: RankTimeline) -> dict[str, dict[MessagePath, GroupCalls]]:
    """A rank's messages by name and path."""
    calls, rank = line.trace.collectives, line.trace.rank
    messages: dict[str, dict[MessagePath, GroupCalls]] = {name: {} for name in MESSAGES}
    if rank is None or not len(calls):
        return messages
    names = np.array(calls.names)[calls.name]
    for name in MESSAGES:
        mine = np.flatnonzero((names == name) & (calls.peer >= 0))
        peers = [_global(line, str(calls.group[i]), int(calls.peer[i])) for i in mine.tolist()]
        keys = [group_key(line, str(group)) for group in calls.group[mine]]
        ends = [(rank, peer) if name == "send" else (peer, rank) for peer in peers]
        paths = [MessagePath(key, *pair) for key, pair in zip(keys, ends, strict=True)]
        for path in dict.fromkeys(paths):
            places = mine[[own == path for own in paths]]
            messages[name][path] = GroupCalls(
                places,
                np.full(len(places), -1),
                steps_at(line, places),
                calls.start[places],
                calls.end[places],
                [Signature("message", -1, "")] * len(places),
            )
    return messages


def _global(line: RankTimeline, group: str, peer: int) -> int:
    """A rank of the job by its number in a group."""
    known = line.trace.groups.get(group)
    if known is None or known.ranks is None or peer >= len(known.ranks):
        return peer
    return known.ranks[peer]


def group_key(line: RankTimeline, name: str) -> str:
    """Name a group by its ranks too, since a mesh has groups of one name and different ranks."""
    group = line.trace.groups.get(name)
    if group is None or group.ranks is None:
        return name
    return f"{name} of {','.join(map(str, group.ranks))}"


def steps_at(line: RankTimeline, places: Ints) -> Ints:
    """Numbers of the steps in which collectives were called; -1 outside of all."""
    if not len(line.trace.steps):  # other marks are not numbered alike on all ranks
        return np.full(len(places), -1)
    step = line.marks.collective[places]
    return np.where(step >= 0, line.number[np.maximum(step, 0)], -1)


# All ranks ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class MatchedCollective:
    """One collective, or message, in the traces of several ranks."""

    group: str  # name of its process group
    number: int  # its sequence number there, or its place in the order
    ranks: Ints  # places of the timelines that have it; `(num_ranks,)`
    places: Ints  # its index among the collectives of each; `(num_ranks,)`
    signatures: tuple[Signature, ...]  # of each rank's call
    # start, end: on the first rank's clock [s]; `(num_ranks,)`
    start: Floats
    end: Floats
    size: int | None  # ranks of the group
    one_clock: bool = False  # whether its ranks are known to have one clock; they may leave apart

    @property
    def last(self) -> int:
        """Place of the timeline that came last: the shortest, since all leave together."""
        if self.one_clock:
            return int(self.ranks[np.argmax(self.start)])
        return int(self.ranks[np.argmin(self.end - self.start)])

    @property
    def shortest(self) -> float:
        """Its time on the rank that came last [s]."""
        if self.one_clock:
            return max(float(self.end.min() - self.start.max()), 0.0)
        return float((self.end - self.start).min())

    @property
    def is_complete(self) -> bool:
        """Whether all its ranks have traces."""
        return self.size is not None and len(self.ranks) >= self.size > 1

    @property
    def signature(self) -> Signature:
        """Signature of most of its ranks."""
        return Counter(self.signatures).most_common(1)[0][0]


@dataclass(frozen=True, eq=False)
class MatchedTraces:
    """Collectives and messages of all ranks, and the differences of their clocks."""

    collectives: list[MatchedCollective]  # by their ends
    offset: Floats  # difference of each rank's clock from the first rank's [s]; `(num_ranks,)`
    by_ends: set[str]  # groups that were matched by the ends of collectives
    unmatched: int  # collectives of one rank only
    # of two ranks each: a send, and its receive
    messages: list[MatchedCollective] = field(default_factory=list)
    one_clock: bool = False  # whether the clocks of the files are one, without a device

    @property
    def every(self) -> list[MatchedCollective]:
        """Collectives, then messages."""
        return [*self.collectives, *self.messages]


def match(lines: Sequence[RankTimeline]) -> MatchedTraces:
    """Match the collectives of ranks.

    Parameters
    ----------
    lines : sequence of RankTimeline
        Of ranks of one job.
    """
    first = lines[0].trace.origin_ns
    origin = np.array([(line.trace.origin_ns - first) * 1e-9 for line in lines])
    calls = [_calls(line) for line in lines]
    pairs = list[CallPairs]()
    for group in sorted({group for rank in calls for group in rank}):
        there = [place for place in range(len(lines)) if group in calls[place]]
        reference = max(there, key=lambda place: len(calls[place][group].places))
        for other in there:
            if other != reference:
                ours, theirs = calls[reference][group], calls[other][group]
                apart = float(origin[reference] - origin[other])
                pairs.append(pair(ours, theirs, apart, (group, reference, other)))
    sent = exchanges(lines, origin)
    one_clock = _is_one_clock(lines, pairs, origin)
    if one_clock:
        offset = origin[0] - origin
    else:
        offset = _offsets(lines, pairs, [exchange.pairs for exchange in sent], origin)
    collectives = [
        replace(collective, one_clock=one_clock)
        for collective in _joined(lines, calls, pairs, offset)
    ]
    used = sum(len(collective.ranks) for collective in collectives)
    every = sum(len(own.places) for by_group in calls for own in by_group.values())
    return MatchedTraces(
        sorted(collectives, key=lambda collective: float(collective.end.max())),
        offset,
        {pairing.of[0] for pairing in pairs if pairing.by_ends},
        every - used if len(lines) > 1 else 0,
        [message for exchange in sent for message in _messages(lines, exchange, offset)],
        one_clock,
    )


def matchable(line: RankTimeline) -> Ints:
    """Indices of a rank's collectives: neither messages, nor calls without a kernel.

    In a trace without any kernel of communication, the calls stand for them.
    """
    calls = line.trace.collectives
    names = np.array([*calls.names, ""])[calls.name] if len(calls) else np.zeros(0, dtype=str)
    keep: Bools = ~np.isin(names, MESSAGES) & (calls.group_size != 1)
    if (calls.kernel >= 0).any():
        keep &= calls.kernel >= 0
    return np.flatnonzero(keep)


def signature_of(line: RankTimeline, place: int) -> Signature:
    """Signature of a rank's call."""
    calls = line.trace.collectives
    name = calls.names[calls.name[place]]
    return Signature(name, int(calls.num_elements[place]), str(calls.dtype[place]))


def _calls(line: RankTimeline) -> dict[str, GroupCalls]:
    calls, chosen = line.trace.collectives, matchable(line)
    by_group = dict[str, GroupCalls]()
    keys = np.array([group_key(line, str(name)) for name in calls.group[chosen]], dtype=object)
    for key in dict.fromkeys(keys.tolist()):
        places = chosen[keys == key]
        signatures = [signature_of(line, place) for place in places.tolist()]
        by_group[key] = GroupCalls(
            places,
            calls.sequence[places],
            steps_at(line, places),
            calls.start[places],
            calls.end[places],
            signatures,
            line.trace.on_host,
        )
    return by_group


# Clocks -------------------------------------------------------------------------------------------


def _offsets(
    lines: Sequence[RankTimeline],
    pairs: Sequence[CallPairs],
    sent: Sequence[CallPairs],
    origin: Floats,
) -> Floats:
    """Differences of clocks, from rank to rank along the groups that join them.

    Messages join those that no group does.
    """
    offset = np.full(len(lines), np.nan)
    offset[0] = 0.0
    for known in (pairs, [*pairs, *sent]):
        joined = [(p.of[1], p.of[2], float(np.median(p.apart))) for p in known if len(p.apart)]
        joined += [(b, a, -apart) for a, b, apart in joined]
        reached = np.flatnonzero(~np.isnan(offset)).tolist()
        while reached:
            at = reached.pop()
            for a, b, apart in joined:
                if a == at and np.isnan(offset[b]):
                    offset[b] = offset[a] + apart
                    reached.append(b)
    return np.where(np.isnan(offset), origin[0] - origin, offset)


def _is_one_clock(
    lines: Sequence[RankTimeline], pairs: Sequence[CallPairs], origin: Floats
) -> bool:
    """Whether no rank, by the clocks of the files, leaves a collective before others enter it."""
    if len(lines) < 2 or not all(line.trace.on_host for line in lines):
        return False
    for pairing in pairs:
        apart = float(origin[pairing.of[1]] - origin[pairing.of[2]])
        meets = np.isfinite(pairing.least)
        held = (pairing.least - ONE_CLOCK <= apart) & (apart <= pairing.most + ONE_CLOCK)
        if not meets.any() or held[meets].mean() < ALMOST_ALL:
            return False
    return bool(pairs)


def _messages(
    lines: Sequence[RankTimeline], exchange: MessageExchange, offset: Floats
) -> Iterator[MatchedCollective]:
    """The messages of a path that both ranks have."""
    pairs = exchange.pairs
    group, *ranks = pairs.of
    for ours, theirs in zip(pairs.ours.tolist(), pairs.theirs.tolist(), strict=True):
        places = [int(exchange.sent.places[ours]), int(exchange.received.places[theirs])]
        at = [(lines[r].trace.collectives, i) for r, i in zip(ranks, places, strict=True)]
        yield MatchedCollective(
            group=group,
            number=ours,
            ranks=np.array(ranks),
            places=np.array(places),
            signatures=tuple(signature_of(lines[r], i) for r, i in zip(ranks, places, strict=True)),
            start=np.array([float(c.start[i]) for c, i in at]) - offset[ranks],
            end=np.array([float(c.end[i]) for c, i in at]) - offset[ranks],
            size=2,
        )


def _joined(
    lines: Sequence[RankTimeline],
    calls: Sequence[dict[str, GroupCalls]],
    pairs: Sequence[CallPairs],
    offset: Floats,
) -> Iterator[MatchedCollective]:
    """Join the pairs of a group that share a call of its reference."""
    by_group = dict[str, list[CallPairs]]()
    for pairing in pairs:
        by_group.setdefault(pairing.of[0], []).append(pairing)
    for group, listed in by_group.items():
        reference = listed[0].of[1]
        others = [
            (pairing.of[2], dict(zip(pairing.ours.tolist(), pairing.theirs.tolist(), strict=True)))
            for pairing in listed
        ]
        for place in range(len(calls[reference][group].places)):
            members = [(reference, place)]
            members += [(rank, theirs[place]) for rank, theirs in others if place in theirs]
            if len(members) > 1:
                yield _collective(lines, calls, group, sorted(members), offset)


def _collective(
    lines: Sequence[RankTimeline],
    calls: Sequence[dict[str, GroupCalls]],
    group: str,
    members: Sequence[tuple[int, int]],
    offset: Floats,
) -> MatchedCollective:
    ranks = np.array([rank for rank, _ in members])
    mine = [calls[rank][group] for rank in ranks.tolist()]
    places = np.array([own.places[at] for own, (_, at) in zip(mine, members, strict=True)])
    columns = [lines[rank].trace.collectives for rank in ranks.tolist()]
    at = list(zip(columns, places.tolist(), strict=True))
    size = int(at[0][0].group_size[places[0]])
    if size < 0:
        size = lines[0].trace.world_size or -1
    number = int(mine[0].sequence[members[0][1]])
    return MatchedCollective(
        group=str(at[0][0].group[places[0]]),
        number=number if number >= 0 else members[0][1],
        ranks=ranks,
        places=places,
        signatures=tuple(own.signatures[i] for own, (_, i) in zip(mine, members, strict=True)),
        start=np.array([float(c.start[i]) for c, i in at]) - offset[ranks],
        end=np.array([float(c.end[i]) for c, i in at]) - offset[ranks],
        size=size if size > 0 else None,
    )


# One job ------------------------------------------------------------------------------------------

ENOUGH = 3
"""A rank with so many collectives shares at least one with another."""


def check_one_job(traces: Sequence[RankTrace]) -> None:
    """Refuse traces that cannot be of one job.

    Raises
    ------
    ScenarioError
        If there are none, two are of one rank, or they are of jobs of different sizes.
    """
    if not traces:
        raise ScenarioError(["traces: none given; give those of one job, one per rank."])
    seen = dict[int, RankTrace]()
    for trace in traces:
        if trace.rank is None:
            continue
        if trace.rank in seen:
            raise ScenarioError(
                [
                    f"{trace.path}: is of rank {trace.rank}, as {seen[trace.rank].path} is; give "
                    "the traces of one run, one per rank."
                ]
            )
        seen[trace.rank] = trace
    sized = [trace for trace in traces if trace.world_size is not None]
    for trace in sized[1:]:
        if trace.world_size != sized[0].world_size:
            raise ScenarioError(
                [
                    f"{trace.path}: is of a job of {trace.world_size} ranks, but {sized[0].path} "
                    f"of one of {sized[0].world_size}; give the traces of one job."
                ]
            )


def check_shared(traces: Sequence[RankTrace], matched: MatchedTraces) -> None:
    """Refuse a rank that has collectives, but shares none.

    Raises
    ------
    ScenarioError
        If there is one.
    """
    shared = {place for collective in matched.every for place in collective.ranks.tolist()}
    alone = [
        place
        for place, trace in enumerate(traces)
        if place not in shared and len(trace.collectives) >= ENOUGH
    ]
    if len(traces) > 1 and alone:
        other = traces[0 if alone[0] else 1]
        raise ScenarioError(
            [
                f"{traces[alone[0]].path}: none of its {len(traces[alone[0]].collectives)} "
                f"collectives ends with one of {other.path} or of another rank, so that they are "
                "not of the same steps; give the traces of one job, taken at the same time."
            ]
        )
