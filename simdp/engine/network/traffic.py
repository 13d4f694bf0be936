"""Traffic of collectives over links, and sharing of links.

Sharing is decided from the plans, before a run. Transfers of one connection take turns. Those of
one rank take turns too in plans with rank order, and in collectives that follow each other on the
rank's communication stream. All others may coincide; so may transfers between switches, which no
stream holds back.

Bertsekas and Gallager, "Data Networks", 1992, section 6.5.2.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np

from simdp.arrays import Bools, Floats, Ints
from simdp.collectives import Plan, SubPlan
from simdp.engine.network import Connections, NetworkRoutes
from simdp.engine.ops import ClockOp, ClockWait, Launch

# Traffic ------------------------------------------------------------------------------------------

MAX_LISTED = 16
"""Links that a result lists, the busiest first; a large cluster has a hundred thousand."""


Call = tuple[str, float]
"""A collective, and its whole buffer [bytes]."""


class LinkUse(NamedTuple):
    """Traffic over a link.

    ``nbytes`` are the run's, ``others`` those of other jobs in the same time; ``utilization`` is
    the busy fraction of the time at full bandwidth, 0 ... 1; estimates are limited to 1.
    """

    name: str
    nbytes: float
    others: float
    utilization: float


class Traffic:
    """Counts a script's collectives; the links of timed collectives are unknown.

    ``launched`` are bytes by step and plan, ``done`` bytes by plan that the first rank has waited
    for; timed collectives are in neither. ``calls`` are the numbers of each timed collective in
    each step; None with process groups.
    """

    def __init__(self) -> None:
        self.launched: dict[tuple[int, Plan], float] = {}
        self.done: dict[Plan, float] = {}
        self.timed = False
        self.calls: dict[tuple[int, Call], int] | None = {}
        self._under_way: dict[int, tuple[Plan, float]] = {}

    def watch(self, script: Iterator[ClockOp]) -> Iterator[ClockOp]:
        """Yield a script's operations while counting."""
        for op in script:
            if isinstance(op, Launch) and op.seconds is not None:
                self.timed = True
                self._count(op)
            elif isinstance(op, Launch):
                key = (op.step, op.plan)
                self.launched[key] = self.launched.get(key, 0.0) + op.nbytes
                self._under_way[op.call] = (op.plan, op.nbytes)
            yield op
            for call in op.calls if isinstance(op, ClockWait) else ():
                plan, nbytes = self._under_way.pop(call, (None, 0.0))
                if plan is not None:
                    self.done[plan] = self.done.get(plan, 0.0) + nbytes

    def _count(self, op: Launch) -> None:
        if op.groups is not None:
            self.calls = None
        elif self.calls is not None:
            key = op.step, (op.plan.collective, op.nbytes)
            self.calls[key] = self.calls.get(key, 0) + 1

    def timed_per_step(self, first: int, num_steps: int) -> dict[Call, float] | None:
        """Timed collectives of a mean step from ``first`` on; None if unknown."""
        if self.calls is None:
            return None
        counts: dict[Call, float] = {}
        for (step, call), count in self.calls.items():
            if step >= first:
                counts[call] = counts.get(call, 0.0) + count / num_steps
        return counts

    def per_step(self, first: int, num_steps: int) -> dict[Plan, float]:
        """Bytes of each plan in a mean step from ``first`` on, ``num_steps`` of them."""
        nbytes_of_plans: dict[Plan, float] = {}
        for (step, plan), nbytes in self.launched.items():
            if step >= first:
                nbytes_of_plans[plan] = nbytes_of_plans.get(plan, 0.0) + nbytes / num_steps
        return nbytes_of_plans


def link_bytes(network: NetworkRoutes, moved: Mapping[Plan, float]) -> tuple[Ints, Floats]:
    """Numbers of the used links, and the bytes over each, in descending order.

    ``moved`` are the bytes of all collectives of each plan.
    """
    links, nbytes = [np.empty(0, dtype=np.int64)], [np.empty(0)]
    for plan, total in moved.items():
        for part in plan.everything:
            c = network.of_part(part)
            chunk = total / plan.num_chunks * len(part.spread)
            crossing = chunk * _chunks_per_pair(network, part)[:, None, None]
            there = c.links >= 0
            links.append(c.links[there])
            nbytes.append(np.broadcast_to(crossing, there.shape)[there])
    used, place = np.unique(np.concatenate(links), return_inverse=True)
    link_nbytes = np.bincount(place.reshape(-1), np.concatenate(nbytes), len(used)).astype(float)
    order = np.argsort(-link_nbytes, kind="stable")
    return used[order], link_nbytes[order]


