"""Recovering: what a cluster, a workload and a strategy cannot carry of a job's recovery."""

from __future__ import annotations

from simdp.cluster import Cluster
from simdp.job.checkpoint import Checkpoint
from simdp.job.recovery.elastic import Elastic
from simdp.job.recovery.replica_groups import ReplicaGroups
from simdp.scenario.root import Scenario
from simdp.strategies.memory import checkpoint_nbytes
from simdp.workload import Workload


def recovery_problems(scenario: Scenario) -> list[str]:
    """Refuse policies that a valid scenario cannot carry, and checkpoints without room.

    Parameters
    ----------
    scenario : Scenario
        One point.
    """
    found, recovery = list[str](), scenario.recovery
    if scenario.checkpoint is not None:
        found += _without_room(scenario.checkpoint, scenario.workload)
        writers, ranks = scenario.checkpoint.writers, scenario.cluster.world_size
        if writers is not None and writers > ranks:
            found.append(
                f"checkpoint.writers: {writers} is more than the {ranks} ranks; use that or fewer."
            )
    if isinstance(recovery, Elastic):
        found += _not_elastic(scenario, recovery)
    if isinstance(recovery, ReplicaGroups):
        found += _not_in_groups(scenario, recovery)
    return found


def _without_room(checkpoint: Checkpoint, workload: Workload) -> list[str]:
    if checkpoint.size is not None:  # its own check
        return []
    wrong = checkpoint.problem_with_size(checkpoint_nbytes(workload))
    return [f"checkpoint.{wrong}"] if wrong else []


def _not_elastic(scenario: Scenario, recovery: Elastic) -> list[str]:
    """Say why the world cannot get smaller."""
    cluster, workload, strategy = scenario.cluster, scenario.workload, scenario.strategy
    found = []
    if recovery.min_nodes > cluster.num_nodes:
        found.append(
            f"recovery.min_nodes: {recovery.min_nodes} is more than the {cluster.num_nodes} nodes "
            "of the cluster; use that or fewer."
        )
    if (listed := _listed(cluster)) is not None:
        found.append(
            f"recovery.kind: elastic needs nodes that are alike, but {listed} lists one by one; "
            "give one for all, or use restart or spares."
        )
    if strategy.one_process or strategy.player != "together":
        found.append(
            f"recovery.kind: elastic changes the number of ranks, which {strategy.kind} cannot; "
            "use ddp or fsdp, or restart."
        )
    if workload.samples_per_rank is not None:
        found.append(
            "recovery.kind: elastic changes the number of ranks, but workload.samples_per_rank "
            "has a number for each; use microbatch alone, or restart."
        )
    if recovery.up == "checkpoint" and scenario.checkpoint is None:
        found.append(
            "recovery.up: checkpoint waits for one, but there are none; add checkpoint, or write "
            "up: at_once."
        )
    return found


def _listed(cluster: Cluster) -> str | None:
    """What of a cluster is said node by node, or rank by rank."""
    inter = cluster.inter_node
    of = {
        "cluster.device": cluster.device,
        "cluster.topology": cluster.topology,
        "cluster.link": cluster.link,
        "cluster.inter_node.link": inter.link if inter else None,
    }
    return next((key for key, value in of.items() if isinstance(value, list)), None)


def _not_in_groups(scenario: Scenario, recovery: ReplicaGroups) -> list[str]:
    """Say why groups of nodes cannot fail one by one."""
    cluster, strategy = scenario.cluster, scenario.strategy
    nodes, size = cluster.num_nodes, recovery.group_nodes
    if nodes % size or nodes == size:
        return [
            f"recovery.group_nodes: {nodes} nodes are not two or more groups of {size}; use a "
            "divisor of them that is smaller."
        ]
    if recovery.min_replicas > nodes // size:
        return [
            f"recovery.min_replicas: {recovery.min_replicas} is more than the {nodes // size} "
            "groups that there are; use that or fewer."
        ]
    if strategy.one_process or strategy.player != "together":
        return [
            f"recovery.kind: replica_groups leaves out ranks that failed, which {strategy.kind} "
            "cannot; use ddp or hsdp, or restart."
        ]
    partition = scenario.program.partition
    ranks = size * cluster.local_size
    if partition is None or ranks % partition.num_places == 0:
        return []
    places = partition.num_places
    over = "all" if places == cluster.world_size else str(places)
    return [
        f"recovery.kind: replica_groups needs the whole state in every group of {ranks} ranks, but "
        f"{strategy.kind} cuts it over {over} ranks; use ddp, or hsdp with a shard_size that "
        f"divides {ranks}, or restart."
    ]
