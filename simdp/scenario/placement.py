"""Placement: where ranks live, as collectives see it, and which nodes each of several jobs gets."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from simdp.arrays import Ints
from simdp.cluster import Cluster
from simdp.collectives import Layout

Kind = Literal["packed", "interleaved"]


def layout(cluster: Cluster) -> Layout:
    """What a collective algorithm sees of a cluster."""
    inside, across = cluster.inside_parents(), cluster.across_parents()
    return Layout(
        cluster.world_size,
        cluster.local_size,
        () if inside is None else tuple(inside.tolist()),
        () if across is None else tuple(_above_ranks(cluster, across).tolist()),
    )


def among_others(alone: Layout) -> Layout:
    """What a job sees that has neighbours: the switches between nodes add for none of them."""
    return replace(alone, across=())


def _above_ranks(cluster: Cluster, parents: Ints) -> Ints:
    """Who adds between nodes, with every rank in place of its network card's port."""
    assert cluster.inter_node is not None
    num_ports = cluster.num_nodes * cluster.inter_node.links_per_node
    ports = cluster.ports(np.arange(cluster.world_size))
    found = np.concatenate([parents[ports], parents[num_ports:]])
    return np.where(found < 0, -1, found - num_ports + cluster.world_size)


def deal_nodes(kind: Kind, counts: list[int]) -> list[Ints]:
    """Deal the nodes of a cluster to jobs.

    Parameters
    ----------
    kind : {"packed", "interleaved"}
        One job after the other, or a node to each job in turn, as long as it needs one.
    counts : list of int
        Nodes of each job.

    Returns
    -------
    list of ndarray, int64
        The nodes of each job.
    """
    job = np.repeat(np.arange(len(counts)), counts)
    if kind == "interleaved":
        turn = np.concatenate([np.arange(count) for count in counts])
        job = job[np.lexsort((job, turn))]
    return [np.flatnonzero(job == number) for number in range(len(counts))]


def split_ranks(world_size: int, rule: Literal["mod", "div"], value: int) -> Ints:
    """Split ranks into process groups, as NCCL_TESTS_SPLIT of nccl-tests does.

    Parameters
    ----------
    world_size : int
        Number of ranks.
    rule, value
        Ranks of equal ``rank % value``, or of equal ``rank // value``, form a group.

    Returns
    -------
    ndarray, shape `(num_groups, group size)`, int64
        Ranks.

    Raises
    ------
    ValueError
        If the groups are not equally large.
    """
    if value < 1 or world_size % value:
        raise ValueError(f"{value} does not divide {world_size} ranks")
    ranks = np.arange(world_size)
    return ranks.reshape(-1, value).T if rule == "mod" else ranks.reshape(-1, value)


def group_layout(cluster: Cluster, groups: Ints) -> Layout:
    """What a collective algorithm sees of process groups that run side by side.

    Nodes count where every group has as many ranks, side by side, on each of its nodes; switches
    that add do not.
    """
    nodes = groups // cluster.local_size
    size = groups.shape[1]
    together = int((nodes[0] == nodes[0, 0]).sum())
    alike = size % together == 0 and all(
        (rows == rows[:, :1]).all() for rows in nodes.reshape(-1, size // together, together)
    )
    return Layout(size, together if alike else 0)


def vertices(cluster: Cluster, nodes: Ints) -> Ints:
    """Vertices of a cluster that the ranks of a job on some of its nodes are.

    Parameters
    ----------
    cluster : Cluster
        The whole.
    nodes : ndarray, int64
        The job's.

    Returns
    -------
    ndarray, int64
        Its ranks, and then the switches inside its nodes that can add.
    """
    places = layout(cluster).vertices_of_nodes()[nodes]
    ranks, switches = np.split(places, [cluster.local_size], axis=1)
    return np.concatenate([ranks.reshape(-1), switches.reshape(-1)])