def _chunks_per_pair(network: NetworkRoutes, part: SubPlan) -> Floats:
    plan = part.plan
    if plan.order == "ring":
        return np.full(len(network.pairs(plan)), float(plan.num_rounds))
    if plan.order == "chain":
        return np.full(len(network.pairs(plan)), float(plan.num_chunks))
    total = np.zeros(len(network.pairs(plan)))
    for turn in network.turns(plan):
        np.add.at(total, turn.pair, turn.count)
    return total


Moved = tuple[NetworkRoutes, Mapping[Plan, float]]
"""A job's routes, and the bytes of all collectives of each of its plans."""


def report(
    network: NetworkRoutes,
    moved: Mapping[Plan, float],
    seconds: float,
    others: Sequence[Moved] = (),
    estimated: bool = False,
) -> dict[str, Any]:
    """Links of a result, as a dict: number of used links, and the busiest.

    Parameters are those of `link_use`.
    """
    num_links, uses = link_use(network, moved, seconds, others, estimated)
    listed = [
        {"link": use.name, "nbytes": use.nbytes, "utilization": use.utilization}
        | ({"neighbours_nbytes": use.others} if others else {})
        for use in uses
    ]
    return {
        "num_links_used": num_links,
        "bottleneck": listed[0] if listed else None,
        "links": listed,
    }


def link_use(
    network: NetworkRoutes,
    moved: Mapping[Plan, float],
    seconds: float,
    others: Sequence[Moved] = (),
    estimated: bool = False,
) -> tuple[int, list[LinkUse]]:
    """Count the used links, and list the busiest, at most `MAX_LISTED`.

    Parameters
    ----------
    network, moved
        As in `link_bytes`.
    seconds : float
        The time of the traffic, on any rank [s].
    others : sequence of (NetworkRoutes, mapping)
        Traffic of other jobs in the same time.
    estimated : bool
        Whether links were shared by rounds (`Lockstep`), of which one may begin before the last one
        is over.
    """
    links, nbytes = link_bytes(network, moved)
    beside = np.zeros(len(links))
    for theirs in others:
        used, link_nbytes = link_bytes(*theirs)
        _, mine, common = np.intersect1d(links, used, return_indices=True)
        beside[mine] += link_nbytes[common]
    _, bandwidth = network.cluster.link_figures(links)
    busy = (nbytes + beside) / bandwidth / seconds if seconds else np.zeros(len(links))
    if others or estimated:
        busy = np.minimum(busy, 1.0)
    order = np.argsort(-busy, kind="stable")[:MAX_LISTED]
    return len(links), [
        LinkUse(
            network.cluster.link_name(int(links[i])),
            float(nbytes[i]),
            float(beside[i]),
            float(busy[i]),
        )
        for i in order
    ]


# Sharing ------------------------------------------------------------------------------------------


def shared_link(network: NetworkRoutes, plans: Iterable[Plan]) -> int | None:
    """Find a link that two transfers may use at the same time.

    The plans run on every rank's one communication stream, in any order. None: no transfer's time
    depends on another one's.
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


def overtaken(part: SubPlan, connections: Connections, num_ranks: int) -> Bools:
    """Find the connections on which a collective can catch up with the one before it.

    A connection with a rank at one end is left before the rank enters the next collective.
    Transfers between switches hold no rank back, except in an all_reduce, which no rank leaves
    before all the switches' sums have come down.

    Returns
    -------
    ndarray of bool, shape `(num_pairs, num_groups)`
    """
    between = (connections.src >= num_ranks) & (connections.dst >= num_ranks)
    return between & (part.plan.collective != "all_reduce")


def _first_overtaken(network: NetworkRoutes, part: SubPlan, num_ranks: int) -> int | None:
    connections = network.of_part(part)
    links = connections.links[overtaken(part, connections, num_ranks)]
    links = links[links >= 0]
    return int(links[0]) if len(links) else None


Routed = tuple[NetworkRoutes, Sequence[Plan]]
"""A job's routes and plans."""


def common_link(first: Routed, other: Routed) -> int | None:
    """Find a link that the plans of two jobs use, or None."""
    both = np.intersect1d(_links(*first), _links(*other))
    return int(both[0]) if len(both) else None


