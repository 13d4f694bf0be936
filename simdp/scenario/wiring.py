"""A cluster's network as the plain numbers that formulas of costs read."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

import numpy as np

from simdp.arrays import Bools, Floats, Ints
from simdp.cluster import Cluster
from simdp.cluster.degraded import Factors
from simdp.cluster.numbering import NodeKind
from simdp.collectives.costs import Wiring


def wiring_of(cluster: Cluster) -> Wiring:
    """Boil a cluster down to how its ranks are joined.

    Parameters
    ----------
    cluster : Cluster
        Where nodes differ, the slowest counts.

    Returns
    -------
    Wiring
        Latencies are those of one link: what NCCL calls a hop.
    """
    nodes, local = cluster.num_nodes, cluster.local_size
    intra_alpha, intra_bandwidth = _inside(cluster)
    peer, network = _classes(cluster)
    inter_alpha, inter_bandwidth, cards = 0.0, inf, 0
    if nodes > 1:
        assert cluster.inter_node is not None
        links = cluster.inter_node.links(nodes)
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
    """Classes of what joins the devices of a node, and the nodes: the slowest of each."""
    kinds = cluster.numbering.inside
    found = {kind.link.carries(between_nodes=False) for kind in kinds}
    peer = "pcie" if found - {"nvlink"} else "nvlink"
    devices = cluster.device if isinstance(cluster.device, list) else [cluster.device]
    if peer == "pcie" and not all(device.peer_to_peer for device in devices):
        peer = "pcie" if _is_staged(cluster) else "host"
    if cluster.inter_node is None:
        return peer, "rdma"
    links = cluster.inter_node.links(cluster.num_nodes)
    carried = {link.carries(between_nodes=True) for link in links}
    network = next((name for name in ("tcp", "libfabric") if name in carried), "rdma")
    if network == "rdma" and any(kind.link.transport == "pcie" for kind in kinds):
        network = "roce"  # the cards share PCIe with the devices
    return peer, network


def _is_staged(cluster: Cluster) -> bool:
    """Whether the topology itself leads through the memory of the host."""
    return any(hasattr(kind.topology, "p2p_level") for kind in cluster.numbering.inside)


def wiring_of_groups(cluster: Cluster, groups: Ints, side_by_side: int) -> Wiring:
    """Boil a cluster down to how the ranks of a process group are joined.

    Parameters
    ----------
    cluster : Cluster
        As in `wiring_of`.
    groups : ndarray, shape `(num_groups, group size)`, int64
        Groups that do the same at the same time: those with ranks on one node share its network
        cards.
    side_by_side : int
        Ranks of a group on each of its nodes; 0 where these differ: each then counts as alone.
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
    """Latency of a link inside a node [s], and what its slowest device can send [bytes/s]."""
    if cluster.local_size == 1:
        return 0.0, inf
    kinds = [_inside_kind(*each) for each in _insides(cluster)]
    return max(alpha for alpha, _ in kinds), min(bandwidth for _, bandwidth in kinds)


def _insides(cluster: Cluster) -> Iterator[tuple[NodeKind, int, Factors]]:
    """Each kind of node, and each node with degraded links, with the factors of its links."""
    n, numbering = cluster.local_size, cluster.numbering
    for kind in numbering.inside:
        yield kind, n, Factors(np.ones(kind.num_links), np.ones(kind.num_links))
    if cluster.degraded is not None:
        for node in range(cluster.num_nodes):
            mine = slice(numbering.first[node], numbering.first[node + 1])
            factors = Factors(*(each[mine] for each in cluster.degraded))
            if (factors.alpha != 1).any() or (factors.bandwidth != 1).any():
                yield numbering.inside[numbering.kind_of[node]], n, factors


def _inside_kind(kind: NodeKind, n: int, factors: Factors) -> tuple[float, float]:
    topology, cards = kind.topology, kind.cards
    src = np.arange(n)
    routes = topology.routes(src, (src + 1) % n, n, cards)
    route_alpha, route_bandwidth = topology.figures(routes, kind.link, n, cards)
    used, number = routes >= 0, np.maximum(routes, 0)
    alpha = float((route_alpha * factors.alpha[number])[used].max())
    begins = topology.begins_stage(routes, n, cards) & used
    if begins.any():
        each = _staged(np.where(used, route_bandwidth * factors.bandwidth[number], inf), begins)
        return alpha, float(each.min())
    links = np.arange(topology.num_links(n, cards))
    leaves, enters = topology.ends(links, n, cards)
    _, bandwidth = topology.figures(links, kind.link, n, cards)
    of_device = (leaves < n) & (leaves != enters)  # a full mesh has numbers for loops too
    sums = np.bincount(leaves[of_device], weights=bandwidth[of_device], minlength=n)
    least = np.ones(n)  # channels have equal parts here too
    np.minimum.at(least, leaves[of_device], factors.bandwidth[of_device])
    return alpha, float((sums * least).min())


def _staged(bandwidth: Floats, begins: Bools) -> Floats:
    """Bandwidth of routes that are stored on their way: the times of the stages add up."""
    stage = np.cumsum(begins, axis=1)
    seconds = np.zeros(len(bandwidth))
    for number in range(int(stage.max()) + 1):
        seconds += 1 / np.where(stage == number, bandwidth, inf).min(axis=1)
    return 1 / seconds
