"""What cannot be right between stragglers and what they slow down."""

from __future__ import annotations

from collections.abc import Iterator

from simdp.cluster import Cluster
from simdp.cluster.degraded import problem_with
from simdp.cluster.stragglers.degraded_link import DegradedLink
from simdp.collectives import Cost


def straggler_problems(cluster: Cluster, largest: int) -> list[str]:
    """Refuse stragglers on ranks, or nodes, that the sweep's largest world size lacks.

    Parameters
    ----------
    cluster : Cluster
        Of one point.
    largest : int
        World size of the largest.
    """
    lines = [
        f"cluster.stragglers.{i}.{'link' if hasattr(one, 'link') and one.link else 'rank'}: rank "
        f"{one.on_rank()} does not exist; the largest world_size is {largest}, so ranks are "
        f"0 ... {largest - 1}."
        for i, one in enumerate(cluster.stragglers)
        if (one.on_rank() or 0) >= largest
    ]
    nodes = max(largest // (cluster.ranks_per_node or largest), 1)
    lines += [
        f"cluster.stragglers.{i}.node: node {one.on_node()} does not exist; the largest "
        f"world_size is {largest}, so nodes are 0 ... {nodes - 1}."
        for i, one in enumerate(cluster.stragglers)
        if (one.on_node() or 0) >= nodes
    ]
    if lines or cluster.world_size < largest:
        return lines
    for i, one in _degraded(cluster):
        wrong = problem_with(cluster.numbering, one)
        lines += [f"cluster.stragglers.{i}.{wrong}"] if wrong else []
    return lines


def degraded_problems(cluster: Cluster, cost: Cost, player: str, among_jobs: bool) -> list[str]:
    """Refuse degraded links where nothing would come of them, or the half of it.

    Parameters
    ----------
    cluster, cost
        Of one point.
    player : str
        Of its strategy.
    among_jobs : bool
        Whether there are other jobs on the network.
    """
    found = []
    for i, one in _degraded(cluster):
        place = f"cluster.stragglers.{i}: degraded_link"
        if cost.kind == "table":
            found.append(
                f"{place} has no part in a measured table; use collectives.cost: links or nccl, or "
                "leave it out."
            )
        elif among_jobs:
            found.append(f"{place} knows no other jobs on the network; leave out neighbours.")
        elif player != "together" and one.comes_and_goes():
            found.append(
                f"{place} comes and goes by steps, which a server's workers do not share; leave "
                "out steps, on and off, or use ddp."
            )
    return found


def _degraded(cluster: Cluster) -> Iterator[tuple[int, DegradedLink]]:
    for number, one in enumerate(cluster.stragglers):
        if isinstance(one, DegradedLink):
            yield number, one
