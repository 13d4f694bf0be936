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

from simdp.arrays import Bools, Floats, Ints
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


# Where too many transfers share links for the event fabric ---------------------------------------


def fixed_shares(network: Network, plan: Plan, number: int) -> Floats:
    """Bandwidth of each connection of a part if every user of a link always gets an equal share.

    Exact where all who share a link use it from the same instant on to the same instant, as equal
    ranks that arrive together do.

    Parameters
    ----------
    network : Network
        Routes.
    plan : Plan
        The whole.
    number : int
        Which of ``plan.everything``.

    Returns
    -------
    ndarray, shape `(num_pairs, num_groups)`
        Bytes per second.
    """
    parts = plan.everything
    mine = network.of_part(parts[number])
    crowds = [_crowd(network, parts[number])]
    others = beside(parts)[number]
    for connections, there in alike([network.of_part(part) for part in parts]).items():
        if others & there and connections is not mine:
            which = (others & there).bit_length() - 1
            crowds.append(_crowd(network, parts[which]))
    used = np.unique(np.concatenate([links for links, _ in crowds]))
    users = np.zeros(len(used) + 1)
    for links, times in crowds:
        users[np.searchsorted(used, links)] += times
    place = np.where(mine.links >= 0, np.searchsorted(used, mine.links), len(used))
    _, bandwidth = network.cluster.link_figures(mine.links)
    share = np.where(mine.links >= 0, bandwidth / np.maximum(users[place], 1), np.inf)
    found: Floats = np.minimum(share.min(axis=-1, initial=np.inf), mine.bandwidth)
    return found


def _crowd(network: Network, part: Part) -> tuple[Ints, Ints]:
    """Links that a part uses, and how many of its transfers may be on each at a time."""
    links = network.of_part(part).links
    if part.plan.order != "rank":
        return np.unique(links[links >= 0], return_counts=True)
    rounds = [links[turn.pair] for turn in network.turns(part.plan)]
    each = [np.unique(used[used >= 0], return_counts=True) for used in rounds]
    found = np.unique(np.concatenate([used for used, _ in each]))
    most = np.zeros(len(found), dtype=np.int64)
    for used, times in each:
        place = np.searchsorted(found, used)
        most[place] = np.maximum(most[place], times)
    return found, most
