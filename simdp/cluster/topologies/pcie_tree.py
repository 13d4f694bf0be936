"""PCIe tree: devices and network cards on PCIe switches, below the CPUs' host bridges."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from simdp.arrays import Bools, Floats, Ints
from simdp.cluster.link import Link
from simdp.cluster.topologies.pcie import LEVELS, PcieTopology, PcieTree, pcie_tree
from simdp.spec import Int


class PcieTreeTopology(PcieTopology):
    """Devices on PCIe switches below the host bridges of CPUs; ``link`` is a device's slot.

    Devices fill switches in order. So do the network cards, which are spread evenly over the
    switches in use: say with ``inter_node.nics`` which device uses which.

    Attributes
    ----------
    gpus_per_switch, switches_per_socket, sockets : int
        What there is.
    """

    kind: Literal["pcie_tree"] = "pcie_tree"

    gpus_per_switch: Int = Field(2, ge=1, le=16)
    switches_per_socket: Int = Field(2, ge=1, le=16)
    sockets: Int = Field(2, ge=1, le=16)

    def capacity(self) -> int:
        return self.gpus_per_switch * self.switches_per_socket * self.sockets

    def tree(self, n: int, per_node: int) -> PcieTree:
        """Build the tree over n devices and the network cards."""
        switches = -(-n // self.gpus_per_switch)
        of_devices = [i // self.gpus_per_switch for i in range(n)]
        of_cards = [k * switches // per_node for k in range(per_node)]
        switch = of_devices + of_cards
        sockets = [s // self.switches_per_socket for s in switch]
        return pcie_tree(tuple(zip(sockets, sockets, switch, switch, strict=True)), True)

    def num_cards(self, per_node: int) -> int:
        return per_node

    def num_links(self, n: int, per_node: int = 1) -> int:
        return self.tree(n, per_node).num_links

    def ends(self, links: Ints, n: int, per_node: int = 1) -> tuple[Ints, Ints]:
        return self.tree(n, per_node).ends(links)

    def routes(self, src: Ints, dst: Ints, n: int, per_node: int = 1) -> Ints:
        return self.tree(n, per_node).routes(src, dst, LEVELS[self.p2p_level])

    def figures(self, links: Ints, link: Link, n: int, per_node: int = 1) -> tuple[Floats, Floats]:
        return self.pcie_figures(self.tree(n, per_node), links, link, n)

    def begins_stage(self, links: Ints, n: int, per_node: int = 1) -> Bools:
        return self.tree(n, per_node).begins_stage(links)

    def switch_name(self, vertex: int, n: int, per_node: int = 1) -> str:
        return self.tree(n, per_node).names[vertex - n - per_node]
