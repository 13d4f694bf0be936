"""PCIe: the tree of switches, host bridges and sockets below which devices and cards hang."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np

from simdp.arrays import Bools, Floats, Ints
from simdp.cluster.link import Link
from simdp.cluster.topologies.base import Topology, compact
from simdp.spec import Bandwidth

Level = Literal["loc", "pix", "pxb", "phb", "node", "sys"]

LEVELS = {"loc": 0, "pix": 1, "pxb": 2, "phb": 3, "node": 4, "sys": 5}
"""How far two devices are apart, in the words of NCCL_P2P_LEVEL and ``nvidia-smi topo -m``.

One switch; several switches below one host bridge; one host bridge; one NUMA node; any.
"""

PIX, PXB, PHB, NODE, SYS = 1, 2, 3, 4, 5

# What a link is: its bandwidth follows from that.
SLOT, UPLINK, SOCKET, MEMORY = range(4)


@dataclass(frozen=True, eq=False)
class PcieTree:
    """Devices and cards, the hubs above them, and the memory of every socket.

    Every vertex but the root has a link up (number ``2 i``) and one down (``2 i + 1``), where i
    counts the vertices in order; the root is the last hub. Then come the links of each memory: from
    its socket, and back, before which a route is stored and forwarded.

    Attributes
    ----------
    chains : ndarray, shape `(num_leaves, depth)`
        What lies on the way from the root to each device and card, which are the first vertices:
        hubs and then itself; -1 after it.
    parents, levels, sorts : ndarray, shape `(num_vertices,)`
        The hub above (-1 for the root); how far apart the leaves are that meet here; what the
        links to the hub above are.
    sockets : ndarray, shape `(num_sockets,)`
        The hubs that have a memory.
    names : tuple of str
        Of all hubs, and then of the memories.
    """

    chains: Ints
    parents: Ints
    levels: Ints
    sorts: Ints
    sockets: Ints
    names: tuple[str, ...]

    @property
    def num_tree_links(self) -> int:
        """Links but those of the memories."""
        return 2 * (len(self.parents) - 1)

    @property
    def num_links(self) -> int:
        """All links."""
        return self.num_tree_links + 2 * len(self.sockets)

    def ends(self, links: Ints) -> tuple[Ints, Ints]:
        """Vertices that links leave and enter."""
        ups, vertices = self.num_tree_links // 2, len(self.parents)
        low = np.append(np.arange(ups), self.sockets)
        high = np.append(self.parents[:-1], vertices + np.arange(len(self.sockets)))
        number, back = links // 2, links % 2 == 1
        return (
            np.where(back, high[number], low[number]),
            np.where(back, low[number], high[number]),
        )

    def routes(self, src: Ints, dst: Ints, direct: int) -> Ints:
        """Links between leaves: up to the hub that both hang under, and down.

        Beyond the level ``direct``, the bytes are put into the memory of the receiver's socket, as
        NCCL's shared memory transport does by default (NCCL_SHM_LOCALITY), and read from there.
        """
        up, down = self.chains[src], self.chains[dst]
        meet = (up == down).cumprod(axis=1).sum(axis=1) - 1
        staged = self.levels[up[np.arange(len(src)), meet]] > direct
        depth = 0 if len(self.sockets) == 1 else 1  # of the sockets
        turn = np.where(staged, np.minimum(meet, depth), meet)[:, None]
        climb = [_below(up[:, [d]], turn, d, 0) for d in range(up.shape[1] - 1, 0, -1)]
        descent = [_below(down[:, [d]], turn, d, 1) for d in range(1, up.shape[1])]
        socket = np.searchsorted(self.sockets, down[:, depth])
        memory = self.num_tree_links + 2 * socket[:, None] + np.arange(2)
        memory = np.where(staged[:, None], memory, -1)
        parts = [*climb, *descent[:depth], memory, *descent[depth:]]
        return compact(np.concatenate(parts, axis=1))

    def begins_stage(self, links: Ints) -> Bools:
        """Tell which links lead out of a memory."""
        return np.asarray((links >= self.num_tree_links) & (links % 2 == 1))

    def link_sorts(self, links: Ints) -> Ints:
        """Tell what links are: SLOT, UPLINK, SOCKET or MEMORY."""
        every = np.append(self.sorts[:-1], np.full(len(self.sockets), MEMORY))
        return np.asarray(every[links // 2])


def _below(chain: Ints, turn: Ints, depth: int, back: int) -> Ints:
    """Link over each vertex of a chain at some depth, where that lies below the turning point."""
    return np.where((chain >= 0) & (depth > turn), 2 * chain + back, -1)


Group = tuple[int, int, int, int]
"""Of one leaf: its socket, its host bridge, its outer and its inner switch; numbers of any kind."""


class _Builder:
    """Grows the tree from its sockets down; hubs with one branch are drawn into the one above."""

    def __init__(self, groups: Sequence[Group], keep_switches: bool) -> None:
        self.groups, self.keep = groups, keep_switches
        self.hubs: list[tuple[int, int, int]] = []  # parent hub, level, sort of the link up
        self.names: list[str] = []
        self.leaf_hub = [0] * len(groups)
        self.counts: dict[str, int] = {}

    def grow(self, members: list[int], depth: int, above: int) -> None:
        """Add the hub of one group, depth 0 for a socket, and all below it."""
        lowest = depth
        while lowest < 3 and len(self.split(members, lowest + 1)) == 1:
            if self.keep and depth < 2 and lowest == 2:
                break
            lowest += 1
        alone = lowest == 3 and len(members) == 1
        if not (alone and depth) or self.keep:
            kind = ("CPU", "host bridge", "PCIe switch", "PCIe switch")[depth and lowest]
            number = self.counts[kind] = self.counts.get(kind, -1) + 1
            self.hubs.append((above, NODE - lowest, UPLINK if depth else SOCKET))
            self.names.append(f"{kind} {number}")
            above = len(self.hubs) - 1
        if lowest == 3:
            for leaf in members:
                self.leaf_hub[leaf] = above
            return
        for branch in self.split(members, lowest + 1):
            self.grow(branch, lowest + 1, above)

    def split(self, members: list[int], depth: int) -> list[list[int]]:
        """Part a group by what its members share at some depth."""
        branches: dict[int, list[int]] = {}
        for leaf in members:
            branches.setdefault(self.groups[leaf][depth], []).append(leaf)
        return list(branches.values())


@lru_cache(maxsize=64)
def pcie_tree(groups: tuple[Group, ...], keep_switches: bool) -> PcieTree:
    """Build the tree over leaves that are grouped by sockets, host bridges and switches.

    Parameters
    ----------
    groups : tuple of Group
        One per leaf.
    keep_switches : bool
        Whether a switch stays where it is the only one, or has one leaf.
    """
    n = len(groups)
    builder = _Builder(groups, keep_switches)
    sockets = builder.split(list(range(n)), 0)
    for members in sockets:
        builder.grow(members, 0, -1)
    hubs, names = builder.hubs, builder.names
    # The root comes last: the only socket, or what joins several.
    tops = [i for i, (above, _, _) in enumerate(hubs) if above < 0]
    if len(tops) == 1:
        order = [*range(1, len(hubs)), 0]
    else:
        order = [*range(len(hubs)), len(hubs)]
        hubs = [(len(hubs) if above < 0 else above, level, sort) for above, level, sort in hubs]
        hubs, names = [*hubs, (-1, SYS, SOCKET)], [*names, "the CPU interconnect"]
    place = {old: n + new for new, old in enumerate(order)} | {-1: -1}
    parents = [place[hub] for hub in builder.leaf_hub] + [place[hubs[old][0]] for old in order]
    chains = []
    for leaf in range(n):
        chain = [leaf]
        while parents[chain[0]] >= 0:
            chain.insert(0, parents[chain[0]])
        chains.append(chain)
    depth = max(map(len, chains))
    return PcieTree(
        chains=np.array([chain + [-1] * (depth - len(chain)) for chain in chains]),
        parents=np.array(parents),
        levels=np.array([0] * n + [hubs[old][1] for old in order]),
        sorts=np.array([SLOT] * n + [hubs[old][2] for old in order]),
        sockets=np.sort(np.array([place[top] for top in tops])),
        names=(
            *(names[old] for old in order),
            *(f"the memory of {names[top]}" for top in tops),
        ),
    )


class PcieTopology(Topology):
    """What topologies with a PCIe tree have in common.

    Latency is counted where a link ends at a device: what lies between adds little to it.

    Attributes
    ----------
    p2p_level : str
        How far apart devices may be to reach each other directly, as NCCL_P2P_LEVEL: loc (never,
        as GeForce cards), pix, pxb (NCCL's default), phb, node or sys. Beyond it, bytes are
        stored in host memory and read again, so that the times of the two stages add up. It also
        holds between a device and its network card.
    host_bridge : float or None
        From a PCIe switch to the host bridge [bytes/s]; None: as a device's link.
    inter_socket : float
        Between CPUs, in one direction [bytes/s]; by default what NCCL 2.30.7 reckons with for
        Intel Skylake (src/graph/topo.h; Broadwell 6, AMD 16, Sapphire Rapids 22, Emerald Rapids
        40 GB/s).
    host_memory : float
        Of one socket, to write or to read [bytes/s]; by default that of Intel Skylake: six
        channels of DDR4-2666, 8 bytes wide.
    """

    only_inside: ClassVar[bool] = True

    p2p_level: Level = "pxb"
    host_bridge: Bandwidth | None = None
    inter_socket: Bandwidth = 10e9
    host_memory: Bandwidth = 6 * 2666e6 * 8

    def pcie_figures(
        self, tree: PcieTree, links: Ints, link: Link, n: int
    ) -> tuple[Floats, Floats]:
        """Alpha and bandwidth of the tree's links, where each of the n devices has ``link``."""
        bridge = link.bandwidth if self.host_bridge is None else self.host_bridge
        every = np.array([link.bandwidth, bridge, self.inter_socket, self.host_memory])
        at_device = (links >= 0) & (links < 2 * n)
        return np.where(at_device, link.alpha, 0.0), every[tree.link_sorts(links)]
