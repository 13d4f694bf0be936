"""Names of a cluster's links, for messages and reports."""

from __future__ import annotations

import numpy as np

from simdp.cluster.numbering import Numbering
from simdp.cluster.topologies import Topology


def link_name(numbering: Numbering, link: int) -> str:
    """Describe a link: ``"the link from rank 3 to rank 4"``; no two links are called the same."""
    inside = link < numbering.between
    ends = _inside_a_node(numbering, link) if inside else _between_nodes(numbering, link)
    return "the link from {} to {}".format(*ends)


def _between_nodes(numbering: Numbering, link: int) -> list[str]:
    assert numbering.inter is not None
    cards, nodes = numbering.cards, numbering.num_nodes
    topology, number = numbering.inter.topology, link - numbering.between
    if topology.of_ports:
        n = nodes * cards
        return [
            f"card {end % cards} of node {end // cards}"
            if end < n
            else topology.switch_name(end, n, cards).replace("the ", "the inter-node ")
            for end in _ends(topology, number, n, cards)
        ]
    number, card = divmod(number, cards)
    return [
        f"card {card} of node {end}"
        if end < nodes
        else f"{topology.switch_name(end, nodes)} for card {card}"
        for end in _ends(topology, number, nodes, 1)
    ]


def _inside_a_node(numbering: Numbering, link: int) -> list[str]:
    m, node = numbering.local_size, int(numbering.node_of(np.array([link]))[0])
    kind = numbering.inside[numbering.kind_of[node]]
    ends = _ends(kind.topology, link - int(numbering.first[node]), m, kind.cards)
    placed = m + kind.topology.num_cards(kind.cards)
    names = [
        f"rank {node * m + end}"
        if end < m
        else f"card {end - m} of node {node}"
        if end < placed
        else kind.topology.switch_name(end, m, kind.cards)
        for end in ends
    ]
    if min(ends) >= placed and numbering.num_nodes > 1:
        names[1] += f" of node {node}"
    return names


def _ends(topology: Topology, link: int, n: int, per_node: int) -> list[int]:
    """Vertices that one link leaves and enters."""
    return [int(end[0]) for end in topology.ends(np.array([link]), n, per_node)]
