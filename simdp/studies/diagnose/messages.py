"""Matches sends and receives of two ranks by pair and order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simdp.arrays import Floats, Ints
from simdp.studies.diagnose.pairing import Calls, Pairs, Signature, paired
from simdp.studies.diagnose.timeline import RankTimeline

MESSAGES = ("send", "recv")
"""They have two ranks, and are no meetings."""


class MessagePath(NamedTuple):
    """Senders and receivers of messages in a group."""

    group: str
    source: int
    target: int


class MessageExchange(NamedTuple):
    """All messages of one way.

    Attributes
    ----------
    sent, received : Calls
        Of the two ranks.
    pairs : Pairs
        Which of them are the same.
    """

    sent: Calls
    received: Calls
    pairs: Pairs


def exchanges(lines: Sequence[RankTimeline], origin: Floats) -> list[MessageExchange]:
    """Put the messages of ranks together; those whose peer is not known, or not there, are alone.

    Parameters
    ----------
    lines : sequence of Timeline
        Of ranks of one job.
    origin : ndarray, shape `(num_ranks,)`
        How their clocks differ, as the files say [s].
    """
    places = {line.trace.rank: place for place, line in enumerate(lines)}
    ways = [_ways(line) for line in lines]
    found = []
    for place, line in enumerate(lines):
        for way, sent in ways[place]["send"].items():
            other = places.get(way.target)
            if way.source != line.trace.rank or other is None:
                continue
            received = ways[other]["recv"].get(way)
            if received is not None:
                apart = float(origin[place] - origin[other])
                pairs = paired(sent, received, apart, (way.group, place, other))
                found.append(MessageExchange(sent, received, pairs))
    return found


def _ways(line: RankTimeline) -> dict[str, dict[MessagePath, Calls]]:
    """A rank's messages by their way."""
    calls, rank = line.trace.collectives, line.trace.rank
    found: dict[str, dict[MessagePath, Calls]] = {name: {} for name in MESSAGES}
    if rank is None or not len(calls):
        return found
    names = np.array(calls.names)[calls.name]
    for name in MESSAGES:
        mine = np.flatnonzero((names == name) & (calls.peer >= 0))
        peers = [_global(line, str(calls.group[i]), int(calls.peer[i])) for i in mine.tolist()]
        keys = [group_key(line, str(group)) for group in calls.group[mine]]
        ends = [(rank, peer) if name == "send" else (peer, rank) for peer in peers]
        ways = [MessagePath(key, *pair) for key, pair in zip(keys, ends, strict=True)]
        for way in dict.fromkeys(ways):
            places = mine[[one == way for one in ways]]
            found[name][way] = Calls(
                places,
                np.full(len(places), -1),
                steps_at(line, places),
                calls.end[places],
                [Signature("message", -1, "")] * len(places),
            )
    return found


def _global(line: RankTimeline, group: str, peer: int) -> int:
    """A rank of the job by its number in a group."""
    known = line.trace.groups.get(group)
    if known is None or known.ranks is None or peer >= len(known.ranks):
        return peer
    return known.ranks[peer]


def group_key(line: RankTimeline, name: str) -> str:
    """Groups of one name and different ranks, as a mesh makes them, are different groups."""
    group = line.trace.groups.get(name)
    if group is None or group.ranks is None:
        return name
    return f"{name} of {','.join(map(str, group.ranks))}"


def steps_at(line: RankTimeline, places: Ints) -> Ints:
    """Numbers of the steps in which collectives were called; -1 outside of all."""
    step = line.trace.collectives.step[places]
    if not len(line.trace.steps):
        return np.full(len(places), -1)
    return np.where(step >= 0, line.number[np.maximum(step, 0)], -1)
