"""WHAT EXISTS: devices in nodes, the directed links between them, and what slows them down."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator

from simdp.cluster.device import AnyDevice, Device
from simdp.cluster.link import AnyLink, Link
from simdp.cluster.stragglers import AnyStraggler
from simdp.cluster.topologies import AnyTopology
from simdp.cluster.topologies.switch import SwitchTopology
from simdp.spec import Int, Spec, problem

Ints = NDArray[np.int64]

__all__ = ["Cluster", "Device", "InterNode", "Link"]


class InterNode(Spec):
    """The network between nodes.

    Attributes
    ----------
    topology : Topology
        How the nodes are joined.
    link : Link
        One direction of one link, from a network card to the switch or to another card.
    links_per_node : int
        Network cards per node, k: card ``r % k`` serves the local rank r. Behind a switch every
        card has a port of its own; a ring or a full mesh of nodes exists k times over.
    """

    topology: AnyTopology = SwitchTopology()
    link: AnyLink
    links_per_node: Int = Field(1, ge=1, le=1024)


class Cluster(Spec):
    """Devices, their links and their stragglers.

    Attributes
    ----------
    world_size : int
        Number of ranks, one device each.
    devices_per_node : int or None
        None means that one node holds all of them.
    device : Device or list of Device
        One for all ranks, or one per rank.
    topology, link
        Inside a node.
    inter_node : InterNode or None
        Needed beyond one node.
    stragglers : list of Straggler
        Their factors multiply.
    """

    world_size: Int = Field(ge=1, le=2**20)
    devices_per_node: Int | None = Field(None, ge=1, le=2**20)
    device: AnyDevice | list[AnyDevice]
    topology: AnyTopology = SwitchTopology()
    link: AnyLink | None = None
    inter_node: InterNode | None = None
    stragglers: list[AnyStraggler] = Field(default_factory=list)

    @field_validator("device", mode="wrap")
    @classmethod
    def _one_or_a_list(cls, value: Any, handler: Any) -> Any:
        """Choose the form by the value, so that an error speaks of the form that was written."""
        from pydantic import TypeAdapter

        form: Any = list[AnyDevice] if isinstance(value, list) else AnyDevice
        return TypeAdapter(form).validate_python(value)

    @model_validator(mode="after")
    def _sizes_fit(self) -> Cluster:
        n, per_node = self.world_size, self.devices_per_node
        if per_node is not None and n > per_node:
            if n % per_node:
                raise problem(
                    f"world_size {n} is neither one partly used node of {per_node} devices nor a "
                    f"multiple of devices_per_node; use {n // per_node * per_node} or "
                    f"{(n // per_node + 1) * per_node}."
                )
            if self.inter_node is None:
                raise problem(
                    f"world_size {n} needs {n // per_node} nodes, but there is no inter_node "
                    "network; add inter_node: {topology: switch, link: ib-hdr}."
                )
        if self.link is None and self.local_size > 1:
            raise problem(
                "link is required where a node has two devices or more; add link: nvlink3."
            )
        if isinstance(self.device, list) and len(self.device) != n:
            raise problem(
                f"device lists {len(self.device)} devices for world_size {n}; give one per rank."
            )
        return self

    @property
    def local_size(self) -> int:
        """Ranks per node."""
        return min(self.world_size, self.devices_per_node or self.world_size)

    @property
    def num_nodes(self) -> int:
        """Nodes that hold ranks."""
        return self.world_size // self.local_size

    def devices(self) -> list[Device]:
        """One device per rank."""
        return self.device if isinstance(self.device, list) else [self.device] * self.world_size

    # Links are numbered node by node, then those between nodes, card by card:
    # node k's links are k * inside ..., card c's copy of inter-node link i is base + i * cards + c.

    def _num_inside(self) -> int:
        return self.topology.num_links(self.local_size)

    def routes(self, src: Ints, dst: Ints) -> Ints:
        """Find the directed links from ranks to ranks.

        Parameters
        ----------
        src, dst : ndarray, shape `(num_routes,)`, int64
            Ranks; a rank has no route to itself.

        Returns
        -------
        ndarray, shape `(num_routes, longest)`, int64
            Link numbers in order of travel; shorter routes end in -1.
        """
        m = self.local_size
        src_node, dst_node = src // m, dst // m
        inside = src_node == dst_node
        if inside.all():
            return self._inside_routes(src, dst)
        outside = self._inter_routes(src[~inside], dst[~inside])
        within = self._inside_routes(src[inside], dst[inside])
        links = np.full((len(src), max(outside.shape[1], within.shape[1])), -1, dtype=np.int64)
        links[inside, : within.shape[1]] = within
        links[~inside, : outside.shape[1]] = outside
        return links

    def _inside_routes(self, src: Ints, dst: Ints) -> Ints:
        m = self.local_size
        links = self.topology.routes(src % m, dst % m, m)
        return np.where(links >= 0, links + (src // m * self._num_inside())[:, None], -1)

    def _inter_routes(self, src: Ints, dst: Ints) -> Ints:
        assert self.inter_node is not None
        m, nodes, cards = self.local_size, self.num_nodes, self.inter_node.links_per_node
        topology = self.inter_node.topology
        links = topology.routes(src // m, dst // m, nodes)
        card = np.repeat((src % m % cards)[:, None], links.shape[1], axis=1)
        if topology.last_link_is_the_receivers:
            card[:, -1] = dst % m % cards
        return np.where(links >= 0, nodes * self._num_inside() + links * cards + card, -1)

    def link_figures(self, links: Ints) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Alpha [s] and bandwidth [bytes/s] of links, two arrays shaped as ``links``."""
        between = links >= self.num_nodes * self._num_inside()
        inside = self.link or Link(alpha="0 s", bandwidth="1 B/s")
        outside = self.inter_node.link if self.inter_node else inside
        alpha = np.where(between, outside.alpha, inside.alpha)
        return alpha, np.where(between, outside.bandwidth, inside.bandwidth)

    def link_name(self, link: int) -> str:
        """Describe a link, for messages: ``"link from rank 3 to rank 4"``."""
        m, inside = self.local_size, self._num_inside()
        one = np.array([link])
        if link < self.num_nodes * inside:
            node = link // inside
            ends = self.topology.ends(one % inside, m)
            names = [f"rank {node * m + int(e[0])}" if e[0] < m else "the switch" for e in ends]
        else:
            assert self.inter_node is not None
            number, card = divmod(link - self.num_nodes * inside, self.inter_node.links_per_node)
            ends = self.inter_node.topology.ends(np.array([number]), self.num_nodes)
            names = [
                f"card {card} of node {int(e[0])}"
                if e[0] < self.num_nodes
                else "the inter-node switch"
                for e in ends
            ]
        return f"the link from {names[0]} to {names[1]}"
