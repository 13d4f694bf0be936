"""Network: a cluster's routes as arrays, for the connections that plans use."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simdp.arrays import Floats, Ints
from simdp.cluster import Cluster
from simdp.cluster.stragglers import DegradedLink
from simdp.collectives import Plan, SubPlan
from simdp.errors import ScenarioError
from simdp.rng import stream

Active = tuple[bool, ...]
"""Flags of the intermittent degraded links: degraded or not."""


class Conditions:
    """Conditions of a cluster's links that change over the steps; the seed draws their phases."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self._cluster = cluster
        self._changing = [
            (straggler, float(stream(seed, "straggler", number, "lasting").random()))
            for number, straggler in enumerate(cluster.stragglers)
            if isinstance(straggler, DegradedLink) and straggler.comes_and_goes()
        ]

    def active(self, step: int) -> Active:
        """Flags of the links that are degraded in a step; empty if none is."""
        states = tuple(link.is_on(step, phase) for link, phase in self._changing)
        return states if any(states) else ()

    def cluster(self, active: Active) -> Cluster:
        """The cluster in which the flagged links are always degraded, and the others never."""
        changing = [link for link, _ in self._changing]
        kept = [link for link in self._cluster.stragglers if link not in changing]
        now = [link.made_lasting() for link, on in zip(changing, active, strict=True) if on]
        return self._cluster.model_copy(update={"stragglers": [*kept, *now]})


# NetworkRoutes ------------------------------------------------------------------------------------

MAX_ROUTE_LINKS = 50_000_000
"""Links of all routes of a part, 400 MB."""

NUM_SAMPLED = 64
"""Routes that are sampled to judge the length of a part's."""

MAX_KEPT_TRANSFERS = 2_000_000
"""Transfers of rounds that are kept for the next collective, some 100 MB."""


@dataclass(frozen=True, eq=False)
class Connections:
    """Ordered pairs of vertices that exchange chunks in the groups of a part, and their routes.

    Each channel between two vertices is a pair of its own.
    """

    places: Ints
    """The pairs, as places in a group: source, destination, and the channel between them; shape
    `(num_pairs, 3)`."""
    src: Ints
    """The same as vertices of the cluster; shape `(num_pairs, num_groups)`."""
    dst: Ints
    """The same as vertices of the cluster; shape `(num_pairs, num_groups)`."""
    links: Ints
    """Link numbers of each route, padded with -1; shape `(num_pairs, num_groups, longest)`."""
    alpha: Floats
    """Sum of the links' latencies [s]; shape `(num_pairs, num_groups)`."""
    bandwidth: Floats
    """Bandwidth of the uncontended route [bytes/s]; shape `(num_pairs, num_groups)`."""


@dataclass(frozen=True, eq=False)
class RoundTransfers:
    """A round of a plan, prepared for a clock."""

    pair: Ints
    """Index of each transfer's connection in `Connections.places`; its places."""
    src: Ints
    """Index of each transfer's connection in `Connections.places`; its places."""
    dst: Ints
    """Index of each transfer's connection in `Connections.places`; its places."""
    chunk: Ints
    """First chunk of each transfer, at its source and at its destination; number of chunks, and
    their distance."""
    to: Ints
    """First chunk of each transfer, at its source and at its destination; number of chunks, and
    their distance."""
    count: int | Ints
    """First chunk of each transfer, at its source and at its destination; number of chunks, and
    their distance."""
    stride: int
    """First chunk of each transfer, at its source and at its destination; number of chunks, and
    their distance."""
    in_line: list[Ints]
    """Positions of the transfers that are first on their connections in this round, then of those
    that are second, ..."""
    once: bool
    """Whether every rank sends at most once and receives at most once."""


