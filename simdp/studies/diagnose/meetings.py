"""Meetings: the collectives of several ranks, put together, and their clocks made one.

Ranks leave a collective together, so that the ends of the same collective tell how their clocks
differ: the median over all of them, which a few late ends do not move. Which collectives are the
same is told by process group and sequence number; without numbers by their order in each step, or
in the trace. Order alone is wrong where events were dropped or a trace was cut: if the ends of one
pairing do not agree, collectives of one name are paired by their ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from simdp.arrays import Bools, Floats, Ints
from simdp.studies.diagnose.messages import (
    MESSAGES,
    MessageExchange,
    exchanges,
    group_key,
    steps_at,
)
from simdp.studies.diagnose.pairing import Calls, Pairs, Signature, paired
from simdp.studies.diagnose.timeline import RankTimeline


@dataclass(frozen=True, eq=False)
class Meeting:
    """One collective, as its ranks saw it.

    Attributes
    ----------
    group : str
        Name of its process group.
    number : int
        Its sequence number there, or its place in the order.
    ranks : ndarray, shape `(num_ranks,)`, int64
        Places of the timelines that have it.
    places : ndarray, shape `(num_ranks,)`, int64
        Which of their collectives it is.
    signatures : tuple of Signature
        What each called.
    start, end : ndarray, shape `(num_ranks,)`
        On the first rank's clock [s].
    size : int or None
        Ranks of the group.
    """

    group: str
    number: int
    ranks: Ints
    places: Ints
    signatures: tuple[Signature, ...]
    start: Floats
    end: Floats
    size: int | None

    @property
    def last(self) -> int:
        """Place of the timeline that came last: the shortest, since all leave together."""
        return int(self.ranks[np.argmin(self.end - self.start)])

    @property
    def shortest(self) -> float:
        """What it lasts on the rank that came last [s]."""
        return float((self.end - self.start).min())

    @property
    def is_complete(self) -> bool:
        """Whether all its ranks were seen."""
        return self.size is not None and len(self.ranks) >= self.size > 1

    @property
    def signature(self) -> Signature:
        """What most of its ranks called."""
        return Counter(self.signatures).most_common(1)[0][0]


@dataclass(frozen=True, eq=False)
class Matched:
    """All meetings, and what it took to find them.

    Attributes
    ----------
    meetings : list of Meeting
        By their ends.
    offset : ndarray, shape `(num_ranks,)`
        To be taken off each rank's times to have the first rank's [s].
    by_ends : set of str
        Groups whose order was wrong.
    unmatched : int
        Collectives that no other rank has, or has elsewhere.
    messages : list of Meeting
        Of two ranks each: a send, and the receive that it ends in.
    """

    meetings: list[Meeting]
    offset: Floats
    by_ends: set[str]
    unmatched: int
    messages: list[Meeting] = field(default_factory=list)

    @property
    def every(self) -> list[Meeting]:
        """Meetings, and behind them messages."""
        return [*self.meetings, *self.messages]


def matched(lines: Sequence[RankTimeline]) -> Matched:
    """Put the collectives of ranks together.

    Parameters
    ----------
    lines : sequence of Timeline
        Of ranks of one job.
    """
    first = lines[0].trace.origin_ns
    origin = np.array([(line.trace.origin_ns - first) * 1e-9 for line in lines])
    calls = [_calls(line) for line in lines]
    pairs = list[Pairs]()
    for group in sorted({group for rank in calls for group in rank}):
        there = [place for place in range(len(lines)) if group in calls[place]]
        reference = max(there, key=lambda place: len(calls[place][group].places))
        for other in there:
            if other != reference:
                ours, theirs = calls[reference][group], calls[other][group]
                apart = float(origin[reference] - origin[other])
                pairs.append(paired(ours, theirs, apart, (group, reference, other)))
    sent = exchanges(lines, origin)
    offset = _offsets(lines, pairs, [one.pairs for one in sent], origin)
    meetings = list(_meetings(lines, calls, pairs, offset))
    used = sum(len(meeting.ranks) for meeting in meetings)
    every = sum(len(found.places) for rank in calls for found in rank.values())
    return Matched(
        sorted(meetings, key=lambda meeting: float(meeting.end.max())),
        offset,
        {found.of[0] for found in pairs if found.by_ends},
        every - used if len(lines) > 1 else 0,
        [message for one in sent for message in _messages(lines, one, offset)],
    )


def chosen_calls(line: RankTimeline) -> Ints:
    """Places of the collectives that ranks meet in: not messages, and not calls without a kernel.

    Of a trace without any kernel of communication, the calls stand for them.
    """
    calls = line.trace.collectives
    names = np.array([*calls.names, ""])[calls.name] if len(calls) else np.zeros(0, dtype=str)
    keep: Bools = ~np.isin(names, MESSAGES) & (calls.group_size != 1)
    if (calls.kernel >= 0).any():
        keep &= calls.kernel >= 0
    return np.flatnonzero(keep)


def signature_of(line: RankTimeline, place: int) -> Signature:
    """What a rank called."""
    calls = line.trace.collectives
    name = calls.names[calls.name[place]]
    return Signature(name, int(calls.num_elements[place]), str(calls.dtype[place]))


def _calls(line: RankTimeline) -> dict[str, Calls]:
    calls, chosen = line.trace.collectives, chosen_calls(line)
    found = dict[str, Calls]()
    keys = np.array([group_key(line, str(name)) for name in calls.group[chosen]], dtype=object)
    for key in dict.fromkeys(keys.tolist()):
        places = chosen[keys == key]
        signatures = [signature_of(line, place) for place in places.tolist()]
        found[key] = Calls(
            places, calls.sequence[places], steps_at(line, places), calls.end[places], signatures
        )
    return found


# Clocks ------------------------------------------------------------------------------------------


def _offsets(
    lines: Sequence[RankTimeline], pairs: Sequence[Pairs], sent: Sequence[Pairs], origin: Floats
) -> Floats:
    """What to take off each rank's times: from rank to rank, along the groups that join them.

    Messages join those that nothing else does.
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


