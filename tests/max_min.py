"""An independent simulator of transfers that share links max-min fairly, in plain Python.

Written from the definition alone, to check clocks against: it shares no code with them and is
slow. A transfer begins when everything that it comes after is over and its own instant has come.
It pays the latency of its route first; then its bytes flow, at its max-min fair rate, which is
found anew at every instant at which bytes begin or cease to flow.

`fair_rates` fills all links progressively: all rates grow alike until a link is full, whose flows
stay at that rate, and the others go on (Bertsekas and Gallager, "Data Networks", 1992, 6.5.2).
"""

from collections import defaultdict
from math import inf
from typing import NamedTuple

import numpy as np

SAME = 1e-11
"""Instants that are closer than this part of the clock are one; rounding parts them."""


class Transfer(NamedTuple):
    """Bytes that take one route.

    ``links`` are the links of the route by any names, ``alpha`` is its latency [s]; the transfer
    begins at ``begin`` [s] or later, ``after`` all those of these numbers are over. ``limit`` is
    a rate that it never exceeds [bytes/s].
    """

    links: tuple
    alpha: float
    nbytes: float
    begin: float = 0.0
    after: tuple = ()
    limit: float = inf


def fair_rates(flows, capacity):
    """Max-min fair rates of flows, which are ``(links, limit)``; capacities by link [bytes/s]."""
    rates, level = {}, 0.0
    left = dict(capacity)
    while len(rates) < len(flows):
        growing = [number for number in range(len(flows)) if number not in rates]
        users = defaultdict(int)
        for number in growing:
            for link in flows[number][0]:
                users[link] += 1
        rises = {link: left[link] / count for link, count in users.items()}
        limits = [flows[number][1] - level for number in growing]
        rise = min([*rises.values(), *limits])
        level += rise
        for link, count in users.items():
            left[link] -= rise * count
        full = {link for link, each in rises.items() if each <= rise * (1 + SAME)}
        for number in growing:
            links, limit = flows[number]
            if full.intersection(links) or limit <= level * (1 + SAME):
                rates[number] = level
    return [rates[number] for number in range(len(flows))]


def ends(transfers, capacity):
    """When each transfer is over [s]; capacities by link [bytes/s]."""
    missing = [len(transfer.after) for transfer in transfers]
    behind = defaultdict(list)
    for number, transfer in enumerate(transfers):
        for before in transfer.after:
            behind[before].append(number)
    over, timers, left, rate = {}, {}, {}, {}
    now = 0.0

    def begin(number, instant):
        timers[number] = max(instant, transfers[number].begin) + transfers[number].alpha

    def finish(number):
        over[number] = now
        for follower in behind[number]:
            missing[follower] -= 1
            if not missing[follower]:
                begin(follower, now)

    for number, count in enumerate(missing):
        if not count:
            begin(number, 0.0)
    while timers or left:
        flowing = [now + left[number] / rate[number] for number in left]
        following = min([*timers.values(), *flowing])
        reach = following * (1 + SAME)
        done = [number for number, end in zip(left, flowing, strict=True) if end <= reach]
        for number in left:
            left[number] -= rate[number] * (following - now)
        now = following
        for number in done:
            del left[number]
            finish(number)
        while due := [number for number, instant in timers.items() if instant <= reach]:
            for number in due:
                del timers[number]
                if transfers[number].nbytes and transfers[number].links:
                    left[number] = transfers[number].nbytes
                else:
                    finish(number)
        numbers = list(left)
        flows = [(transfers[number].links, transfers[number].limit) for number in numbers]
        rate = dict(zip(numbers, fair_rates(flows, capacity), strict=True))
    assert len(over) == len(transfers), "transfers wait for each other in a circle"
    return [over[number] for number in range(len(transfers))]


# Collectives ------------------------------------------------------------------------------------


