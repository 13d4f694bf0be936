"""Base of topologies, shortest paths of a graph, and a topology with listed links."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import ClassVar, Literal, NamedTuple, Self, TypeVar

import numpy as np
from pydantic import Field, field_validator

from simdp.arrays import Bools, Floats, Ints
from simdp.cluster.hardware import Link
from simdp.spec import Float, Int, Spec, problem

V = TypeVar("V", int, str)
"""A vertex of a graph."""


class Topology(Spec):
    """Directed links between endpoints.

    Inside a node the endpoints are its devices. Between nodes they are the ports of the network
    cards, node by node (``of_ports``), or the nodes themselves, with one copy of the network per
    card. Links and vertices are numbered from 0: first the ``n`` endpoints, then switches.
    ``per_node`` is the number of cards of a node; only topologies that model cards use it.
    """

    kind: str

    of_ports: ClassVar[bool] = False
    """Whether, between nodes, every card's port is an endpoint."""

    only_inside: ClassVar[bool] = False
    """Whether it describes the inside of a node, and cannot connect nodes."""

    def capacity(self) -> int | None:
        """Return the maximum number of endpoints; None without a limit."""
        return None

    def problem_with(self, n: int, per_node: int = 1) -> str | None:
        """Explain why it cannot connect ``n`` endpoints, led by a key or a kind, or None."""
        return None

    @abstractmethod
    def num_links(self, n: int, per_node: int = 1) -> int:
        """Return the number of directed links of ``n`` endpoints."""

    @abstractmethod
    def ends(self, links: Ints, n: int, per_node: int = 1) -> tuple[Ints, Ints]:
        """Return the vertices that each link leaves and enters, two arrays shaped as ``links``."""

    @abstractmethod
    def routes(self, src: Ints, dst: Ints, n: int, per_node: int = 1) -> Ints:
        """Return the links of many routes.

        Parameters
        ----------
        src, dst : ndarray, shape `(num_routes,)`, int64
            The different endpoints of each route. An adjacent reducing switch (see `parents`) may
            replace one of them.
        n : int
            Number of endpoints.
        per_node : int
            Cards of a node.

        Returns
        -------
        ndarray, shape `(num_routes, longest)`, int64
            Link numbers in order of travel; shorter routes end in -1.
        """

    def figures(self, links: Ints, link: Link, n: int, per_node: int = 1) -> tuple[Floats, Floats]:
        """Return alpha [s] and bandwidth [bytes/s] of links, two arrays shaped as ``links``.

        Every link has the given figures, unless a subclass overrides this. Entries of -1 may get
        any value.
        """
        return np.full(links.shape, link.alpha), np.full(links.shape, link.bandwidth)

    def begins_stage(self, links: Ints, n: int, per_node: int = 1) -> Bools:
        """Return before which links a route is stored and forwarded, as in host memory.

        Such a route sends its bytes stage after stage, so that the times of its stages add up.
        """
        return np.zeros(links.shape, dtype=np.bool_)

    def switch_name(self, vertex: int, n: int, per_node: int = 1) -> str:
        """Name a switch, for messages: ``"leaf switch 3"``."""
        return "the switch"

    def num_cards(self, per_node: int) -> int:
        """Return the number of network cards that it places, as vertices n, n + 1, ...; 0 for none.

        A route between nodes then includes links between device and card.
        """
        return 0

    def bonded(self, count: int) -> Self:
        """Return it with ``count`` network cards as one endpoint; a ValueError says why not."""
        return self

    def spared(self, used: Ints, n: int, per_node: int) -> dict[str, str]:
        """Return oversubscribed tiers without a used link, by key: where all traffic stays."""
        return {}

    def parents(self, n: int, per_node: int = 1) -> Ints | None:
        """Return the parents of the reduction tree, for reductions inside the network.

        Returns
        -------
        ndarray, shape `(n + num_reducers,)`, int64, or None
            The switch that each endpoint, and each reducing switch, sends its sum to; -1 for the
            last one. Reducing switches are the vertices n ... n + num_reducers - 1. None if the
            network cannot add.
        """
        return None

    def parts(self, n: int, per_node: int = 1) -> Ints | None:
        """Return the connected component of each endpoint; None if all are connected."""
        return None


def compact(links: Ints) -> Ints:
    """Move the -1 of every row to its end, and remove columns of -1 only."""
    missing = links < 0
    longest = int((~missing).sum(axis=1).max(initial=0))
    if missing[:, :longest].any():
        order = np.argsort(missing, axis=1, kind="stable")
        links = np.take_along_axis(links, order, axis=1)
    return links[:, :longest]


# Graph --------------------------------------------------------------------------------------------

MAX_ENDPOINTS = 256
"""Limit of endpoints of a table of routes, which has a row for every pair."""


class Edge(NamedTuple):
    """A full-duplex connection: link ``2 i`` of edge i leads from ``u`` to ``v``, the next back."""

    u: int
    v: int
    width: float  # bandwidth of each direction, over that of the given link


Edges = tuple[Edge, ...]


def neighbours_of(vertices: Iterable[V], pairs: Iterable[tuple[V, V]]) -> dict[V, list[V]]:
    """Return the neighbours of each vertex of a graph, of these vertices and those of its edges."""
    neighbours: dict[V, list[V]] = {vertex: [] for vertex in vertices}
    for u, v in pairs:
        neighbours.setdefault(u, []).append(v)
        neighbours.setdefault(v, []).append(u)
    return neighbours


