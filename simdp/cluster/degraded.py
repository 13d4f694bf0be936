"""Degraded links: selects the links of a straggler and changes their latency and bandwidth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simdp.arrays import Bools, Floats, Ints
from simdp.cluster.numbering import Numbering
from simdp.cluster.stragglers import DegradedLink, Straggler


class LinkFactors(NamedTuple):
    """Remaining latency and bandwidth of degraded links, as factors.

    Attributes
    ----------
    alpha, bandwidth : ndarray, shape `(num_links,)`
        Factors on latency and bandwidth of every link; 1 where it is sound.
    """

    alpha: Floats
    bandwidth: Floats


def factors(numbering: Numbering, stragglers: Sequence[Straggler]) -> LinkFactors | None:
    """Factors of the links that are degraded in every step; None where there are none."""
    lasting = [
        one for one in stragglers if isinstance(one, DegradedLink) and not one.comes_and_goes()
    ]
    if not lasting:
        return None
    found = LinkFactors(np.ones(numbering.num_links), np.ones(numbering.num_links))
    for one in lasting:
        links = links_of(numbering, one)
        found.alpha[links] *= one.latency
        found.bandwidth[links] *= one.bandwidth
    return found


def links_of(numbering: Numbering, degraded: DegradedLink) -> Ints:
    """The links that a straggler means; none where there is no such node, card or rank."""
    if degraded.node is not None:
        return _of_node(numbering, degraded.node, degraded.card)
    if degraded.rank is not None:
        return _of_rank(numbering, degraded.rank)
    assert degraded.link is not None
    if max(degraded.link) >= numbering.world_size:
        return np.empty(0, dtype=np.int64)
    both = numbering.routes(np.array(degraded.link), np.array(degraded.link[::-1]))
    return np.unique(both[both >= 0])


def problem_with(numbering: Numbering, degraded: DegradedLink) -> str | None:
    """Say why a straggler means no links of a cluster that has its nodes and ranks, or None."""
    nodes, m = numbering.num_nodes, numbering.local_size
    if degraded.node is not None:
        if nodes == 1:
            return "node: there are no links between nodes where there is one; use rank or link."
        if degraded.card is not None and degraded.card >= numbering.cards:
            return (
                f"card: node {degraded.node} has cards 0 ... {numbering.cards - 1}, not "
                f"{degraded.card}; see inter_node.links_per_node."
            )
    if degraded.rank is not None and m == 1:
        return "rank: nodes of one device have no links inside; use node."
    if degraded.link is not None and max(degraded.link) < numbering.world_size:
        a, b = degraded.link
        route = numbering.routes(np.array([a]), np.array([b]))
        length = int((route >= 0).sum())
        if length != 1:
            other = f"rank: {a}" if a // m == b // m else f"node: {a // m}"
            return (
                f"link: the way from rank {a} to rank {b} has {length} links; name one end of it, "
                f"such as {other}."
            )
    return None


def _of_node(numbering: Numbering, node: int, card: int | None) -> Ints:
    inter, cards, nodes = numbering.inter, numbering.cards, numbering.num_nodes
    if inter is None or node >= nodes or nodes == 1:
        return np.empty(0, dtype=np.int64)
    links = np.arange(numbering.num_links - numbering.between)
    if inter.topology.of_ports:
        ends = inter.topology.ends(links, nodes * cards, cards)
        mine = [_among(end, node * cards, cards, card) for end in ends]
    else:
        local, of_card = np.divmod(links, cards)
        mine = [end == node for end in inter.topology.ends(local, nodes, 1)]
        if card is not None:
            mine = [end & (of_card == card) for end in mine]
    return numbering.between + links[mine[0] | mine[1]]


def _among(ends: Ints, first: int, count: int, one: int | None) -> Bools:
    if one is not None:
        return np.asarray(ends == first + one)
    return np.asarray((ends >= first) & (ends < first + count))


def _of_rank(numbering: Numbering, rank: int) -> Ints:
    if rank >= numbering.world_size:
        return np.empty(0, dtype=np.int64)
    node, place = divmod(rank, numbering.local_size)
    kind = numbering.inside[numbering.kind_of[node]]
    links = np.arange(kind.num_links)
    leaves, enters = kind.topology.ends(links, numbering.local_size, kind.cards)
    mine: Ints = links[(leaves == place) | (enters == place)]
    return mine + int(numbering.first[node])