def _links(network: NetworkRoutes, plans: Sequence[Plan]) -> Ints:
    parts = [part for plan in plans for part in plan.everything]
    used = [np.unique(network.of_part(part).links) for part in parts]
    links = np.unique(np.concatenate([np.empty(0, dtype=np.int64), *used]))
    return links[links >= 0]


def _users(network: NetworkRoutes, part: SubPlan) -> tuple[Ints, Ints, Ints]:
    """Each use of a link by a connection: link, source, destination."""
    c = network.of_part(part)
    used = c.links >= 0
    shape = used.shape
    src = np.broadcast_to(c.src[..., None], shape)[used]
    dst = np.broadcast_to(c.dst[..., None], shape)[used]
    return c.links[used], src, dst


def _repeated(links: Ints) -> int | None:
    """The link that occurs most often, if any occurs twice."""
    distinct, times = np.unique(links[links >= 0], return_counts=True)
    if not (times > 1).any():
        return None
    return int(distinct[np.argmax(times)])


def _crowded_in(network: NetworkRoutes, part: SubPlan) -> int | None:
    """Find a link that two transfers of one part may use at the same time."""
    links = network.of_part(part).links
    if part.plan.order != "rank":
        return _repeated(links)
    for turn in network.turns(part.plan):
        crowded = _repeated(links[turn.pair])
        if crowded is not None:
            return crowded
    return None  # `_without_owner` compares different rounds, as different parts


def _without_owner(users: Sequence[tuple[Ints, Ints, Ints]]) -> int | None:
    """Find a link used without a common sender and without a common receiver."""
    if not users:
        return None
    links, src, dst = (np.concatenate(column) for column in zip(*users, strict=True))
    order = np.argsort(links, kind="stable")
    links, src, dst = links[order], src[order], dst[order]
    first = np.flatnonzero(np.diff(links, prepend=-1))
    if not len(first):
        return None

    def differ(values: Ints) -> Bools:
        differs: Bools = np.maximum.reduceat(values, first) != np.minimum.reduceat(values, first)
        return differs

    both = differ(src) & differ(dst)
    return int(links[first[both][0]]) if both.any() else None