def hops_from(source: V, neighbours: Mapping[V, Iterable[V]]) -> dict[V, int]:
    """Return the number of edges to each vertex that is connected with another one."""
    hops, reached = {source: 0}, [source]
    for vertex in reached:  # which grows
        for near in neighbours[vertex]:
            if near not in hops:
                hops[near] = hops[vertex] + 1
                reached.append(near)
    return hops


def _shortest_paths(
    target: int, hops: Mapping[int, int], neighbours: Mapping[int, Iterable[int]]
) -> Iterator[tuple[int, ...]]:
    """Yield each path of fewest edges from the vertex that ``hops`` start from."""
    if not hops[target]:
        yield (target,)
    for near in neighbours[target]:
        if hops[near] < hops[target]:
            for path in _shortest_paths(near, hops, neighbours):
                yield (*path, target)


@lru_cache(maxsize=64)
def route_table(edges: Edges, n: int) -> Ints:
    """Return the route of every pair of endpoints: fewest links, then widest, then lowest numbers.

    Parameters
    ----------
    edges : tuple of Edge
        At most one between any two vertices.
    n : int
        Endpoints; they are the vertices below n.

    Returns
    -------
    ndarray, shape `(n, n, longest)`, int64
        Links in order of travel, filled up with -1; only -1 without a route.
    """
    number = {(edge.u, edge.v): 2 * i for i, edge in enumerate(edges)}
    number |= {(edge.v, edge.u): 2 * i + 1 for i, edge in enumerate(edges)}
    neighbours = neighbours_of(range(n), [(edge.u, edge.v) for edge in edges])
    routes: dict[tuple[int, int], list[int]] = {}
    for src in range(n):
        hops = hops_from(src, neighbours)
        for dst in sorted(vertex for vertex in hops if vertex < n and vertex != src):
            if (src, dst) in number:
                routes[src, dst] = [number[src, dst]]
                continue
            ways = (
                [number[hop] for hop in pairwise(path)]
                for path in _shortest_paths(dst, hops, neighbours)
            )
            routes[src, dst] = min(ways, key=lambda way: (-_narrowest(edges, way), way))
    table = np.full((n, n, max(map(len, routes.values()), default=0)), -1, dtype=np.int64)
    for (src, dst), way in routes.items():
        table[src, dst, : len(way)] = way
    return table


def _narrowest(edges: Edges, way: list[int]) -> float:
    return min(edges[link // 2].width for link in way)


def connected_parts(edges: Edges, n: int) -> Ints:
    """Label endpoints by the lowest connected endpoint, `(n,)`."""
    neighbours = neighbours_of(range(n), [(edge.u, edge.v) for edge in edges])
    labels = np.full(n, -1, dtype=np.int64)
    for src in range(n):
        if labels[src] < 0:
            labels[[vertex for vertex in hops_from(src, neighbours) if vertex < n]] = src
    return labels


class GraphTopology(Topology):
    """A topology with listed edges and searched routes."""

    @abstractmethod
    def edges(self, n: int) -> Edges:
        """Return every connection of ``n`` endpoints; vertices from n on are switches."""

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


class Connection(Spec):
    """A full-duplex connection of two endpoints, or of an endpoint and a switch."""

    ends: list[Int | str] = Field(json_schema_extra={"minItems": 2, "maxItems": 2})
    """Two of them: an endpoint's number, or a switch's name."""
    width: Float = Field(1.0, gt=0, le=1e6)
    """Bandwidth relative to the given link, for several parallel cables."""

    @field_validator("ends")
    @classmethod
    def _two_of_them(cls, ends: list[int | str]) -> list[int | str]:
        if len(ends) != 2 or ends[0] == ends[1]:
            raise problem(f"{ends} are no two ends; give two different endpoints or switches.")
        for end in ends:
            if isinstance(end, int) and not 0 <= end < MAX_ENDPOINTS:
                raise problem(f"endpoint {end} does not exist; give 0 ... {MAX_ENDPOINTS - 1}.")
        return ends


class CustomTopology(GraphTopology):
    """The connections in ``links``; routes use the fewest of them, then the widest."""

    kind: Literal["custom"] = "custom"

    links: list[Connection] = Field(min_length=1)
    """Each between two endpoints (numbers) or switches (names). Those of unused endpoints, as in a
    partly used node, are ignored."""

    @field_validator("links")
    @classmethod
    def _each_once(cls, links: list[Connection]) -> list[Connection]:
        seen = list[set[int | str]]()
        for connection in links:
            if set(connection.ends) in seen:
                raise problem(f"{connection.ends} are connected twice; add up the widths.")
            seen.append(set(connection.ends))
        return links

    def capacity(self) -> int:
        return MAX_ENDPOINTS

    def _switches(self) -> list[str]:
        named = (end for connection in self.links for end in connection.ends)
        return list(dict.fromkeys(end for end in named if isinstance(end, str)))

    def edges(self, n: int) -> Edges:
        switches = self._switches()
        edges = []
        for connection in self.links:
            u, v = (e if isinstance(e, int) else n + switches.index(e) for e in connection.ends)
            if all(isinstance(end, str) or end < n for end in connection.ends):
                edges.append(Edge(u, v, connection.width))
        return tuple(edges)

    def switch_name(self, vertex: int, n: int, per_node: int = 1) -> str:
        return f"switch {self._switches()[vertex - n]}"
