"""Switched fabrics of several tiers: fat tree, rail-optimised, dragonfly."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from simdp.arrays import Floats, Ints
from simdp.cluster.hardware import Link
from simdp.cluster.topologies.base import Topology, compact
from simdp.spec import Bool, Float, Int, Seconds, problem


@dataclass(frozen=True)
class Clos:
    """The used switches, and the width of the links between them."""

    num_ports: int  # endpoints, n
    leaves: int  # leaf switches
    # groups of leaves with separate spine switches; 1 if every spine has a link to every leaf
    pods: int
    leaves_per_pod: int  # the last pod may have fewer
    spines: int  # spine switches per pod, each with a link to every leaf of the pod; 0 without any
    cores: int  # core switches over spine i of every pod; 0 without any
    # leaf_trunk, pod_trunk: bandwidth of a link between leaf and spine, and between spine and core,
    # over a port's
    leaf_trunk: float
    pod_trunk: float

    # Links: ports up, ports down, leaf to spine, spine to leaf, spine to core, core to spine.

    @property
    def starts(self) -> list[int]:
        """First link of each of the six kinds, and the number of links."""
        n, trunks = self.num_ports, self.leaves * self.spines
        cables = self.pods * self.spines * self.cores
        counts = [n, n, trunks, trunks, cables, cables]
        return [sum(counts[:i]) for i in range(7)]

    # Vertices: ports, leaves, spine 0 of each pod, core 0, then the other spines and cores; so
    # those of the reduction tree, which uses only spine 0 and core 0, come first.

    @property
    def first_spine(self) -> int:
        """Spine 0 of pod 0."""
        return self.num_ports + self.leaves

    @property
    def first_core(self) -> int:
        """Core 0, or the vertex in its place."""
        return self.first_spine + (self.pods if self.spines else 0)

    def spine(self, pod: Ints, number: Ints) -> Ints:
        """Return vertices of spines by pod and number."""
        rest = self.first_core + (self.cores > 0)
        other = rest + (number - 1) * self.pods + pod
        return np.where(number == 0, self.first_spine + pod, other)

    def core(self, number: Ints) -> Ints:
        """Return vertices of cores by number; spine i has those from ``i * cores`` on."""
        rest = self.first_core + (self.cores > 0) + (self.spines - 1) * self.pods
        return np.where(number == 0, self.first_core, rest + number - 1)


class ClosTopology(Topology):
    """Base of fat trees and rail-optimised networks."""

    of_ports: ClassVar[bool] = True
    leaf_noun: ClassVar[str] = "leaf switches"

    oversubscription: Float = Field(1.0, ge=1, le=1000)
    """Bandwidth of a leaf's ports over that of its links to the spines."""
    routing: Literal["destination", "pair"] = "destination"
    """``destination``: the spine follows from the receiver, as in InfiniBand (D-mod-k: Zahavi,
    "D-Mod-K routing providing non-blocking traffic for shift permutations on real life fat trees",
    2010). ``pair``: from a hash of sender and receiver, as ECMP on Ethernet."""
    trunk_alpha: Seconds | None = None
    """Latency of a link between switches [s]; None: that of a port's."""
    in_network: Bool = False
    """Whether the switches can add, as InfiniBand switches with SHARP."""

    @abstractmethod
    def clos(self, n: int, per_node: int) -> Clos:
        """Return the switches over ``n`` ports."""

    @abstractmethod
    def leaf_of(self, ports: Ints, n: int, per_node: int) -> Ints:
        """Return the leaf switch of each port."""

    @abstractmethod
    def leaf_name(self, leaf: int, n: int, per_node: int) -> str:
        """Name a leaf switch, for messages."""

    def spared(self, used: Ints, n: int, per_node: int) -> dict[str, str]:
        start, narrow = self.clos(n, per_node).starts, self.model_dump()
        tiers = {
            "oversubscription": (start[2], f"{self.leaf_noun}: no link of the spine carries bytes"),
            "pod_oversubscription": (start[4], "pods: no link of the core switches carries bytes"),
        }
        return {
            key: text
            for key, (first, text) in tiers.items()
            if (narrow.get(key) or 1.0) > 1 and not (used >= first).any()
        }

    def num_links(self, n: int, per_node: int = 1) -> int:
        return self.clos(n, per_node).starts[-1]

    def ends(self, links: Ints, n: int, per_node: int = 1) -> tuple[Ints, Ints]:
        net = self.clos(n, per_node)
        start = net.starts
        sort = np.searchsorted(start[1:6], links, side="right")  # which of the six kinds
        number = links - np.array(start)[sort]
        leaf, spine = np.divmod(number, max(net.spines, 1))
        joined, core = np.divmod(number, max(net.cores, 1))
        pod, plane = np.divmod(joined, max(net.spines, 1))
        port = np.minimum(number, n - 1)
        low = [port, n + leaf, net.spine(pod, plane)]
        high = [
            n + self.leaf_of(port, n, per_node),
            net.spine(leaf // net.leaves_per_pod, spine),
            net.core(plane * net.cores + core),
        ]
        below, above = np.choose(sort // 2, low), np.choose(sort // 2, high)
        return np.where(sort % 2, above, below), np.where(sort % 2, below, above)

    def routes(self, src: Ints, dst: Ints, n: int, per_node: int = 1) -> Ints:
        net = self.clos(n, per_node)
        ports = (src < n) & (dst < n)
        links = np.full((len(src), 6), -1, dtype=np.int64)
        links[ports] = self._between_ports(net, src[ports], dst[ports], per_node)
        if not ports.all():
            links[~ports, 0] = self._next_to_a_switch(net, src[~ports], dst[~ports])
        return compact(links)

    def _between_ports(self, net: Clos, src: Ints, dst: Ints, per_node: int) -> Ints:
        n, start = net.num_ports, net.starts
        here, there = (self.leaf_of(ports, n, per_node) for ports in (src, dst))
        pod, last_pod = here // net.leaves_per_pod, there // net.leaves_per_pod
        chosen = dst if self.routing == "destination" else _hash(src, dst)
        spine = chosen % max(net.spines, 1)
        core = chosen // max(net.spines, 1) % max(net.cores, 1)
        climbs, crosses = here != there, pod != last_pod
        return np.stack(
            [
                src,
                np.where(climbs, start[2] + here * net.spines + spine, -1),
                np.where(crosses, start[4] + (pod * net.spines + spine) * net.cores + core, -1),
                np.where(
                    crosses, start[5] + (last_pod * net.spines + spine) * net.cores + core, -1
                ),
                np.where(climbs, start[3] + there * net.spines + spine, -1),
                n + dst,
            ],
            axis=1,
        )

    def _next_to_a_switch(self, net: Clos, src: Ints, dst: Ints) -> Ints:
        """Return links of the reduction tree, up or down."""
        start = net.starts
        up = src < dst  # lower levels of the tree have smaller numbers
        below = np.minimum(src, dst)
        leaf, pod = below - net.num_ports, below - net.first_spine
        number = np.where(leaf < 0, below, leaf * net.spines)
        number = np.where(pod >= 0, pod * net.spines * net.cores, number)
        sort = 2 * ((leaf >= 0).astype(np.int64) + (pod >= 0)) + ~up
        return np.asarray(np.array(start)[sort] + number)

    def figures(self, links: Ints, link: Link, n: int, per_node: int = 1) -> tuple[Floats, Floats]:
        net = self.clos(n, per_node)
        start = net.starts
        width = np.array([1.0, net.leaf_trunk, net.pod_trunk])
        sort = np.searchsorted([start[2], start[4]], links, side="right")
        trunk_alpha = link.alpha if self.trunk_alpha is None else self.trunk_alpha
        return np.where(sort > 0, trunk_alpha, link.alpha), link.bandwidth * width[sort]

    def switch_name(self, vertex: int, n: int, per_node: int = 1) -> str:
        net = self.clos(n, per_node)
        of_pod = " of pod {}" if net.pods > 1 else ""
        if vertex < net.first_spine:
            return self.leaf_name(vertex - n, n, per_node)
        if vertex < net.first_core:
            return "spine switch 0" + of_pod.format(vertex - net.first_spine)
        rest = vertex - net.first_core - (net.cores > 0)
        if rest < 0:
            return "core switch 0"
        others = (net.spines - 1) * net.pods
        if rest < others:
            return f"spine switch {rest // net.pods + 1}" + of_pod.format(rest % net.pods)
        return f"core switch {rest - others + 1}"

    def parents(self, n: int, per_node: int = 1) -> Ints | None:
        net = self.clos(n, per_node)
        if not self.in_network or (net.leaves > 1 and not net.spines):
            return None
        above = [n + self.leaf_of(np.arange(n), n, per_node)]
        if net.spines:
            above.append(net.first_spine + np.arange(net.leaves) // net.leaves_per_pod)
        if net.cores:
            above.append(np.full(net.pods, net.first_core))
        return np.append(np.concatenate(above), -1)

    def parts(self, n: int, per_node: int = 1) -> Ints | None:
        net = self.clos(n, per_node)
        apart = net.leaves > 1 and not net.spines
        return self.leaf_of(np.arange(n), n, per_node) if apart else None


def _hash(src: Ints, dst: Ints) -> Ints:
    """Mix two numbers into one that spreads evenly: the finaliser of SplitMix64.

    Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """
    mixed = (src.astype(np.uint64) << np.uint64(32)) + dst.astype(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(1)).astype(np.int64)


def spines_over(ports: int, oversubscription: float, given: int | None) -> tuple[int, float]:
    """Return the number of switches above one switch, and the relative width of its link to each.

    Parameters
    ----------
    ports : int
        Links of that switch to the level below.
    oversubscription : float
        Bandwidth of these links over that of the links to the level above.
    given : int or None
        Number of switches; None: so many that each link is about as wide as those below.
    """
    count = max(1, round(ports / oversubscription)) if given is None else given
    return count, ports / (count * oversubscription) if count else 1.0


class FatTreeTopology(ClosTopology):
    """Leaf switches under spine switches, or with three levels pods of both under core switches."""

    kind: Literal["fat_tree"] = "fat_tree"
    levels: Literal[2, 3] = 2
    """2: every spine is connected to every leaf. 3: a pod has separate leaves and spines, and core
    switches connect the pods."""
    ports_per_leaf: Int = Field(20, ge=1, le=2**16)
    """Ports of a leaf switch to endpoints; consecutive ones share a leaf. 20 by default, half of
    the 40 ports of an HDR switch (NVIDIA QM8700)."""
    leaves: Int | None = Field(None, ge=1, le=2**16)
    """Leaf switches, of each pod with three levels. None: as many as needed, or as many per pod as
    a leaf has ports down."""
    spines: Int | None = Field(None, ge=1, le=2**16)
    """Spine switches, of each pod with three levels. None: ``ports_per_leaf`` over
    ``oversubscription``."""
    pods: Int | None = Field(None, ge=1, le=2**16)
    """With three levels: pods (None: as many as needed), and core switches above each spine (None:
    leaves of a pod over ``pod_oversubscription``)."""
    cores: Int | None = Field(None, ge=1, le=2**16)
    """With three levels: pods (None: as many as needed), and core switches above each spine (None:
    leaves of a pod over ``pod_oversubscription``)."""
    pod_oversubscription: Float | None = Field(None, ge=1, le=1000)
    """With three levels: bandwidth up from the leaves of a pod, over that of the pod (None: 1)."""

    @model_validator(mode="after")
    def _keys_suit_the_levels(self) -> FatTreeTopology:
        for key in ("pods", "cores", "pod_oversubscription"):
            if self.levels == 2 and getattr(self, key) is not None:
                raise problem(f"{key} belongs to a fat tree of three levels; add levels: 3.")
        return self

    def capacity(self) -> int | None:
        if self.levels == 2:
            return None if self.leaves is None else self.leaves * self.ports_per_leaf
        if self.pods is None:
            return None
        return self.pods * (self.leaves or self.ports_per_leaf) * self.ports_per_leaf

    def bonded(self, count: int) -> Self:
        if self.ports_per_leaf % count:
            raise ValueError(
                f"a leaf of {self.ports_per_leaf} ports has cards of several devices; make "
                f"ports_per_leaf a multiple of {count}"
            )
        return self.model_copy(update={"ports_per_leaf": self.ports_per_leaf // count})

    def clos(self, n: int, per_node: int) -> Clos:
        leaves = -(-n // self.ports_per_leaf)
        in_pod = leaves if self.levels == 2 else self.leaves or self.ports_per_leaf
        pods = -(-leaves // in_pod)
        spines, leaf_trunk = spines_over(self.ports_per_leaf, self.oversubscription, self.spines)
        cores, pod_trunk = spines_over(in_pod, self.pod_oversubscription or 1.0, self.cores)
        return Clos(
            num_ports=n,
            leaves=leaves,
            pods=pods,
            leaves_per_pod=in_pod,
            spines=spines if leaves > 1 else 0,
            cores=cores if pods > 1 else 0,
            leaf_trunk=leaf_trunk,
            pod_trunk=leaf_trunk * pod_trunk,
        )

    def leaf_of(self, ports: Ints, n: int, per_node: int) -> Ints:
        return ports // self.ports_per_leaf

    def leaf_name(self, leaf: int, n: int, per_node: int) -> str:
        return f"leaf switch {leaf}"


class RailOptimisedTopology(ClosTopology):
    """Card k of every node is on rail switch k; traffic between rails passes a spine switch."""

    leaf_noun: ClassVar[str] = "rails"

    kind: Literal["rail_optimised"] = "rail_optimised"
    nodes_per_rail: Int | None = Field(None, ge=1, le=2**20)
    """Nodes that share a set of rail switches (a scalable unit of a DGX SuperPOD); None: all."""
    spines: Int | None = Field(None, ge=0, le=2**16)
    """Spine switches. None: nodes of a rail over ``oversubscription``; 0: rails are not connected,
    which is refused if ranks of several cards communicate."""

    def clos(self, n: int, per_node: int) -> Clos:
        nodes = n // per_node
        on_rail = min(nodes, self.nodes_per_rail or nodes)
        leaves = -(-nodes // on_rail) * per_node
        spines, trunk = spines_over(on_rail, self.oversubscription, self.spines)
        return Clos(
            num_ports=n,
            leaves=leaves,
            pods=1,
            leaves_per_pod=leaves,
            spines=spines if leaves > 1 else 0,
            cores=0,
            leaf_trunk=trunk,
            pod_trunk=1.0,
        )

    def leaf_of(self, ports: Ints, n: int, per_node: int) -> Ints:
        node, card = ports // per_node, ports % per_node
        return node // (self.nodes_per_rail or n // per_node) * per_node + card

    def leaf_name(self, leaf: int, n: int, per_node: int) -> str:
        unit, rail = divmod(leaf, per_node)
        several = self.nodes_per_rail is not None and self.nodes_per_rail * per_node < n
        return f"rail switch {rail}" + (f" of unit {unit}" if several else "")


class DragonflyTopology(Topology):
    """Groups of routers; minimal routes: at most one link in each group and one between them.

    Kim, Dally, Scott and Abts, "Technology-driven, highly-scalable dragonfly topology", ISCA 2008.
    Routers of a group are connected pairwise; so are groups, with links distributed over the
    routers in order of the destination group, counted from their own.
    """

    kind: Literal["dragonfly"] = "dragonfly"

    of_ports: ClassVar[bool] = True

    ports_per_router: Int = Field(4, ge=1, le=2**16)
    """Endpoints of a router, p, and routers of a group, a; a balanced dragonfly has a = 2 p."""
    routers_per_group: Int = Field(8, ge=1, le=2**16)
    """Endpoints of a router, p, and routers of a group, a; a balanced dragonfly has a = 2 p."""
    groups: Int | None = Field(None, ge=1, le=2**16)
    """Number of groups; None: as many as needed."""
    links_per_pair: Int = Field(1, ge=1, le=2**16)
    """Cables between two groups, which act as one link of their total bandwidth."""
    trunk_alpha: Seconds | None = None
    """Latency of a link between routers [s]; None: that of a port's."""

    def capacity(self) -> int | None:
        if self.groups is None:
            return None
        return self.groups * self.routers_per_group * self.ports_per_router

    def bonded(self, count: int) -> Self:
        raise ValueError("each card has its own port at a router; use fat_tree or rail_optimised")

    # Links: ports up, ports down, from router to router of each group (a x a of them), and from
    # group to group (g x g). Vertices: ports, then routers, group by group.

    def _sizes(self, n: int) -> tuple[int, int, int, int]:
        """Return groups g, first local link, first global link, and the number of links."""
        a = self.routers_per_group
        g = self.groups or -(-n // (a * self.ports_per_router))
        return g, 2 * n, 2 * n + g * a * a, 2 * n + g * a * a + g * g

    def _gate(self, group: Ints, other: Ints, g: int) -> Ints:
        """Return the router of a group with its link to another group."""
        per_router = max(-(-(g - 1) // self.routers_per_group), 1)
        return group * self.routers_per_group + ((other - group) % g - 1) // per_router

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
