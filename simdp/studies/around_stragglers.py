"""Around stragglers: what may help where somebody is slow, each a change that advice tries.

A node is left out, a ring leads around a degraded link, batches go by speed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from simdp.cluster import Cluster
from simdp.cluster.stragglers import Straggler
from simdp.cluster.stragglers.degraded_link import DegradedLink
from simdp.results.comparison import written
from simdp.scenario import Scenario

MOST_NODES = 3
"""Nodes that are left out, one at a time."""

MEASURED_STEPS = 1
"""Steps by whose speeds the next ones are cut."""


class Change(NamedTuple):
    """What is tried: a key, its value, and what else it does; ``family`` shows one of its kind.

    ``beside`` are other keys that go with it, ``said`` what it is called, if not by its key.
    """

    family: str
    key: str
    value: Any
    but: str = ""
    beside: Mapping[str, Any] = {}
    said: str = ""

    def settings(self) -> dict[str, Any]:
        """All values by dotted key."""
        return {self.key: self.value, **self.beside}

    def in_words(self) -> str:
        """What is changed, and what else that does."""
        but = f" ({self.but})" if self.but else ""
        return f"{self.said or f'{self.key}: {written(self.value)}'}{but}"


def around_stragglers(scenario: Scenario) -> Iterator[Change]:
    """What may be worth a try, where the scenario says who is slow.

    Parameters
    ----------
    scenario : Scenario
        One point.

    Yields
    ------
    Change
    """
    cluster, workload = scenario.cluster, scenario.workload
    if not cluster.stragglers:
        return
    yield from evictions(scenario)
    ring = scenario.collectives.all_reduce
    if ring.kind == "ring" and not scenario.collectives.cost_of("all_reduce").timed:
        pairs = [
            list(one.link)
            for one in cluster.stragglers
            if isinstance(one, DegradedLink) and one.link is not None
        ]
        met = [pair for pair in pairs if tuple(pair) not in ring.avoid]  # type: ignore[attr-defined]
        if met:
            kept = [list(pair) for pair in ring.avoid]  # type: ignore[attr-defined]
            yield Change("avoid", "collectives.all_reduce.avoid", kept + met)
    weighs = getattr(scenario.strategy, "weight_by_shard", None)
    if workload.global_batch is not None and workload.rebalance is None and weighs is not None:
        rule = {"every": MEASURED_STEPS}
        beside = {} if weighs else {"strategy.weight_by_shard": True}
        but = "" if weighs else "with strategy.weight_by_shard: true"
        yield Change("rebalance", "workload.rebalance", rule, but, beside)


def evictions(scenario: Scenario) -> Iterator[Change]:
    """Leave out a node that a straggler is on, where there are others.

    Parameters
    ----------
    scenario : Scenario
        One point.
    """
    cluster = scenario.cluster
    if cluster.num_nodes < 2:
        return
    m, raw = cluster.local_size, scenario.resolved()["cluster"]
    nodes = dict.fromkeys(node for one in cluster.stragglers for node in _nodes_of(one, cluster))
    for node in list(nodes)[:MOST_NODES]:
        beside: dict[str, Any] = {"cluster.stragglers": _without(raw["stragglers"], node, m)}
        for key in ("topology", "link"):
            if isinstance(raw.get(key), list):
                beside[f"cluster.{key}"] = [*raw[key][:node], *raw[key][node + 1 :]]
        if isinstance(raw["device"], list):
            beside["cluster.device"] = raw["device"][: node * m] + raw["device"][(node + 1) * m :]
        if isinstance(raw["inter_node"]["link"], list):
            links = raw["inter_node"]["link"]
            beside["cluster.inter_node.link"] = [*links[:node], *links[node + 1 :]]
        left = cluster.world_size - m
        said, but = f"without node {node}", f"{left} ranks"
        yield Change("evict", "cluster.world_size", left, but, beside, said)


def _nodes_of(straggler: Straggler, cluster: Cluster) -> list[int]:
    """The node that one is on, or both ends of a link; none where it is everywhere."""
    m, rank, node = cluster.local_size, straggler.on_rank(), straggler.on_node()
    if isinstance(straggler, DegradedLink) and straggler.link is not None:
        found = [rank // m for rank in straggler.link]
    elif rank is not None:
        found = [rank // m]
    else:
        found = [] if node is None else [node]
    return [node for node in found if node < cluster.num_nodes]


def _without(stragglers: list[dict[str, Any]], node: int, per_node: int) -> list[dict[str, Any]]:
    """Stragglers once a node is gone; those on later ranks and nodes move up."""
    found = []
    for one in stragglers:
        ranks = [rank for rank in (one.get("rank"), *(one.get("link") or ())) if rank is not None]
        here = one.get("node") == node or any(rank // per_node == node for rank in ranks)
        if not here:
            found.append(_moved_up(one, node, per_node))
    return found


def _moved_up(one: dict[str, Any], node: int, per_node: int) -> dict[str, Any]:
    def moved(rank: int) -> int:
        return rank - per_node * (rank // per_node > node)

    changed: dict[str, Any] = {}
    if one.get("node") is not None:
        changed["node"] = one["node"] - (one["node"] > node)
    if one.get("rank") is not None:
        changed["rank"] = moved(one["rank"])
    if one.get("link") is not None:
        changed["link"] = [moved(rank) for rank in one["link"]]
    return {**one, **changed}