@lru_cache(maxsize=64)
def beside(parts: tuple[SubPlan, ...]) -> list[int]:
    """For each part the parts that are neither before nor after it: bit i stands for part i.

    Integers as sets, since a plan of a thousand slices has millions of such pairs.
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
    """Map each key to its positions: bit i stands for position i."""
    places: dict[Key, int] = {}
    for place, key in enumerate(keys):
        places[key] = places.get(key, 0) | 1 << place
    return places


def meeting(parts: tuple[SubPlan, ...], keys: Sequence[Key]) -> list[tuple[Key, Key]]:
    """Pairs of keys, one key per part, of which some parts run at the same time."""
    places, pairs = alike(keys), dict[tuple[Key, Key], None]()
    for key, others in zip(keys, beside(parts), strict=True):
        for other, there in places.items() if others else ():
            if others & there:
                pairs[key, other] = None
    return list(pairs)


def _crowded_between(network: NetworkRoutes, parts: tuple[SubPlan, ...]) -> int | None:
    """Find a link that two concurrent parts of a plan use."""
    for first, other in meeting(parts, [network.of_part(part) for part in parts]):
        both = np.intersect1d(first.links[first.links >= 0], other.links[other.links >= 0])
        if len(both):
            return int(both[0])
    return None


# Fairness -----------------------------------------------------------------------------------------

SAME = 1e-12
"""Instants and rates closer than this fraction are the same."""


def fair_rates(links: Ints, capacity: Floats) -> Floats:
    """Max-min fair rates of flows [bytes/s], shape `(num_flows,)`.

    Links fill up together: in every pass each flow requests its narrowest link's equal share; a
    link where every flow requests that link's own share is full, and its flows are settled.

    Parameters
    ----------
    links : ndarray, shape `(longest, num_flows)`
        The links of each flow, as positions in ``capacity``; padded with position 0.
    capacity : ndarray, shape `(num_links + 1,)`
        Bandwidth of each link [bytes/s]; the first one is infinite and stands for no link.
    """
    num_links, num_flows = len(capacity), links.shape[1]
    rates = np.empty(num_flows)
    active, left = np.arange(num_flows), capacity
    while True:
        share = left / np.maximum(_count(links, num_links), 1)
        demand = narrowest(links, share)
        load = load_of(links, demand, num_links)
        settled = on_full_link(links, load >= left * (1 - SAME))
        if settled.all():
            rates[active] = demand
            return rates
        rates[active[settled]] = demand[settled]
        taken = load_of(links[:, settled], demand[settled], num_links)
        taken[0] = 0.0
        left = np.maximum(left - taken, 0.0)
        active, links = active[~settled], links[:, ~settled]


FEW_LINKS = 3
"""Links of a route up to which a loop over them is faster than one pass over all at once."""


def _count(links: Ints, num_links: int) -> Ints:
    """Number of flows on each link."""
    return np.bincount(links.reshape(-1), minlength=num_links)


def narrowest(links: Ints, share: Floats) -> Floats:
    """The smallest share along each route."""
    narrowest_share: Floats = (
        share.take(links[0]) if len(links) <= FEW_LINKS else share[links].min(axis=0)
    )
    for row in links[1:] if len(links) <= FEW_LINKS else ():
        np.minimum(narrowest_share, share.take(row), out=narrowest_share)
    return narrowest_share


def load_of(links: Ints, rates: Floats, num_links: int) -> Floats:
    """Load of flows with some rates on each link."""
    if len(links) > FEW_LINKS:
        flow_rates = rates[np.newaxis].repeat(len(links), axis=0).ravel()
        return np.bincount(links.reshape(-1), flow_rates, num_links).astype(np.float64, copy=False)
    load = np.bincount(links[0], rates, num_links).astype(np.float64, copy=False)
    for row in links[1:]:
        load += np.bincount(row, rates, num_links)
    return load


def on_full_link(links: Ints, full: Bools) -> Bools:
    """Whether any link of a route is full."""
    if len(links) > FEW_LINKS:
        anywhere: Bools = np.logical_or.reduce(full[links])
        return anywhere
    is_full: Bools = full.take(links[0])
    for row in links[1:]:
        is_full |= full.take(row)
    return is_full


SAME_INSTANT = 1e-9
"""Instants closer than this fraction of the time since the begin of the round are equal."""

REPEATING = ("ring", "chain")
"""Orders of plans with equal rounds."""

BUDGET = 10_000_000
"""Flow links per resharing as flows end, about a second of work; beyond it rates stay fixed."""

MAX_KEPT = 64
"""Parts and sizes with kept times."""


class Frame(NamedTuple):
    """Transfers of a round that begin together: places in the round, connections, and chunks."""

    at: Ints
    pair: Ints
    chunks: Ints


class Lockstep:
    """Times of the transfers of one plan, if all its rounds run in lockstep on shared links."""

    def __init__(self, network: NetworkRoutes, plan: Plan) -> None:
        self.network, self.parts = network, plan.everything
        self._depth: list[int] = []
        for part in self.parts:
            self._depth.append(max((self._depth[i] + 1 for i in part.after), default=0))
        self._known: dict[tuple[object, ...], list[Floats]] = {}
        self._frames: dict[Plan, list[list[Frame]]] = {}

    def times(self, number: int, chunk_nbytes: float) -> list[Floats]:
        """Durations of a part's transfers by round, latency included [s].

        Shape `(num_transfers, num_groups)` each; one entry for a ring or a chain, which repeat one
        round. ``chunk_nbytes`` is one chunk of the whole plan.
        """
        same = [i for i, depth in enumerate(self._depth) if depth == self._depth[number]]
        beside = [self.parts[i] for i in sorted(same, key=lambda i: i != number)]
        key = (chunk_nbytes, *((part.plan, id(part.members), len(part.spread)) for part in beside))
        if key not in self._known:
            if len(self._known) >= MAX_KEPT:
                self._known.clear()
            everything = [
                [self._at(part.plan, place) for part in beside]
                for place in range(len(self._rounds(beside[0].plan)))
            ]
            # Most rounds of a pipeline are equal.
            keys = [
                b"|".join(
                    column.tobytes() for frames in rounds for frame in frames for column in frame
                )
                for rounds in everything
            ]
            rounds_by_key = dict(zip(keys, everything, strict=True))
            times_by_key = {
                here: self._of_round(beside, rounds, chunk_nbytes, BUDGET // len(rounds_by_key))
                for here, rounds in rounds_by_key.items()
            }
            self._known[key] = [times_by_key[here] for here in keys]
        return self._known[key]

    def _rounds(self, plan: Plan) -> list[list[Frame]]:
        """The frames of each round, those that are first on their connections first."""
        if plan not in self._frames:
            if plan.order in REPEATING:
                every = np.arange(len(self.network.pairs(plan)))
                self._frames[plan] = [[Frame(every, every, np.ones_like(every))]]
            else:
                self._frames[plan] = [
                    [
                        Frame(at, turn.pair[at], np.broadcast_to(turn.count, turn.pair.shape)[at])
                        for at in turn.in_line
                    ]
                    for turn in self.network.turns(plan)
                ]
        return self._frames[plan]

    def _at(self, plan: Plan, place: int) -> list[Frame]:
        """A plan's frames in a round: in all rounds of a ring the same; none after the last."""
        rounds = self._rounds(plan)
        place = 0 if plan.order in REPEATING else place
        return rounds[place] if place < len(rounds) else []

    def _of_round(
        self, beside: list[SubPlan], rounds: list[list[Frame]], chunk_nbytes: float, budget: int
    ) -> Floats:
        """Times of a round of the first part, while the others run theirs."""
        num_groups = len(beside[0].members)
        times = np.empty((sum(len(frame.at) for frame in rounds[0]), num_groups))
        for line, frame in enumerate(rounds[0]):
            together = [
                (part, of_part[line])
                for part, of_part in zip(beside, rounds, strict=True)
                if line < len(of_part)
            ]
            durations = self._together(together, chunk_nbytes, budget)
            times[frame.at] = durations[: len(frame.at) * num_groups].reshape(-1, num_groups)
        return times

    def _together(
        self, frames: list[tuple[SubPlan, Frame]], chunk_nbytes: float, budget: int
    ) -> Floats:
        """Times of the transfers of some frames, one frame after the other, group by group."""
        connections = [self.network.of_part(part) for part, _ in frames]
        longest = max(c.links.shape[-1] for c in connections)
        columns = []
        for (part, frame), c in zip(frames, connections, strict=True):
            links = c.links[frame.pair].reshape(-1, c.links.shape[-1])
            padding = ((0, 0), (0, longest - links.shape[1]))
            nbytes = np.repeat(frame.chunks * (len(part.spread) * chunk_nbytes), c.src.shape[1])
            alpha, bandwidth = (of[frame.pair].reshape(-1) for of in (c.alpha, c.bandwidth))
            columns.append((np.pad(links, padding, constant_values=-1), nbytes, alpha, bandwidth))
        links, nbytes, alpha, bandwidth = map(np.concatenate, zip(*columns, strict=True))
        used, places = np.unique(links, return_inverse=True)
        capacity = np.where(used >= 0, self.network.cluster.link_figures(used)[1], np.inf)
        places = places.reshape(links.shape).T
        # A connection slower than its links gets an additional link of its own.
        slower = np.flatnonzero(bandwidth < capacity[places].min(axis=0))
        own = np.zeros((1, len(nbytes)), dtype=np.int64)
        own[0, slower] = 1 + len(used) + np.arange(len(slower))
        capacity = np.concatenate([[np.inf], capacity, bandwidth[slower]])
        links = np.concatenate([1 + places, own])
        return _ends(links, capacity, nbytes, alpha, max(budget // links.size, 1))


def _ends(links: Ints, capacity: Floats, nbytes: Floats, alpha: Floats, times: int) -> Floats:
    """Ends of flows that share links max-min fairly, each from the end of its latency on [s].

    ``links`` and ``capacity`` are as in `fair_rates`; links are shared again up to ``times`` times,
    then each flow keeps its rate.
    """
    end, left = alpha.copy(), nbytes.copy()
    active, now = np.flatnonzero(nbytes * np.isfinite(capacity[links].min(axis=0))), 0.0
    while len(active):
        now = max(now, float(alpha[active].min()))
        begun = (alpha[active] <= now * (1 + SAME_INSTANT)) | (times == 1)
        here = active[begun]
        rate = fair_rates(links[:, here], capacity)
        needs = left[here] / rate
        if times == 1:
            end[here] = np.maximum(end[here], now) + needs
            break
        passed = min(needs.min(), alpha[active[~begun]].min(initial=np.inf) - now)
        left[here] -= rate * passed
        now += passed
        over = needs <= passed + SAME_INSTANT * now
        end[here[over]] = now
        active = np.concatenate([active[~begun], here[~over]])
        times -= 1
    return end