class NetworkRoutes:
    """Routes of one cluster, or of one job's ranks in it.

    ``vertices`` are the cluster's vertices of the job's ranks and switches, by default all;
    ``seed`` draws when flapping links are degraded; ``first_step`` is the step of the run that the
    clocks call 0.
    """

    def __init__(self, cluster: Cluster, vertices: Ints | None = None, seed: int = 0) -> None:
        self.cluster, self.vertices, self.first_step = cluster, vertices, 0
        self._conditions = Conditions(cluster, seed)
        self._at: dict[Active, NetworkRoutes] = {}
        self._pairs: dict[Plan, Ints] = {}
        self._turns: dict[Plan, list[RoundTransfers]] = {}
        self._of_part: dict[tuple[Plan, int], tuple[Ints, Connections]] = {}

    def at(self, step: int) -> NetworkRoutes:
        """The same routes with the links' figures in a step."""
        active = self._conditions.active(step + self.first_step if step >= 0 else step)
        if not active:
            return self
        if active not in self._at:
            there = self._at[active] = NetworkRoutes(
                self._conditions.cluster(active), self.vertices
            )
            there._pairs, there._turns = self._pairs, self._turns
        return self._at[active]

    def connect(self, src: Ints, dst: Ints) -> tuple[Ints, Floats, Floats]:
        """Route pairs of vertices.

        A rank reaches itself in no time. A store-and-forward route, such as one through host
        memory, takes the time of all its stages: ``1 / bandwidth`` is their sum.

        Returns
        -------
        (ndarray, ndarray, ndarray)
            Links, padded with -1, shape `(num_pairs, longest)`; alpha [s]; bandwidth [bytes/s].
        """
        if self.vertices is not None:
            src, dst = self.vertices[src], self.vertices[dst]
        apart = src != dst
        if apart.all():
            links = self.cluster.routes(src, dst)
        else:
            routes = self.cluster.routes(src[apart], dst[apart])
            links = np.full((len(src), routes.shape[1]), -1, dtype=np.int64)
            links[apart] = routes
        alpha, bandwidth = self.cluster.link_figures(links)
        there = links >= 0
        alpha = np.where(there, alpha, 0.0).sum(axis=1)
        beta = 1.0 / np.where(there, bandwidth, np.inf)
        stages = np.cumsum(self.cluster.begins_stage(links) & there, axis=1)
        total = np.zeros(len(src))
        for stage in range(int(stages.max(initial=0)) + 1):
            total += np.where(stages == stage, beta, 0.0).max(axis=1, initial=0.0)
        with np.errstate(divide="ignore"):
            return links, alpha, 1.0 / total

    def pairs(self, plan: Plan) -> Ints:
        """Connections of places in a plan: source, destination, channel; shape `(num_pairs, 3)`.

        Those of a ring or a chain in the order in which chunks pass them, others sorted.
        """
        if plan not in self._pairs:
            self._pairs[plan] = _find_pairs(plan)
        return self._pairs[plan]

    def of_part(self, part: SubPlan) -> Connections:
        """Connections of a part, in all its groups."""
        key = (part.plan, id(part.members))
        if key not in self._of_part:
            places = self.pairs(part.plan)
            src, dst = part.members.T[places[:, 0]], part.members.T[places[:, 1]]
            self._check_length(part, src.reshape(-1), dst.reshape(-1))
            links, alpha, bandwidth = self.connect(src.reshape(-1), dst.reshape(-1))
            connections = Connections(
                places,
                src,
                dst,
                links.reshape(*src.shape, links.shape[1]),
                alpha.reshape(src.shape),
                bandwidth.reshape(src.shape),
            )
            self._of_part[key] = (part.members, connections)  # keeping the array keeps its id valid
        return self._of_part[key][1]

    def _check_length(self, part: SubPlan, src: Ints, dst: Ints) -> None:
        """Reject connections with routes that would exceed the memory, judged by a sample."""
        some = np.flatnonzero(src != dst)[:: max(len(src) // NUM_SAMPLED, 1)]
        longest = self.connect(src[some], dst[some])[0].shape[1] if len(some) else 0
        if longest * len(src) > MAX_ROUTE_LINKS:
            raise ScenarioError(
                [
                    f"collectives.{part.plan.collective}: {len(src):,} connections over routes of "
                    f"up to {longest:,} links do not fit in memory; use an algorithm between "
                    "neighbours, such as ring, or a topology with short routes, such as switch."
                ]
            )

    def turns(self, plan: Plan) -> list[RoundTransfers]:
        """The rounds of a plan other than a ring, with their connections."""
        if plan not in self._turns:
            v, pairs = plan.num_vertices, self.pairs(plan)
            most = int(pairs[:, 2].max(initial=0)) + 1
            numbers = (pairs[:, 0] * v + pairs[:, 1]) * most + pairs[:, 2]
            order = np.argsort(numbers)
            turns = self._turns[plan] = []
            for src, dst, chunk, _, to, count, stride, channel in plan.rounds():
                number = (src * v + dst) * most + channel
                pair = order[np.searchsorted(numbers, number, sorter=order)]
                lands = chunk if to is None else to
                line, once = _in_line(pair), _once(src) and _once(dst)
                turns.append(
                    RoundTransfers(pair, src, dst, chunk, lands, count, stride, line, once)
                )
            self._forget_turns(plan)
        return self._turns[plan]

    def _forget_turns(self, kept: Plan) -> None:
        """Drop the rounds of other plans, the oldest first, above `MAX_KEPT_TRANSFERS`."""
        total = sum(plan.num_transfers for plan in self._turns)
        for plan in list(self._turns):
            if total > MAX_KEPT_TRANSFERS and plan is not kept:
                total -= plan.num_transfers
                del self._turns[plan]


def _once(ranks: Ints) -> bool:
    """Whether no rank occurs twice."""
    return len(ranks) < 2 or bool((np.diff(ranks) > 0).all() or np.unique(ranks).size == ranks.size)


def _in_line(pair: Ints) -> list[Ints]:
    """Sort transfers by how many come before them on their connections."""
    order = np.argsort(pair, kind="stable")
    ordered = pair[order]
    begins = np.flatnonzero(np.diff(ordered, prepend=-1))
    if len(begins) == len(pair):
        return [np.arange(len(pair))]
    place = np.empty(len(pair), dtype=np.int64)
    lengths = np.diff(np.append(begins, len(pair)))
    place[order] = np.arange(len(pair)) - np.repeat(begins, lengths)
    return [np.flatnonzero(place == k) for k in range(int(place.max()) + 1)]


def _find_pairs(plan: Plan) -> Ints:
    if plan.order == "chain":
        assert plan.route is not None
        return _in_order(plan.route[:-1], plan.route[1:])
    if plan.order == "ring":
        return _around(*next(plan.rounds())[:2])
    v = plan.num_vertices
    channels = [np.unique(r.channel) for r in plan.rounds()]
    most = int(np.concatenate([*channels, [0]]).max()) + 1
    pairs_of_rounds = [np.unique((r.src * v + r.dst) * most + r.channel) for r in plan.rounds()]
    numbers = np.unique(np.concatenate([np.empty(0, dtype=np.int64), *pairs_of_rounds]))
    ends, channel = np.divmod(numbers, most)
    return np.stack([ends // v, ends % v, channel], axis=1)


def _in_order(src: Ints, dst: Ints) -> Ints:
    """Stack pairs that have one channel each."""
    return np.stack([src, dst, np.zeros_like(src)], axis=1)


def _around(src: Ints, dst: Ints) -> Ints:
    """Sort the pairs of a ring, so that each begins where the one before it ends."""
    n = len(src)
    follower = np.empty(n, dtype=np.int64)
    follower[src] = dst
    hop = int(follower[0])
    if (follower == (np.arange(n) + hop) % n).all():
        order = np.arange(n) * hop % n
    else:
        next_of, visited = follower.tolist(), [0]
        while len(visited) < n:
            visited.append(next_of[visited[-1]])
        order = np.array(visited)
    assert len(set(order.tolist())) == n, "a ring passes every place once"
    return _in_order(order, np.roll(order, -1))
