"""Placement of ranks and jobs, and the network as plain numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf
from typing import Literal

import numpy as np
from pydantic import ValidationError

from simdp.arrays import Bools, Floats, Ints
from simdp.cluster import Cluster
from simdp.cluster.numbering import NodeKind
from simdp.cluster.stragglers import DegradedLink, LinkFactors, problem_with
from simdp.collectives import Cost, Layout
from simdp.collectives.costs import Wiring
from simdp.spec import problems

# Placement ----------------------------------------------------------------------------------------

Kind = Literal["packed", "interleaved"]


def layout(cluster: Cluster) -> Layout:
    """Return a collective algorithm's view of a cluster."""
    inside, across = cluster.inside_parents(), cluster.across_parents()
    return Layout(
        cluster.world_size,
        cluster.local_size,
        () if inside is None else tuple(inside.tolist()),
        () if across is None else tuple(_above_ranks(cluster, across).tolist()),
    )


def among_others(alone: Layout) -> Layout:
    """Return the layout of a job with neighbours, without reducing switches between nodes."""
    return replace(alone, across=())


def _above_ranks(cluster: Cluster, parents: Ints) -> Ints:
    """Return reducing switches between nodes, by rank instead of by network port."""
    num_ports = cluster.num_nodes * cluster.numbering.cards
    ports = cluster.ports(np.arange(cluster.world_size))
    ports_of_parents = np.concatenate([parents[ports], parents[num_ports:]])
    return np.where(ports_of_parents < 0, -1, ports_of_parents - num_ports + cluster.world_size)


def deal_nodes(kind: Kind, counts: list[int]) -> list[Ints]:
    """Assign the nodes of a cluster to jobs that need ``counts`` nodes each.

    ``packed`` assigns job after job; ``interleaved`` a node to each job in turn.
    """
    job = np.repeat(np.arange(len(counts)), counts)
    if kind == "interleaved":
        turn = np.concatenate([np.arange(count) for count in counts])
        job = job[np.lexsort((job, turn))]
    return [np.flatnonzero(job == number) for number in range(len(counts))]


def split_ranks(world_size: int, rule: Literal["mod", "div"], value: int) -> Ints:
    """Split ranks into process groups, as NCCL_TESTS_SPLIT of nccl-tests does.

    Ranks of equal ``rank % value`` (``mod``), or of equal ``rank // value`` (``div``), form a
    group.

    Returns
    -------
    ndarray, shape `(num_groups, group size)`, int64
        Ranks.

    Raises
    ------
    ValueError
        If the groups are of different sizes.
    """
    if value < 1 or world_size % value:
        raise ValueError(f"{value} does not divide {world_size} ranks")
    ranks = np.arange(world_size)
    return ranks.reshape(-1, value).T if rule == "mod" else ranks.reshape(-1, value)


