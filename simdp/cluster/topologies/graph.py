"""Graphs: topologies whose routes are searched for, with networkx, and kept as tables."""

from __future__ import annotations

from abc import abstractmethod
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from simdp.arrays import Floats, Ints
from simdp.cluster.link import Link
from simdp.cluster.topologies.base import Topology

MAX_ENDPOINTS = 256
"""A table of routes has a row for every pair of endpoints, and every pair is searched for."""


class Edge(NamedTuple):
    """A full-duplex connection: link ``2 i`` of edge i leads from ``u`` to ``v``, the next back.

    Attributes
    ----------
    u, v : int
        Vertices.
    width : float
        Bandwidth of each direction, over that of the given link.
    """

    u: int
    v: int
    width: float


Edges = tuple[Edge, ...]


@lru_cache(maxsize=64)
def route_table(edges: Edges, n: int) -> Ints:
    """Route every pair of endpoints: fewest links, then the widest, then the lowest link numbers.

    Parameters
    ----------
    edges : tuple of Edge
        Between any two vertices at most one.
    n : int
        Endpoints; they are the vertices below n.

    Returns
    -------
    ndarray, shape `(n, n, longest)`, int64
        Links in order of travel, filled up with -1; none where there is no way.
    """
    import networkx as nx

    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from(range(n))
    graph.add_edges_from((edge.u, edge.v) for edge in edges)
    number = {(edge.u, edge.v): 2 * i for i, edge in enumerate(edges)}
    number |= {(edge.v, edge.u): 2 * i + 1 for i, edge in enumerate(edges)}
    found: dict[tuple[int, int], list[int]] = {}
    for part in nx.connected_components(graph):
        ends = sorted(vertex for vertex in part if vertex < n)
        for src, dst in ((s, d) for s in ends for d in ends if s != d):
            if (src, dst) in number:
                found[src, dst] = [number[src, dst]]
                continue
            ways = (
                [number[hop] for hop in pairwise(path)]
                for path in nx.all_shortest_paths(graph, src, dst)
            )
            found[src, dst] = min(ways, key=lambda way: (-_narrowest(edges, way), way))
    table = np.full((n, n, max(map(len, found.values()), default=0)), -1, dtype=np.int64)
    for (src, dst), way in found.items():
        table[src, dst, : len(way)] = way
    return table


def _narrowest(edges: Edges, way: list[int]) -> float:
    return min(edges[link // 2].width for link in way)


def connected_parts(edges: Edges, n: int) -> Ints:
    """Label endpoints by the lowest endpoint that they are connected with, `(n,)`."""
    import networkx as nx

    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from(range(n))
    graph.add_edges_from((edge.u, edge.v) for edge in edges)
    labels = np.zeros(n, dtype=np.int64)
    for part in nx.connected_components(graph):
        ends = [vertex for vertex in part if vertex < n]
        labels[ends] = min(ends, default=0)
    return labels


class GraphTopology(Topology):
    """A topology that lists its edges and leaves the routes to a search."""

    @abstractmethod
    def edges(self, n: int) -> Edges:
        """Every connection of ``n`` endpoints; vertices from n on are switches."""

    def num_links(self, n: int, per_node: int = 1) -> int:
        return 2 * len(self.edges(n))

    def ends(self, links: Ints, n: int, per_node: int = 1) -> tuple[Ints, Ints]:
        both = np.array([(e.u, e.v) for e in self.edges(n)], dtype=np.int64).reshape(-1, 2)
        return both[links // 2, links % 2], both[links // 2, 1 - links % 2]

    def routes(self, src: Ints, dst: Ints, n: int, per_node: int = 1) -> Ints:
        return route_table(self.edges(n), n)[src, dst]

    def figures(self, links: Ints, link: Link, n: int, per_node: int = 1) -> tuple[Floats, Floats]:
        width = np.array([edge.width for edge in self.edges(n)] or [1.0])
        return np.full(links.shape, link.alpha), link.bandwidth * width[links // 2]

    def parts(self, n: int, per_node: int = 1) -> Ints:
        return connected_parts(self.edges(n), n)
