"""Numbers and names of all links of a cluster.

Links are numbered node by node, then those between nodes. Vertices: ranks, then switches that add.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from pydantic import ConfigDict, Field, ValidationInfo, field_validator

from simdp.arrays import Bools, Floats, Ints
from simdp.cluster.hardware import AnyLink, Link, one_or_list
from simdp.cluster.topologies import AnyTopology
from simdp.cluster.topologies.base import Topology, compact
from simdp.cluster.topologies.direct import SwitchTopology
from simdp.spec import Int, Spec


class InterNode(Spec):
    """The network between nodes."""

    model_config = ConfigDict(json_schema_extra={"required": []})  # a machine may bring the link

    topology: AnyTopology = SwitchTopology()
    """Topology of the nodes."""
    link: AnyLink | list[AnyLink]
    """One direction of one link, from a network card to the switch or to another card; or one per
    node, for the links at that node's ports."""
    links_per_node: Int = Field(1, ge=1, le=1024)
    """Network cards per node, k: local rank r uses card ``r % k``. With switches every card has a
    separate port; a ring or a full mesh of nodes exists k times. Where a node of m ranks has a
    multiple of m cards, each rank spreads its traffic evenly over k / m of them, which act as one
    card with their total bandwidth."""
    nics: list[Int] | None = None
    """The card of each device of a node, instead of ``r % k``; it uses no other card."""

    @field_validator("link", mode="wrap")
    @classmethod
    def _one_or_a_list(cls, value: object, handler: object, info: ValidationInfo) -> Any:
        return one_or_list(AnyLink, value, info)

    def links(self, num_nodes: int) -> list[Link]:
        """Return one link per node."""
        return self.link if isinstance(self.link, list) else [self.link] * num_nodes

    def bonded(self, count: int) -> InterNode:
        """Return it with ``count`` cards of a node as one; a ValueError says why not."""
        if count == 1:
            return self
        cards, links = self.links_per_node // count, self.links(1)
        wide = [link.model_copy(update={"bandwidth": count * link.bandwidth}) for link in links]
        link = wide if isinstance(self.link, list) else wide[0]
        update = {"topology": self.topology.bonded(count), "link": link, "links_per_node": cards}
        return self.model_copy(update=update)


NO_LINK = Link(alpha="0 s", bandwidth="1 B/s")
"""Placeholder for nodes of one device, which have no link."""


@dataclass(frozen=True)
class NodeKind:
    """Interior of nodes of one kind."""

    topology: Topology  # inside the node
    link: Link  # inside the node
    cards: int  # network cards for the topology to place; else 1, if it does not model cards
    num_links: int  # of one node
    nodes: Ints


