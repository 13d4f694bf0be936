"""Neighbour: another job on the nodes of the same cluster, which takes its share of the network."""

from __future__ import annotations

from pydantic import Field, ValidationError

from simdp.cluster import Cluster
from simdp.collectives import Collectives
from simdp.phrases import problems
from simdp.spec import Int, Spec
from simdp.strategies import AnyStrategy
from simdp.strategies.ddp import DDP
from simdp.workload import Workload


class Neighbour(Spec):
    """A job that trains, again and again, until the scenario's own job is done.

    Its nodes are like those of the cluster, without stragglers; it computes no numbers.

    Attributes
    ----------
    world_size : int
        Number of ranks, in whole nodes.
    workload, strategy, collectives
        As in a scenario.
    """

    world_size: Int = Field(ge=1, le=2**20)
    workload: Workload
    strategy: AnyStrategy = DDP()
    collectives: Collectives = Collectives()


def neighbour_problems(cluster: Cluster, sizes: list[int]) -> list[str]:
    """Say why jobs cannot share a cluster's network.

    Parameters
    ----------
    cluster : Cluster
        Of the scenario's own job.
    sizes : list of int
        World sizes of the neighbours.
    """
    if not sizes:
        return []
    if cluster.inter_node is None:
        return [
            "neighbours: jobs meet on the network between nodes, but there is none; "
            "add cluster.inter_node."
        ]
    per_node = cluster.ranks_per_node
    if per_node is None:
        return [
            "neighbours: one node holds all ranks, however many they are; add "
            "cluster.devices_per_node, to say how large the neighbours' nodes are."
        ]
    listed = [
        key
        for key, value in (
            ("device", cluster.device),
            ("topology", cluster.topology),
            ("link", cluster.link),
            ("inter_node.link", cluster.inter_node.link),
        )
        if isinstance(value, list)
    ]
    found = [
        f"cluster.{key}: a list says nothing of the neighbours' nodes; give one for all."
        for key in listed
    ]
    for place, size in [("cluster", cluster.world_size), *_named(sizes)]:
        if size % per_node:
            found.append(
                f"{place}.world_size: {size} ranks do not fill nodes of {per_node} devices, and "
                "jobs share no node; use a multiple."
            )
    return found or _misfits(cluster, sizes)


def with_neighbours(cluster: Cluster, sizes: list[int]) -> Cluster:
    """The cluster of a job and of its neighbours, as large as all of them need."""
    total = cluster.world_size + sum(sizes)
    return cluster.model_copy(update={"world_size": total, "stragglers": [], "failures": []})


def _misfits(cluster: Cluster, sizes: list[int]) -> list[str]:
    """Say why the network cannot join the nodes of all jobs."""
    whole = with_neighbours(cluster, sizes)
    raw = {name: getattr(whole, name) for name in Cluster.model_fields}  # no copy is validated
    try:
        Cluster.model_validate(raw)
    except ValidationError as error:
        return [f"neighbours: with them, cluster.{found.line}" for found in problems(error, raw)]
    return []


def _named(sizes: list[int]) -> list[tuple[str, int]]:
    return [(f"neighbours.{number}", size) for number, size in enumerate(sizes)]
