"""Wiring: a cluster's network as plain numbers, which is all that a formula of costs needs."""

from __future__ import annotations

from typing import NamedTuple


class Wiring(NamedTuple):
    """What lies between the ranks of a collective.

    Attributes
    ----------
    world_size, num_nodes, local_size : int
        Ranks, the nodes that hold them, and ranks of each node.
    intra_alpha : float
        Latency of a link inside a node [s]; 0 where nodes hold one rank.
    intra_bandwidth : float
        What one device can send inside its node, all its links together [bytes/s]; infinite where
        nodes hold one rank.
    inter_alpha : float
        Latency of a link between nodes [s]; 0 with one node.
    inter_bandwidth : float
        What one node can send, all the network cards together that its ranks use [bytes/s];
        infinite with one node.
    cards : int
        Network cards that the ranks of a node use; 0 with one node.
    peer, network : str
        Classes of what joins the devices of a node, and the nodes; of
        `simdp.collectives.costs.pool`.
    """

    world_size: int
    num_nodes: int
    local_size: int
    intra_alpha: float
    intra_bandwidth: float
    inter_alpha: float
    inter_bandwidth: float
    cards: int
    peer: str = "nvlink"
    network: str = "rdma"

    @property
    def joined(self) -> str:
        """Class of the slowest network that the ranks cross; empty for one rank."""
        if self.num_nodes > 1:
            return self.network
        return self.peer if self.local_size > 1 else ""
