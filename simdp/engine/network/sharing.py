"""Sharing: whether transfers of some plans can ever be on one link at the same time.

Decided from the plans alone, before anything runs. Transfers of one connection take turns. Those of
one rank take turns too where the plan takes it round by round, and in collectives that follow each
other on the rank's communication stream. Everything else may coincide; so may what switches hand on
to each other, whom no stream holds back.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import lru_cache
from typing import TypeVar

import numpy as np

from simdp.arrays import Bools, Ints
from simdp.collectives import Part, Plan
from simdp.engine.network import Connections, Network


def shared_link(network: Network, plans: Iterable[Plan]) -> int | None:
    """Find a link that two transfers may use at the same time.

    Parameters
    ----------
    network : Network
        Routes.
    plans : iterable of Plan
        What every rank's one communication stream takes, in any order.

    Returns
    -------
    int or None
        A link of the cluster, or None: then no transfer's time depends on another one's.
    """
    users: list[tuple[Ints, Ints, Ints]] = []
    for plan in plans:
        for part in plan.everything:
            crowded = _crowded_in(network, part)
            if crowded is not None:
                return crowded
            users.append(_users(network, part))
            crowded = _first_overtaken(network, part, plan.world_size)
            if crowded is not None:
                return crowded
        crowded = _crowded_between(network, plan.everything)
        if crowded is not None:
            return crowded
    return _without_owner(users)


def overtaken(part: Part, connections: Connections, num_ranks: int) -> Bools:
    """Tell on which connections a collective can catch up with the one before it.

    A connection with a rank at one end is left before the rank enters the next collective. What
    switches still hand on to each other holds no rank back, except in an all_reduce: that no rank
    leaves before all the switches' sums have come down.

    Parameters
    ----------
    part : Part
        Of a plan.
    connections : Connections
        Of the part.
    num_ranks : int
        Vertices from here on are switches.

    Returns
    -------
    ndarray of bool, shape `(num_pairs, num_groups)`
    """
    between = (connections.src >= num_ranks) & (connections.dst >= num_ranks)
    return between & (part.plan.collective != "all_reduce")


def _first_overtaken(network: Network, part: Part, num_ranks: int) -> int | None:
    connections = network.of_part(part)
    links = connections.links[overtaken(part, connections, num_ranks)]
    links = links[links >= 0]
    return int(links[0]) if len(links) else None


Routed = tuple[Network, Sequence[Plan]]
"""The plans of a job, and what routes them."""


def common_link(one: Routed, other: Routed) -> int | None:
    """Find a link that the plans of two jobs use, or None."""
    both = np.intersect1d(_links(*one), _links(*other))
    return int(both[0]) if len(both) else None


def _links(network: Network, plans: Sequence[Plan]) -> Ints:
    parts = [part for plan in plans for part in plan.everything]
    used = [np.unique(network.of_part(part).links) for part in parts]
    links = np.unique(np.concatenate([np.empty(0, dtype=np.int64), *used]))
    return links[links >= 0]


def _users(network: Network, part: Part) -> tuple[Ints, Ints, Ints]:
    """Each use of a link by a connection: link, source, destination."""
    c = network.of_part(part)
    used = c.links >= 0
    shape = used.shape
    src = np.broadcast_to(c.src[..., None], shape)[used]
    dst = np.broadcast_to(c.dst[..., None], shape)[used]
    return c.links[used], src, dst


def _repeated(links: Ints) -> int | None:
    """The link that occurs most often, if any does twice."""
    found, times = np.unique(links[links >= 0], return_counts=True)
    if not (times > 1).any():
        return None
    return int(found[np.argmax(times)])


def _crowded_in(network: Network, part: Part) -> int | None:
    """Find a link that two transfers of one part may use at the same time."""
    links = network.of_part(part).links
    if part.plan.order != "rank":
        return _repeated(links)
    for turn in network.turns(part.plan):
        crowded = _repeated(links[turn.pair])
        if crowded is not None:
            return crowded
    return None  # transfers of different rounds are looked at as those of different parts are


def _without_owner(users: Sequence[tuple[Ints, Ints, Ints]]) -> int | None:
    """Find a link whose uses have no rank in common that sends, or receives, them all."""
    if not users:
        return None
    links, src, dst = (np.concatenate(column) for column in zip(*users, strict=True))
    order = np.argsort(links, kind="stable")
    links, src, dst = links[order], src[order], dst[order]
    first = np.flatnonzero(np.diff(links, prepend=-1))
    if not len(first):
        return None

    def differ(values: Ints) -> Bools:
        found: Bools = np.maximum.reduceat(values, first) != np.minimum.reduceat(values, first)
        return found

    both = differ(src) & differ(dst)
    return int(links[first[both][0]]) if both.any() else None


@lru_cache(maxsize=64)
def beside(parts: tuple[Part, ...]) -> list[int]:
    """For each part those that neither come before it nor after it: bit i stands for part i.

    Numbers as sets, since a plan of a thousand slices has millions of such pairs.
    """
    earlier, later = [0] * len(parts), [0] * len(parts)
    for number, part in enumerate(parts):
        for before in part.after:
            earlier[number] |= earlier[before] | 1 << before
    for number, part in reversed(list(enumerate(parts))):
        for before in part.after:
            later[before] |= later[number] | 1 << number
    everyone = (1 << len(parts)) - 1
    return [
        everyone & ~(e | f | 1 << i) for i, (e, f) in enumerate(zip(earlier, later, strict=True))
    ]


Key = TypeVar("Key", bound=Hashable)


def alike(keys: Iterable[Key]) -> dict[Key, int]:
    """For each key the places where it stands: bit i stands for place i."""
    found: dict[Key, int] = {}
    for place, key in enumerate(keys):
        found[key] = found.get(key, 0) | 1 << place
    return found


def meeting(parts: tuple[Part, ...], keys: Sequence[Key]) -> list[tuple[Key, Key]]:
    """Pairs of keys, one for each part, of which some parts run at the same time."""
    places, found = alike(keys), dict[tuple[Key, Key], None]()
    for key, others in zip(keys, beside(parts), strict=True):
        for other, there in places.items() if others else ():
            if others & there:
                found[key, other] = None
    return list(found)


def _crowded_between(network: Network, parts: tuple[Part, ...]) -> int | None:
    """Find a link that two concurrent parts of a plan use."""
    for one, other in meeting(parts, [network.of_part(part) for part in parts]):
        both = np.intersect1d(one.links[one.links >= 0], other.links[other.links >= 0])
        if len(both):
            return int(both[0])
    return None
