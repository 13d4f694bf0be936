"""Dragonfly: groups of routers, fully joined inside, and a link between every two groups."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Floats, Ints
from simdp.cluster.link import Link
from simdp.cluster.topologies.base import Topology, compact
from simdp.spec import Int, Seconds


class DragonflyTopology(Topology):
    """Groups of routers; minimal routes: at most one link in each group and one between them.

    Kim, Dally, Scott and Abts, "Technology-driven, highly-scalable dragonfly topology", ISCA 2008.
    Routers of a group are joined pairwise; so are groups, whose links are dealt out to the routers
    in order of the group that they lead to, counted from their own.

    Attributes
    ----------
    ports_per_router, routers_per_group : int
        Endpoints of a router, p, and routers of a group, a; a balanced dragonfly has a = 2 p.
    groups : int or None
        Groups that there are; None: as many as needed.
    links_per_pair : int
        Cables between two groups, which act as one link of their joint bandwidth.
    trunk_alpha : float or None
        Latency of a link between routers [s]; None: as that of a port's.
    """

    kind: Literal["dragonfly"] = "dragonfly"

    of_ports: ClassVar[bool] = True

    ports_per_router: Int = Field(4, ge=1, le=2**16)
    routers_per_group: Int = Field(8, ge=1, le=2**16)
    groups: Int | None = Field(None, ge=1, le=2**16)
    links_per_pair: Int = Field(1, ge=1, le=2**16)
    trunk_alpha: Seconds | None = None

    def capacity(self) -> int | None:
        if self.groups is None:
            return None
        return self.groups * self.routers_per_group * self.ports_per_router

    # Links: ports up, ports down, from router to router of each group (a x a of them), and from
    # group to group (g x g). Vertices: ports, then routers, group by group.

    def _sizes(self, n: int) -> tuple[int, int, int, int]:
        """Groups g, first local link, first global link, and all links."""
        a = self.routers_per_group
        g = self.groups or -(-n // (a * self.ports_per_router))
        return g, 2 * n, 2 * n + g * a * a, 2 * n + g * a * a + g * g

    def _gate(self, group: Ints, other: Ints, g: int) -> Ints:
        """Router of a group that has its link to another group."""
        each = max(-(-(g - 1) // self.routers_per_group), 1)
        return group * self.routers_per_group + ((other - group) % g - 1) // each

    def num_links(self, n: int, per_node: int = 1) -> int:
        return self._sizes(n)[3]

    def ends(self, links: Ints, n: int, per_node: int = 1) -> tuple[Ints, Ints]:
        a, (g, local, between, _) = self.routers_per_group, self._sizes(n)
        port = links % n
        router = port // self.ports_per_router
        here, to = np.divmod(links - local, a)
        group, other = np.divmod(np.maximum(links - between, 0), g)
        sort = np.searchsorted([n, local, between], links, side="right")
        leaves = [port, n + router, n + here, n + self._gate(group, other, g)]
        enters = [n + router, port, n + here // a * a + to, n + self._gate(other, group, g)]
        return np.choose(sort, leaves), np.choose(sort, enters)

    def routes(self, src: Ints, dst: Ints, n: int, per_node: int = 1) -> Ints:
        a, (g, local, between, _) = self.routers_per_group, self._sizes(n)
        first, last = src // self.ports_per_router, dst // self.ports_per_router
        group, other = first // a, last // a
        leaves = group != other
        exit_ = np.where(leaves, self._gate(group, other, g), last)
        entry = np.where(leaves, self._gate(other, group, g), last)
        return compact(
            np.stack(
                [
                    src,
                    np.where(first != exit_, local + first * a + exit_ % a, -1),
                    np.where(leaves, between + group * g + other, -1),
                    np.where(entry != last, local + entry * a + last % a, -1),
                    n + dst,
                ],
                axis=1,
            )
        )

    def figures(self, links: Ints, link: Link, n: int, per_node: int = 1) -> tuple[Floats, Floats]:
        _, local, between, _ = self._sizes(n)
        trunk_alpha = link.alpha if self.trunk_alpha is None else self.trunk_alpha
        return (
            np.where(links >= local, trunk_alpha, link.alpha),
            link.bandwidth * np.where(links >= between, float(self.links_per_pair), 1.0),
        )

    def switch_name(self, vertex: int, n: int, per_node: int = 1) -> str:
        group, router = divmod(vertex - n, self.routers_per_group)
        return f"router {router} of group {group}"