def group_layout(cluster: Cluster, groups: Ints) -> Layout:
    """Return a collective algorithm's view of process groups that run concurrently.

    Nodes count if every group has equally many consecutive ranks on each of its nodes; reducing
    switches do not count.
    """
    nodes = groups // cluster.local_size
    size = groups.shape[1]
    together = int((nodes[0] == nodes[0, 0]).sum())
    is_even = size % together == 0 and all(
        (rows == rows[:, :1]).all() for rows in nodes.reshape(-1, size // together, together)
    )
    return Layout(size, together if is_even else 0)


def vertices(cluster: Cluster, nodes: Ints) -> Ints:
    """Return vertices of a job on some nodes of a cluster.

    These are its ranks, then the reducing switches inside its nodes.
    """
    places = layout(cluster).vertices_of_nodes()[nodes]
    ranks, switches = np.split(places, [cluster.local_size], axis=1)
    return np.concatenate([ranks.reshape(-1), switches.reshape(-1)])


# Neighbours ---------------------------------------------------------------------------------------


def neighbour_problems(cluster: Cluster, sizes: list[int]) -> list[str]:
    """Explain why jobs with world sizes ``sizes`` cannot share the network of the job's cluster."""
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
    lines = [
        f"cluster.{key}: a list does not cover the neighbours' nodes; give one for all."
        for key in cluster.listed()
    ]
    named = [(f"neighbours.{number}", size) for number, size in enumerate(sizes)]
    for place, size in [("cluster", cluster.world_size), *named]:
        if size % per_node:
            lines.append(
                f"{place}.world_size: {size} ranks do not fill nodes of {per_node} devices, and "
                "jobs share no node; use a multiple."
            )
    return lines or _misfits(cluster, sizes)


def with_neighbours(cluster: Cluster, sizes: list[int]) -> Cluster:
    """Return the cluster of a job and its neighbours, large enough for all."""
    total = cluster.world_size + sum(sizes)
    return cluster.model_copy(update={"world_size": total, "stragglers": [], "failures": []})


def _misfits(cluster: Cluster, sizes: list[int]) -> list[str]:
    """Explain why the network cannot connect the nodes of all jobs."""
    whole = with_neighbours(cluster, sizes)
    plain = whole.model_dump(mode="json")  # no copy is validated, and quantities have units
    raw = {name: plain[name] if isinstance(field, float) else field for name, field in whole}
    try:
        Cluster.model_validate(raw)
    except ValidationError as error:
        return [
            f"neighbours: with them, cluster.{invalid.line}" for invalid in problems(error, raw)
        ]
    return []


# Wiring -------------------------------------------------------------------------------------------


def wiring_of(cluster: Cluster) -> Wiring:
    """Reduce a cluster to the wiring of its ranks; of different nodes the slowest counts.

    Latencies are those of one link: a hop in NCCL.
    """
    nodes, local = cluster.num_nodes, cluster.local_size
    intra_alpha, intra_bandwidth = _inside(cluster)
    peer, network = _classes(cluster)
    inter_alpha, inter_bandwidth, cards = 0.0, inf, 0
    if nodes > 1:
        assert cluster.numbering.inter is not None
        links = cluster.numbering.inter.links(nodes)
        cards = len(np.unique(cluster.numbering.nics))
        inter_alpha = max(link.alpha for link in links)
        inter_bandwidth = cards * min(link.bandwidth for link in links)
        if cluster.degraded is not None:  # channels have equal parts: the slowest card counts
            first = cluster.numbering.between
            inter_alpha *= float(cluster.degraded.alpha[first:].max(initial=1.0))
            inter_bandwidth *= float(cluster.degraded.bandwidth[first:].min(initial=1.0))
    return Wiring(
        world_size=cluster.world_size,
        num_nodes=nodes,
        local_size=local,
        intra_alpha=intra_alpha,
        intra_bandwidth=intra_bandwidth,
        inter_alpha=inter_alpha,
        inter_bandwidth=inter_bandwidth,
        cards=cards,
        peer=peer,
        network=network,
    )


def _classes(cluster: Cluster) -> tuple[str, str]:
    """Return link classes inside a node and between nodes: the slowest of each."""
    kinds = cluster.numbering.inside
    classes = {kind.link.carries(between_nodes=False) for kind in kinds}
    peer = "pcie" if classes - {"nvlink"} else "nvlink"
    devices = cluster.device if isinstance(cluster.device, list) else [cluster.device]
    if peer == "pcie" and not all(device.peer_to_peer for device in devices):
        # Routes of some topologies pass host memory.
        peer = "pcie" if any(hasattr(kind.topology, "p2p_level") for kind in kinds) else "host"
    if cluster.inter_node is None:
        return peer, "rdma"
    links = cluster.inter_node.links(cluster.num_nodes)
    carried = {link.carries(between_nodes=True) for link in links}
    network = next((name for name in ("tcp", "libfabric") if name in carried), "rdma")
    if network == "rdma" and any(kind.link.transport == "pcie" for kind in kinds):
        network = "roce"  # the cards share PCIe with the devices
    return peer, network


def wiring_of_groups(cluster: Cluster, groups: Ints, side_by_side: int) -> Wiring:
    """Reduce a cluster to the wiring of the ranks of a process group.

    Parameters
    ----------
    cluster : Cluster
        As in `wiring_of`.
    groups : ndarray, shape `(num_groups, group size)`, int64
        Groups that run the same at the same time: those with ranks on one node share its network
        cards.
    side_by_side : int
        Ranks of a group on each of its nodes; 0 if these differ: each then counts as a separate
        node.
    """
    whole, size = wiring_of(cluster), groups.shape[1]
    one_node = bool((np.ptp(groups // cluster.local_size, axis=1) == 0).all())
    local = size if one_node else side_by_side or 1
    sharers = max(cluster.local_size // local, 1)
    across = size > local
    return whole._replace(
        world_size=size,
        num_nodes=size // local,
        local_size=local,
        intra_alpha=whole.intra_alpha if local > 1 else 0.0,
        intra_bandwidth=whole.intra_bandwidth if local > 1 else inf,
        inter_alpha=whole.inter_alpha if across else 0.0,
        inter_bandwidth=whole.inter_bandwidth / sharers if across else inf,
        cards=max(whole.cards // sharers, 1) if across else 0,
    )


def _inside(cluster: Cluster) -> tuple[float, float]:
    """Return the latency of a link inside a node [s] and its slowest device's bandwidth."""
    if cluster.local_size == 1:
        return 0.0, inf
    kinds = [_inside_kind(*node) for node in _insides(cluster)]
    return max(alpha for alpha, _ in kinds), min(bandwidth for _, bandwidth in kinds)


def _insides(cluster: Cluster) -> Iterator[tuple[NodeKind, int, LinkFactors]]:
    """Yield each kind of node, and each node with degraded links, with the factors of its links."""
    n, numbering = cluster.local_size, cluster.numbering
    for kind in numbering.inside:
        yield kind, n, LinkFactors(np.ones(kind.num_links), np.ones(kind.num_links))
    if cluster.degraded is not None:
        for node in range(cluster.num_nodes):
            mine = slice(numbering.first[node], numbering.first[node + 1])
            factors = LinkFactors(*(links[mine] for links in cluster.degraded))
            if (factors.alpha != 1).any() or (factors.bandwidth != 1).any():
                yield numbering.inside[numbering.kind_of[node]], n, factors


def _inside_kind(kind: NodeKind, n: int, factors: LinkFactors) -> tuple[float, float]:
    topology, cards = kind.topology, kind.cards
    src = np.arange(n)
    routes = topology.routes(src, (src + 1) % n, n, cards)
    route_alpha, route_bandwidth = topology.figures(routes, kind.link, n, cards)
    used, number = routes >= 0, np.maximum(routes, 0)
    alpha = float((route_alpha * factors.alpha[number])[used].max())
    begins = topology.begins_stage(routes, n, cards) & used
    if begins.any():
        bandwidths = _staged(
            np.where(used, route_bandwidth * factors.bandwidth[number], inf), begins
        )
        return alpha, float(bandwidths.min())
    links = np.arange(topology.num_links(n, cards))
    leaves, enters = topology.ends(links, n, cards)
    _, bandwidth = topology.figures(links, kind.link, n, cards)
    of_device = (leaves < n) & (leaves != enters)  # a full mesh has numbers for loops too
    sums = np.bincount(leaves[of_device], weights=bandwidth[of_device], minlength=n)
    least = np.ones(n)  # channels have equal parts here too
    np.minimum.at(least, leaves[of_device], factors.bandwidth[of_device])
    return alpha, float((sums * least).min())


def _staged(bandwidth: Floats, begins: Bools) -> Floats:
    """Return the bandwidth of stored and forwarded routes: the times of the stages add up."""
    stage = np.cumsum(begins, axis=1)
    seconds = np.zeros(len(bandwidth))
    for number in range(int(stage.max()) + 1):
        seconds += 1 / np.where(stage == number, bandwidth, inf).min(axis=1)
    return 1 / seconds


# Stragglers ---------------------------------------------------------------------------------------


def straggler_problems(cluster: Cluster, largest: int) -> list[str]:
    """Refuse stragglers on ranks, or nodes, that the sweep's largest world size lacks."""
    lines = [
        f"cluster.stragglers.{i}.{'link' if getattr(straggler, 'link', None) else 'rank'}: rank "
        f"{straggler.on_rank()} does not exist; the largest world_size is {largest}, so ranks are "
        f"0 ... {largest - 1}."
        for i, straggler in enumerate(cluster.stragglers)
        if (straggler.on_rank() or 0) >= largest
    ]
    nodes = max(largest // (cluster.ranks_per_node or largest), 1)
    lines += [
        f"cluster.stragglers.{i}.node: node {straggler.on_node()} does not exist; the largest "
        f"world_size is {largest}, so nodes are 0 ... {nodes - 1}."
        for i, straggler in enumerate(cluster.stragglers)
        if (straggler.on_node() or 0) >= nodes
    ]
    if lines or cluster.world_size < largest:
        return lines
    for i, straggler in _degraded(cluster):
        wrong = problem_with(cluster.numbering, straggler)
        lines += [f"cluster.stragglers.{i}.{wrong}"] if wrong else []
    return lines


def degraded_problems(
    cluster: Cluster, cost: Cost, has_server: bool, among_jobs: bool
) -> list[str]:
    """Refuse degraded links without an effect, or with only a part of it.

    ``has_server`` is whether the strategy has a parameter server; ``among_jobs``, whether other
    jobs share the network.
    """
    lines = []
    for i, straggler in _degraded(cluster):
        place = f"cluster.stragglers.{i}: degraded_link"
        if cost.kind == "table":
            lines.append(
                f"{place} has no part in a measured table; use collectives.cost: links or nccl, or "
                "leave it out."
            )
        elif among_jobs:
            lines.append(f"{place} knows no other jobs on the network; leave out neighbours.")
        elif has_server and straggler.comes_and_goes():
            lines.append(
                f"{place} comes and goes by steps, which a server's workers do not share; leave "
                "out steps, on and off, or use ddp."
            )
    return lines


def _degraded(cluster: Cluster) -> Iterator[tuple[int, DegradedLink]]:
    for number, straggler in enumerate(cluster.stragglers):
        if isinstance(straggler, DegradedLink):
            yield number, straggler
