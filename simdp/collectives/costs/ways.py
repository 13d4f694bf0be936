"""Ways: how far and how much NCCL's algorithms send, whatever the protocol and the wires."""

from __future__ import annotations

from collections.abc import Callable
from math import log2
from typing import NamedTuple

from simdp.collectives.costs.wiring import Wiring


class Way(NamedTuple):
    """What an algorithm does to serve a collective.

    Attributes
    ----------
    intra_hops, inter_hops : float
        Transfers that wait for one another, inside nodes and between nodes.
    intra_sent : float
        What the busiest device sends inside its node, as a multiple of the buffer.
    inter_sent : float
        What the busiest node sends to others, as a multiple of the buffer.
    """

    intra_hops: float
    inter_hops: float
    intra_sent: float
    inter_sent: float


def _ring(w: Wiring, rounds: int) -> Way:
    """``rounds`` times around: two for an all_reduce, one for each of its halves."""
    steps, inter = rounds * (w.world_size - 1), rounds * (w.num_nodes - 1)
    sent = steps / w.world_size
    return Way(steps - inter, inter, sent * (w.local_size > 1), sent * (w.num_nodes > 1))


def _chain(w: Wiring) -> Way:
    """A pipeline through every rank, as NCCL's rings serve broadcast and reduce."""
    inter = w.num_nodes - 1
    return Way(w.world_size - 1 - inter, inter, w.local_size > 1, w.num_nodes > 1)


def _across_trees(w: Wiring) -> float:
    """What a node sends up and down the double binary tree, as a multiple of the buffer.

    Every node is a leaf of one tree and inside the other: up half the buffer in each, and down
    half to each of two children. Two nodes have one child between them.
    """
    return {1: 0.0, 2: 1.0}.get(w.num_nodes, 2.0)


def _tree(w: Wiring) -> Way:
    """A double binary tree of nodes, each node a chain; up, then down."""
    across = 2.0 * int(log2(w.num_nodes))
    return Way(2 * (w.local_size - 1), across, 2.0 * (w.local_size > 1), _across_trees(w))


def _nvls_all_reduce(w: Wiring) -> Way | None:
    """The switch adds: a device hands in the buffer, and gives out its share of the sums."""
    if w.local_size == 1:
        return None
    sent = (w.local_size + 1) / w.local_size
    return Way(1, 2.0 * int(log2(w.num_nodes)), sent, _across_trees(w))


def _nvls_half(w: Wiring) -> Way | None:
    """Within one node only, as across nodes NCCL needs switches that add there too."""
    if w.num_nodes > 1:
        return None
    return Way(1, 0, (w.local_size - 1) / w.local_size, 0)


def _all_to_all(w: Wiring) -> Way:
    n, m = w.world_size, w.local_size
    return Way(m - 1, n - m, (m - 1) / n, m * (n - m) / n)


def _rooted(w: Wiring) -> Way:
    """Gather and scatter: the root's node carries what the others have."""
    n, m = w.world_size, w.local_size
    return Way(m - 1, n - m, (m - 1) / n, (n - m) / n)


def _neighbours(w: Wiring) -> Way:
    """Every rank sends to the next: between nodes by one card of each.

    To one peer of several a card sends half as fast: 40 H100 on 10 nodes got 25 of 50 GB/s with
    one, two and four GPUs of a node, two nodes, which are each other's only peer, 44.
    """
    several = w.num_nodes > 1
    sent = several * max(w.cards, 1) * (2 if w.num_nodes > 2 else 1)
    return Way(not several, several, w.local_size > 1, sent)


Making = Callable[[Wiring], Way | None]

WAYS: dict[str, dict[str, Making]] = {
    "all_gather": {"ring": lambda w: _ring(w, 1), "nvls": _nvls_half},
    "all_reduce": {"ring": lambda w: _ring(w, 2), "tree": _tree, "nvls": _nvls_all_reduce},
    "all_to_all": {"p2p": _all_to_all},
    "barrier": {"ring": lambda w: _ring(w, 2), "tree": _tree},
    "broadcast": {"ring": _chain},
    "gather": {"p2p": _rooted},
    "reduce": {"ring": _chain},
    "reduce_scatter": {"ring": lambda w: _ring(w, 1), "nvls": _nvls_half},
    "scatter": {"p2p": _rooted},
    "sendrecv": {"p2p": _neighbours},
}
"""Which algorithms serve a collective; ``p2p`` is what NCCL does with grouped sends.

One that cannot serve a wiring makes no way for it.
"""