def transfers_of(plan, nbytes, enter, route, first=0, behind=()):
    """The transfers of a collective, in the order that the contract of a plan imposes on them.

    ``enter`` says when each rank enters [s], and ``route(src, dst)`` gives links, latency [s] and
    limit [bytes/s] of a connection. Transfers are numbered from ``first`` on. A rank does not enter
    before those of the transfers ``behind`` it are over that it sends or receives: their numbers,
    each with its two vertices. Returns the transfers, and the two vertices of each.
    """
    found, vertices = [], []
    earlier_of = defaultdict(list)
    for number, pair in behind:
        for vertex in pair:
            earlier_of[vertex].append(number)
    parts, of_part = plan.everything, []
    chunk_nbytes = nbytes / plan.num_chunks
    for part in parts:
        before = sorted(_ancestors(parts, part))
        touching = defaultdict(list)
        for number in (number for earlier in before for number in of_part[earlier]):
            for vertex in vertices[number - first]:
                touching[vertex].append(number)
        mine = []
        for members in part.members.tolist():
            for src, dst, count, after in _in_order(part.plan, first + len(found)):
                src, dst = members[src], members[dst]
                entered = [enter[v] for v in (src, dst) if v < plan.world_size]
                links, alpha, limit = route(src, dst)
                size = chunk_nbytes * len(part.spread) * count
                after = {*after, *touching[src], *touching[dst], *earlier_of[src], *earlier_of[dst]}
                mine.append(first + len(found))
                found.append(
                    Transfer(links, alpha, size, max(entered, default=0.0), tuple(after), limit)
                )
                vertices.append((src, dst))
        of_part.append(mine)
    return found, vertices


def _ancestors(parts, part):
    """The numbers of all parts that come before a part."""
    return {*part.after}.union(*(_ancestors(parts, parts[number]) for number in part.after))


def _in_order(plan, first):
    """Source, destination, number of chunks and predecessors of the transfers of a simple plan."""
    last_on, landed, number = {}, defaultdict(list), first
    for turn in plan.rounds():
        lands = []
        counts = np.broadcast_to(turn.num_chunks, turn.src.shape).tolist()
        to = turn.chunk if turn.to is None else turn.to
        channels = np.broadcast_to(turn.channel, turn.src.shape).tolist()
        ends, chunks = (turn.src.tolist(), turn.dst.tolist()), (turn.chunk.tolist(), to.tolist())
        columns = (*ends, channels, *chunks, counts)
        for src, dst, channel, chunk, where, count in zip(*columns, strict=True):
            if plan.order == "rank":
                leaves = arrives = [src, dst]
            else:
                leaves = [(src, chunk + k * turn.stride) for k in range(count)]
                arrives = [(dst, where + k * turn.stride) for k in range(count)]
            after = {before for place in leaves for before in landed[place]}
            if (src, dst, channel) in last_on:
                after.add(last_on[src, dst, channel])
            last_on[src, dst, channel] = number
            lands.append((arrives, number))
            yield src, dst, count, after
            number += 1
        for arrives, done in lands:  # a round sees what came in earlier ones only
            for place in arrives:
                landed[place].append(done)


def rank_ends(vertices, over, enter):
    """When each rank is through with a collective: with all that it sends and receives [s]."""
    found = list(enter)
    for pair, end in zip(vertices, over, strict=True):
        for vertex in pair:
            if vertex < len(found):
                found[vertex] = max(found[vertex], end)
    return found


# Networks ---------------------------------------------------------------------------------------


def network_of(cluster):
    """The links of a cluster: ``route(src, dst)``, and the capacity of each link."""
    every = np.arange(cluster.num_links)
    capacity = dict(enumerate(cluster.link_figures(every)[1].tolist()))
    known = {}

    def route(src, dst):
        if src == dst:
            return (), 0.0, inf
        if (src, dst) not in known:
            links = cluster.routes(np.array([src]), np.array([dst]))[0]
            links = links[links >= 0]
            alpha, bandwidth = cluster.link_figures(links)
            stages = np.cumsum(cluster.begins_stage(links))
            slowest = [bandwidth[stages == stage].min() for stage in np.unique(stages)]
            limit = 1 / sum(1 / each for each in slowest) if len(slowest) > 1 else inf
            known[src, dst] = tuple(links.tolist()), float(alpha.sum()), limit
        return known[src, dst]

    return route, capacity


def collective_ends(cluster, plan, nbytes, enter):
    """When each rank is through with a collective that nothing else is beside [s]."""
    route, capacity = network_of(cluster)
    transfers, vertices = transfers_of(plan, nbytes, enter, route)
    return rank_ends(vertices, ends(transfers, capacity), enter)