class Numbering:
    """The numbering of a cluster's links and vertices.

    Parameters
    ----------
    num_nodes, local_size : int
        Nodes, and ranks of each.
    topologies, links : Topology, Link, or a sequence with one per node
        Inside the nodes.
    inter_node : InterNode or None
        Between them.
    bond : int, optional
        Network cards of a node that act as one, for the same rank.

    Attributes
    ----------
    inter : InterNode or None
        The network between nodes, with bonded cards.
    cards : int
        Network cards per node; bonded ones count once.
    inside : list of NodeKind
        Nodes grouped by their interior.
    first : ndarray, shape `(num_nodes + 1,)`
        First link of each node, and of those between nodes.
    between : int
        First link between nodes.
    num_links : int
        All links.
    nics : ndarray, shape `(local_size,)`
        The network card of each local rank.
    """

    def __init__(
        self,
        num_nodes: int,
        local_size: int,
        topologies: Topology | Sequence[Topology],
        links: Link | Sequence[Link] | None,
        inter_node: InterNode | None,
        bond: int = 1,
    ) -> None:
        self.num_nodes, self.local_size, self.bond = num_nodes, local_size, bond
        self.inter = inter_node and inter_node.bonded(bond)
        self.world_size = num_nodes * local_size
        self.cards = self.inter.links_per_node if self.inter else 0
        self.inside = self._kinds(topologies, links)
        self.kind_of = np.zeros(num_nodes, dtype=np.int64)
        counts = np.zeros(num_nodes, dtype=np.int64)
        for number, kind in enumerate(self.inside):
            self.kind_of[kind.nodes], counts[kind.nodes] = number, kind.num_links
        self.first = np.append(0, np.cumsum(counts))
        self.between = int(self.first[-1])
        self.num_links = self.between + self._num_between()
        nics = np.arange(local_size) % max(self.cards, 1)
        if inter_node and inter_node.nics is not None:
            nics = np.array(inter_node.nics[:local_size], dtype=np.int64)
        self.nics = nics

    def _kinds(
        self, topologies: Topology | Sequence[Topology], links: Link | Sequence[Link] | None
    ) -> list[NodeKind]:
        n = self.num_nodes
        if isinstance(topologies, Topology) and isinstance(links, Link | None):
            return [self._kind(topologies, links or NO_LINK, np.arange(n))]
        of_node = [topologies] * n if isinstance(topologies, Topology) else topologies
        link_of_node = [links or NO_LINK] * n if isinstance(links, Link | None) else links
        pairs: list[tuple[Topology, Link]] = []
        which: list[int] = []
        for pair in zip(of_node, link_of_node, strict=True):
            if pair not in pairs:
                pairs.append(pair)
            which.append(pairs.index(pair))
        return [
            self._kind(*pair, np.flatnonzero(np.array(which) == number))
            for number, pair in enumerate(pairs)
        ]

    def _kind(self, topology: Topology, link: Link, nodes: Ints) -> NodeKind:
        cards = self.cards if topology.only_inside else 1
        num_links = topology.num_links(self.local_size, cards)
        return NodeKind(topology, link, cards, num_links, nodes)

    def _num_between(self) -> int:
        if not self.inter:
            return 0
        if self.inter.topology.of_ports:
            return self.inter.topology.num_links(self.num_nodes * self.cards, self.cards)
        return self.inter.topology.num_links(self.num_nodes) * self.cards

    @cached_property
    def inside_parents(self) -> Ints | None:
        """As `Topology.parents` of every node; None if nodes cannot add, or differ."""
        first, *others = (k.topology.parents(self.local_size, k.cards) for k in self.inside)
        if first is None or any(o is None or not np.array_equal(first, o) for o in others):
            return None
        return first

    @cached_property
    def across_parents(self) -> Ints | None:
        """As `Topology.parents` of the network, over the ports of the network cards."""
        if not self.inter or not self.inter.topology.of_ports:
            return None
        return self.inter.topology.parents(self.num_nodes * self.cards, self.cards)

    # Vertices: ranks; then the switches that add inside node 0, node 1, ...; then those between.

    @property
    def num_inside_reducers(self) -> int:
        """Reducing switches of each node."""
        return 0 if self.inside_parents is None else len(self.inside_parents) - self.local_size

    @property
    def first_across_reducer(self) -> int:
        """The first reducing switch between nodes."""
        return self.world_size + self.num_nodes * self.num_inside_reducers

    def card_name(self, card: int) -> str:
        """Name a network card of a node, or the cards of a bond: ``cards 4-7``."""
        first = card * self.bond
        return f"card {card}" if self.bond == 1 else f"cards {first}-{first + self.bond - 1}"

    def ports(self, ranks: Ints) -> Ints:
        """Return ports of ranks' network cards: ``node * cards + card``."""
        return ranks // self.local_size * self.cards + self.nics[ranks % self.local_size]

    def _locate(self, vertices: Ints) -> tuple[Ints, Ints]:
        """Return the node of each vertex (-1 between nodes) and its number there."""
        if vertices.max(initial=0) < self.world_size:
            return vertices // self.local_size, vertices % self.local_size
        per_node = max(self.num_inside_reducers, 1)
        inside = vertices - self.world_size
        across = vertices - self.first_across_reducer
        is_rank, is_across = inside < 0, across >= 0
        node = np.where(is_rank, vertices // self.local_size, inside // per_node)
        place = np.where(is_rank, vertices % self.local_size, self.local_size + inside % per_node)
        ports = self.num_nodes * self.cards
        return np.where(is_across, -1, node), np.where(is_across, ports + across, place)

    def routes(self, src: Ints, dst: Ints) -> Ints:
        """Return the links of many routes, as `Cluster.routes`."""
        here, src_place = self._locate(src)
        there, dst_place = self._locate(dst)
        inside = (here == there) & (here >= 0)
        if inside.all():
            return self._inside(here, src_place, dst_place)
        if not inside.any():
            return self._across(here, src_place, there, dst_place)
        outside = ~inside
        between = self._across(
            here[outside], src_place[outside], there[outside], dst_place[outside]
        )
        within = self._inside(here[inside], src_place[inside], dst_place[inside])
        links = np.full((len(src), max(between.shape[1], within.shape[1])), -1, dtype=np.int64)
        links[inside, : within.shape[1]] = within
        links[outside, : between.shape[1]] = between
        return links

    def _inside(self, node: Ints, src: Ints, dst: Ints) -> Ints:
        """Return routes between vertices of a node, each pair in its node."""
        m, parts = self.local_size, []
        for number, kind in enumerate(self.inside):
            rows = np.flatnonzero(self.kind_of[node] == number)
            links = kind.topology.routes(src[rows], dst[rows], m, kind.cards)
            shift = self.first[node[rows]][:, None]
            parts.append((rows, np.where(links >= 0, links + shift, -1)))
        if len(parts) == 1:
            return parts[0][1]
        longest = max(links.shape[1] for _, links in parts)
        links = np.full((len(src), longest), -1, dtype=np.int64)
        for rows, part in parts:
            links[rows, : part.shape[1]] = part
        return links

    def _across(self, here: Ints, src: Ints, there: Ints, dst: Ints) -> Ints:
        """Return routes between nodes, with those to and from cards that the node places."""
        assert self.inter is not None
        topology, cards, m = self.inter.topology, self.cards, self.local_size
        src_card = np.where(here >= 0, self.nics[np.minimum(src, m - 1)], 0)
        if topology.of_ports:
            dst_card = np.where(there >= 0, self.nics[np.minimum(dst, m - 1)], 0)
            links = topology.routes(
                np.where(here >= 0, here * cards + src_card, src),
                np.where(there >= 0, there * cards + dst_card, dst),
                self.num_nodes * cards,
                cards,
            )
        else:
            dst_card = src_card
            links = topology.routes(here, there, self.num_nodes)
            links = np.where(links >= 0, links * cards + src_card[:, None], -1)
        links = np.where(links >= 0, links + self.between, -1)
        if not any(kind.topology.num_cards(kind.cards) for kind in self.inside):
            return links
        to_card = self._to_card(here, src, m + src_card)
        from_card = self._to_card(there, m + dst_card, dst)
        return compact(np.concatenate([to_card, links, from_card], axis=1))

    def _to_card(self, node: Ints, src: Ints, dst: Ints) -> Ints:
        """Return routes between a device and a card of its node; empty without placed cards."""
        placed = np.array([kind.topology.num_cards(kind.cards) > 0 for kind in self.inside])
        rows = np.flatnonzero((node >= 0) & placed[self.kind_of[node]])
        part = self._inside(node[rows], src[rows], dst[rows])
        links = np.full((len(src), part.shape[1]), -1, dtype=np.int64)
        links[rows] = part
        return links

    # Figures and names -----------------------------------------------------------------------

    def node_of(self, links: Ints) -> Ints:
        """Return the node of links inside nodes; any node for others."""
        node = np.searchsorted(self.first, links, side="right") - 1
        return np.asarray(np.clip(node, 0, self.num_nodes - 1))

    def figures(self, links: Ints) -> tuple[Floats, Floats]:
        """Return alpha [s] and bandwidth [bytes/s], two arrays shaped as ``links``."""
        alpha, bandwidth = np.zeros(links.shape), np.ones(links.shape)
        node = self.node_of(links)
        within = (links >= 0) & (links < self.between)
        kind_of = self.kind_of[node]
        for number, kind in enumerate(self.inside):
            mine = within & (kind_of == number)
            local = links[mine] - self.first[node[mine]]
            alpha[mine], bandwidth[mine] = kind.topology.figures(
                local, kind.link, self.local_size, kind.cards
            )
        between = links >= self.between
        if self.inter and between.any():
            figures = self._between_figures(self.inter, links[between] - self.between)
            alpha[between], bandwidth[between] = figures
        return alpha, bandwidth

    def _between_figures(self, inter: InterNode, links: Ints) -> tuple[Floats, Floats]:
        cards = self.cards if inter.topology.of_ports else 1
        n = self.num_nodes * cards
        local = links if inter.topology.of_ports else links // self.cards
        if not isinstance(inter.link, list):
            return inter.topology.figures(local, inter.link, n, cards)
        # The slower of the links at both ends; between switches, the fastest of all.
        kinds: list[Link] = []
        for link in inter.link:
            if link not in kinds:
                kinds.append(link)
        fastest = max(range(len(kinds)), key=lambda i: kinds[i].bandwidth)
        at_node = np.array([kinds.index(link) for link in inter.link])
        leaves, enters = inter.topology.ends(local, n, cards)
        alpha, bandwidth = np.zeros(links.shape), np.full(links.shape, np.inf)
        for end, other in ((leaves, enters), (enters, leaves)):
            endpoint = end < n
            which = np.where(endpoint, at_node[np.minimum(end, n - 1) // cards], fastest)
            counts = endpoint | (other >= n)
            for number, link in enumerate(kinds):
                mine = counts & (which == number)
                figures = inter.topology.figures(local[mine], link, n, cards)
                alpha[mine] = np.maximum(alpha[mine], figures[0])
                bandwidth[mine] = np.minimum(bandwidth[mine], figures[1])
        return alpha, bandwidth

    def begins_stage(self, links: Ints) -> Bools:
        """Return before which links a route is stored and forwarded."""
        begins = np.zeros(links.shape, dtype=np.bool_)
        node = self.node_of(links)
        within = (links >= 0) & (links < self.between)
        for number, kind in enumerate(self.inside):
            mine = within & (self.kind_of[node] == number)
            local = links[mine] - self.first[node[mine]]
            begins[mine] = kind.topology.begins_stage(local, self.local_size, kind.cards)
        return begins

    def unconnected(self) -> tuple[int, int] | None:
        """Return two ranks without a route between them, or None."""
        m = self.local_size
        for kind in self.inside:
            parts = kind.topology.parts(m, kind.cards)
            apart = np.flatnonzero(parts != parts[0]) if parts is not None else np.empty(0)
            if len(apart):
                start = int(kind.nodes[0]) * m
                return start, start + int(apart[0])
        if self.inter is None or self.num_nodes == 1:
            return None
        ranks = np.arange(self.world_size)
        of_ports = self.inter.topology.of_ports
        n, per_node = self.num_nodes * (self.cards if of_ports else 1), self.cards
        parts = self.inter.topology.parts(n, per_node if of_ports else 1)
        if parts is None:
            return None
        parts = parts[self.ports(ranks) if of_ports else ranks // m]
        for rank in (0, *np.flatnonzero(parts[:m] != parts[0])[:1].tolist()):
            apart = np.flatnonzero((parts != parts[rank]) & (ranks >= m))
            if len(apart):
                return int(rank), int(apart[0])
        return None


# Link names ---------------------------------------------------------------------------------------


def link_name(numbering: Numbering, link: int) -> str:
    """Describe a link: ``"the link from rank 3 to rank 4"``; descriptions are unique."""
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
            f"{numbering.card_name(end % cards)} of node {end // cards}"
            if end < n
            else topology.switch_name(end, n, cards).replace("the ", "the inter-node ")
            for end in _ends(topology, number, n, cards)
        ]
    number, card = divmod(number, cards)
    name = numbering.card_name(card)
    return [
        f"{name} of node {end}" if end < nodes else f"{topology.switch_name(end, nodes)} for {name}"
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
        else f"{numbering.card_name(end - m)} of node {node}"
        if end < placed
        else kind.topology.switch_name(end, m, kind.cards)
        for end in ends
    ]
    if min(ends) >= placed and numbering.num_nodes > 1:
        names[1] += f" of node {node}"
    return names


def _ends(topology: Topology, link: int, n: int, per_node: int) -> list[int]:
    """Return the vertices that one link leaves and enters."""
    return [int(end[0]) for end in topology.ends(np.array([link]), n, per_node)]