def _messages(
    lines: Sequence[RankTimeline], one: MessageExchange, offset: Floats
) -> Iterator[Meeting]:
    """The messages of one way that both ranks have."""
    group, *ranks = one.pairs.of
    for ours, theirs in zip(one.pairs.ours.tolist(), one.pairs.theirs.tolist(), strict=True):
        places = [int(one.sent.places[ours]), int(one.received.places[theirs])]
        at = [(lines[r].trace.collectives, i) for r, i in zip(ranks, places, strict=True)]
        yield Meeting(
            group=group,
            number=ours,
            ranks=np.array(ranks),
            places=np.array(places),
            signatures=tuple(signature_of(lines[r], i) for r, i in zip(ranks, places, strict=True)),
            start=np.array([float(c.start[i]) for c, i in at]) - offset[ranks],
            end=np.array([float(c.end[i]) for c, i in at]) - offset[ranks],
            size=2,
        )


def _meetings(
    lines: Sequence[RankTimeline],
    calls: Sequence[dict[str, Calls]],
    pairs: Sequence[Pairs],
    offset: Floats,
) -> Iterator[Meeting]:
    """Join the pairs of a group that share a call of its reference."""
    by_group = dict[str, list[Pairs]]()
    for found in pairs:
        by_group.setdefault(found.of[0], []).append(found)
    for group, listed in by_group.items():
        reference = listed[0].of[1]
        others = [
            (found.of[2], dict(zip(found.ours.tolist(), found.theirs.tolist(), strict=True)))
            for found in listed
        ]
        for place in range(len(calls[reference][group].places)):
            who = [(reference, place)]
            who += [(rank, theirs[place]) for rank, theirs in others if place in theirs]
            if len(who) > 1:
                yield _meeting(lines, calls, group, sorted(who), offset)


def _meeting(
    lines: Sequence[RankTimeline],
    calls: Sequence[dict[str, Calls]],
    group: str,
    who: Sequence[tuple[int, int]],
    offset: Floats,
) -> Meeting:
    ranks = np.array([rank for rank, _ in who])
    mine = [calls[rank][group] for rank in ranks.tolist()]
    places = np.array([each.places[at] for each, (_, at) in zip(mine, who, strict=True)])
    columns = [lines[rank].trace.collectives for rank in ranks.tolist()]
    at = list(zip(columns, places.tolist(), strict=True))
    size = int(at[0][0].group_size[places[0]])
    if size < 0:
        size = lines[0].trace.world_size or -1
    number = int(mine[0].sequence[who[0][1]])
    return Meeting(
        group=str(at[0][0].group[places[0]]),
        number=number if number >= 0 else who[0][1],
        ranks=ranks,
        places=places,
        signatures=tuple(each.signatures[i] for each, (_, i) in zip(mine, who, strict=True)),
        start=np.array([float(c.start[i]) for c, i in at]) - offset[ranks],
        end=np.array([float(c.end[i]) for c, i in at]) - offset[ranks],
        size=size if size > 0 else None,
    )
