"""PCIe trees, and the matrix of ``nvidia-smi topo -m``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import Field, PrivateAttr, ValidationInfo, model_validator

from simdp.arrays import Bools, Floats, Ints
from simdp.cluster.hardware import AnyLink, Link
from simdp.cluster.topologies.base import (
    Edge,
    Edges,
    Topology,
    compact,
    hops_from,
    neighbours_of,
    route_table,
)
from simdp.errors import ScenarioError
from simdp.files import read_text
from simdp.spec import Bandwidth, Int, problem

# Pcie ---------------------------------------------------------------------------------------------


LEVELS = {"loc": 0, "pix": 1, "pxb": 2, "phb": 3, "node": 4, "sys": 5}
"""Distance of two devices, in the terms of NCCL_P2P_LEVEL and ``nvidia-smi topo -m``.

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
    """

    # shape `(num_leaves, depth)`: vertices from the root to each device and card, which are the
    # first vertices: hubs and then itself; -1 after it
    chains: Ints
    # parents, levels, sorts: shape `(num_vertices,)`: the hub above (-1 for the root); the distance
    # of the leaves that meet here; the kind of the links to the hub above
    parents: Ints
    levels: Ints
    sorts: Ints
    sockets: Ints  # shape `(num_sockets,)`: the hubs that have a memory
    names: tuple[str, ...]  # of all hubs, and then of the memories

    @property
    def num_tree_links(self) -> int:
        """Links except those of the memories."""
        return 2 * (len(self.parents) - 1)

    @property
    def num_links(self) -> int:
        """All links."""
        return self.num_tree_links + 2 * len(self.sockets)

    def ends(self, links: Ints) -> tuple[Ints, Ints]:
        """Return vertices that links leave and enter."""
        ups, vertices = self.num_tree_links // 2, len(self.parents)
        low = np.append(np.arange(ups), self.sockets)
        high = np.append(self.parents[:-1], vertices + np.arange(len(self.sockets)))
        number, back = links // 2, links % 2 == 1
        return (
            np.where(back, high[number], low[number]),
            np.where(back, low[number], high[number]),
        )

    def routes(self, src: Ints, dst: Ints, direct: int) -> Ints:
        """Return links between leaves: up to their common hub, and down.

        Beyond the level ``direct``, the bytes are written to the memory of the receiver's socket,
        as NCCL's shared memory transport does by default (NCCL_SHM_LOCALITY), and read from there.
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
        """Return which links lead out of a memory."""
        return np.asarray((links >= self.num_tree_links) & (links % 2 == 1))

    def link_sorts(self, links: Ints) -> Ints:
        """Classify links: SLOT, UPLINK, SOCKET or MEMORY."""
        every = np.append(self.sorts[:-1], np.full(len(self.sockets), MEMORY))
        return np.asarray(every[links // 2])


def _below(chain: Ints, turn: Ints, depth: int, back: int) -> Ints:
    """Return the link over each vertex of a chain at a depth below the turning point."""
    return np.where((chain >= 0) & (depth > turn), 2 * chain + back, -1)


Group = tuple[int, int, int, int]
"""Socket, host bridge, outer and inner switch of one leaf, as numbers."""


class _Builder:
    """Builds the tree from its sockets down; hubs with one branch are merged into the one above."""

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
        """Split a group by its members' common vertex at a depth."""
        branches: dict[int, list[int]] = {}
        for leaf in members:
            branches.setdefault(self.groups[leaf][depth], []).append(leaf)
        return list(branches.values())


@lru_cache(maxsize=64)
def pcie_tree(groups: tuple[Group, ...], keep_switches: bool) -> PcieTree:
    """Return the tree over leaves grouped by sockets, host bridges and switches.

    With ``keep_switches`` single switches, and those with one leaf, are kept.
    """
    n = len(groups)
    builder = _Builder(groups, keep_switches)
    sockets = builder.split(list(range(n)), 0)
    for members in sockets:
        builder.grow(members, 0, -1)
    hubs, names = builder.hubs, builder.names
    # The root comes last: the only socket, or the hub of several.
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
    """Base of topologies with a PCIe tree.

    Latency counts at links that end at a device; those between add little.
    """

    only_inside: ClassVar[bool] = True

    p2p_level: Literal["loc", "pix", "pxb", "phb", "node", "sys"] = "pxb"
    """Distance up to which devices access each other directly, as NCCL_P2P_LEVEL: loc (never, as
    GeForce cards), pix, pxb (NCCL's default), phb, node or sys. Beyond it, bytes are stored in host
    memory and read again, so that the times of the two stages add up. It also applies between a
    device and its network card."""
    host_bridge: Bandwidth | None = None
    """From a PCIe switch to the host bridge [bytes/s]; None: as a device's link."""
    inter_socket: Bandwidth = 10e9
    """Between CPUs, in one direction [bytes/s]; default: the value of NCCL 2.30.7 for Intel Skylake
    (src/graph/topo.h; Broadwell 6, AMD 16, Sapphire Rapids 22, Emerald Rapids 40 GB/s)."""
    host_memory: Bandwidth = 6 * 2666e6 * 8
    """Of one socket, to write or to read [bytes/s]; by default that of Intel Skylake: six channels
    of DDR4-2666, 8 bytes wide."""

    def pcie_figures(
        self, tree: PcieTree, links: Ints, link: Link, n: int
    ) -> tuple[Floats, Floats]:
        """Return alpha and bandwidth of the tree's links, if each of the n devices has ``link``."""
        bridge = link.bandwidth if self.host_bridge is None else self.host_bridge
        every = np.array([link.bandwidth, bridge, self.inter_socket, self.host_memory])
        at_device = (links >= 0) & (links < 2 * n)
        return np.where(at_device, link.alpha, 0.0), every[tree.link_sorts(links)]


class PcieTreeTopology(PcieTopology):
    """Devices on PCIe switches below the host bridges of CPUs; ``link`` is a device's slot.

    Devices fill switches in order. Network cards are spread evenly over the used switches;
    ``inter_node.nics`` sets the card of each device.
    """

    kind: Literal["pcie_tree"] = "pcie_tree"

    gpus_per_switch: Int = Field(2, ge=1, le=16)
    """Parts of the tree."""
    switches_per_socket: Int = Field(2, ge=1, le=16)
    """Parts of the tree."""
    sockets: Int = Field(2, ge=1, le=16)
    """Parts of the tree."""

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


Tokens = dict[tuple[str, str], str]


class MatrixError(ValueError):
    """Text is not a valid matrix; ``line`` is the line of the error, from 1."""

    def __init__(self, line: int, reason: str) -> None:
        self.line = line
        super().__init__(reason)


@dataclass(frozen=True)
class TopoMatrix:
    """Connections between the devices and cards of a node."""

    # gpus, cards: names in the order of the columns
    gpus: tuple[str, ...]
    cards: tuple[str, ...]
    nvlinks: tuple[tuple[int, ...], ...]  # number of NVLinks between each pair of GPUs
    # socket, host bridge and switches of every GPU and then of every card
    groups: tuple[Group, ...]


def parse_matrix(text: str) -> TopoMatrix:
    """Parse a matrix; ignores the legend, and columns of affinities.

    Raises
    ------
    MatrixError
        If it is not square, not symmetric, has no GPUs, or an entry is unknown.
    """
    lines = [re.sub(r"\x1b\[[0-9;]*m", " ", line).split() for line in text.splitlines()]
    head = next((i for i, words in enumerate(lines) if words), 0)
    columns = _columns(lines[head] if lines else [])
    gpus = tuple(name for name in columns if re.fullmatch(r"GPU\d+", name))
    if not gpus:
        raise MatrixError(head + 1, "names no GPUs; begin with the line GPU0 GPU1 ...")
    twice = next((name for i, name in enumerate(columns) if name in columns[:i]), None)
    if twice:
        raise MatrixError(head + 1, f"names {twice} twice.")
    entries: Tokens = {}
    where: dict[str, int] = {}
    for number, words in enumerate(lines[head + 1 :], head + 2):
        if (not words and where) or "Legend:" in words:
            break
        if words:
            _read_row(words, columns, number, entries, where)
    missing = next((name for name in columns if name not in where), None)
    if missing:
        raise MatrixError(
            head + 1 + len(where), f"is not square: {missing} has a column, but no row follows."
        )
    _refuse_asymmetry(columns, entries, where)
    cards = tuple(name for name in columns if name not in gpus)
    nvlinks = tuple(tuple(_nvlinks(entries[row, column]) for column in gpus) for row in gpus)
    return TopoMatrix(gpus, cards, nvlinks, _groups((*gpus, *cards), entries))


def _columns(words: list[str]) -> list[str]:
    """Return the columns before ``CPU Affinity``, ``NUMA Affinity`` and ``GPU NUMA ID``."""
    ends = [i for i, word in enumerate(words) if word in ("CPU", "NUMA", "GPU")]
    return words[: min(ends, default=len(words))]


def _read_row(
    words: list[str], columns: list[str], number: int, entries: Tokens, where: dict[str, int]
) -> None:
    name, row = words[0], words[1 : len(columns) + 1]
    if name not in columns:
        raise MatrixError(number, f"is not square: {name} has a row, but no column.")
    if name in where:
        raise MatrixError(number, f"gives {name} a second row.")
    if len(row) < len(columns):
        raise MatrixError(
            number, f"is not square: {name} has {len(row)} entries for {len(columns)} columns."
        )
    for column, token in zip(columns, row, strict=True):
        if token == "SOC":  # name of SYS before driver 384
            token = "SYS"
        if not re.fullmatch(r"X|NV[1-9]\d?|PIX|PXB|PHB|NODE|SYS", token):
            raise MatrixError(
                number,
                f"has {token!r} between {name} and {column}; known: "
                "X, NV1, NV2, ..., PIX, PXB, PHB, NODE, SYS.",
            )
        if (token == "X") != (name == column):
            raise MatrixError(number, f"has {token} between {name} and {column}; X means itself.")
        entries[name, column] = token
    where[name] = number


def _refuse_asymmetry(columns: list[str], entries: Tokens, where: dict[str, int]) -> None:
    for row in columns:
        for column in columns:
            there, back = entries[row, column], entries[column, row]
            if there != back and where[row] > where[column]:
                raise MatrixError(
                    where[row],
                    f"is not symmetric: {row} to {column} is {there}, {column} to {row} is {back}.",
                )


def _nvlinks(token: str) -> int:
    return int(token[2:]) if token.startswith("NV") else 0


def _groups(names: tuple[str, ...], entries: Tokens) -> tuple[Group, ...]:
    """Group devices by the farthest level at which each is connected with another.

    NVLinks hide PCIe connections of two GPUs, which then follow from others, or are the farthest.
    """
    label = {name: [-1, -1, -1, -1] for name in names}
    for place, farthest in enumerate((NODE, PHB, PXB, PIX)):
        near = [
            pair
            for pair, token in entries.items()
            if LEVELS.get(token.lower(), farthest + 1) <= farthest
        ]
        neighbours = neighbours_of(names, near)
        numbers = count()
        for name in names:
            if label[name][place] < 0:
                number = next(numbers)
                for member in hops_from(name, neighbours):
                    label[member][place] = number
    return tuple((a, b, c, d) for a, b, c, d in (label[name] for name in names))


MOST_NVLINKS = 18
"""Limit of NVLinks of one GPU, those of an H100 (NVIDIA H100 datasheet); more lead to a switch."""


class NvidiaSmiTopology(PcieTopology):
    """A node as in the output of ``nvidia-smi topo -m``, from a file or inline.

    GPUs connected by NVLinks, directly, through a switch or via one other GPU, use them; others use
    PCIe. ``link`` is the send bandwidth of one GPU over all its NVLinks; without any, its slot.
    Devices are the first GPUs of the matrix, network cards its first others.
    """

    kind: Literal["nvidia_smi"] = "nvidia_smi"

    path: str | None = None
    """A file with the text, relative to the scenario."""
    matrix: str | None = None
    """The text itself, instead of a file."""
    nvlinks: Int | None = Field(None, ge=1, le=99)
    """NVLinks of one GPU. None: the largest sum of a row, or, if that is more than any GPU has, the
    largest entry. Rows with a larger sum mean that a switch connects them."""
    pcie: AnyLink | None = None
    """A device's slot, if there are NVLinks but some traffic uses PCIe."""

    _parsed: TopoMatrix | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _read(self, info: ValidationInfo) -> NvidiaSmiTopology:
        """Parse the text; a path starts from ``base`` of the validation's context."""
        if self._parsed is not None:
            return self
        if (self.path is None) == (self.matrix is None):
            raise problem(
                "give either path, a file with the output of nvidia-smi topo -m, or matrix."
            )
        base = Path((info.context or {}).get("base", ""))
        where = "matrix" if self.path is None else str(base / self.path)
        try:
            text = self.matrix if self.path is None else read_text(base / self.path)
            self._parsed = parse_matrix(text or "")
        except MatrixError as error:
            raise problem(f"{where}:{error.line}: {error}") from None
        except ScenarioError as error:
            raise problem(str(error)) from None
        return self

    @property
    def parsed(self) -> TopoMatrix:
        """The matrix, read and checked."""
        assert self._parsed is not None
        return self._parsed

    def capacity(self) -> int:
        return len(self.parsed.gpus)

    def problem_with(self, n: int, per_node: int = 1) -> str | None:
        cards = len(self.parsed.cards)
        if cards and per_node > cards:
            return (
                f"nvidia_smi shows {cards} network cards for links_per_node {per_node}; "
                f"use {cards} or fewer, or leave the cards' rows and columns out."
            )
        edges, table = self._edges(n), self._nvlink_routes(n)
        alone = np.all(table[:, :, :1] < 0, axis=2) & ~np.eye(n, dtype=bool)
        if self.pcie is None and edges and (alone.any() or self.num_cards(per_node)):
            users = "network cards" if not alone.any() else "some GPUs"
            return f"nvidia_smi needs the PCIe link that {users} use; add pcie: pcie4-x16."
        return None

    def num_cards(self, per_node: int) -> int:
        return per_node if self.parsed.cards else 0

    def bonded(self, count: int) -> Self:
        if self.parsed.cards:
            raise ValueError("nvidia_smi gives every card its place; leave out the cards' rows")
        return self

    # Links: those of NVLink, edge by edge, and then PCIe's. Vertices: devices, cards and hubs of
    # PCIe, and last the NVSwitch.

    def _edges(self, n: int) -> Edges:
        """Return NVLinks between n GPUs and, as vertex n, their switch."""
        counts = np.array(self.parsed.nvlinks)
        sums = int(counts.sum(axis=1).max())
        num_nvlinks = self.nvlinks or (sums if sums <= MOST_NVLINKS else int(counts.max()))
        if sums > num_nvlinks:
            own = np.minimum(counts.max(axis=1)[:n], num_nvlinks) / num_nvlinks
            return tuple(Edge(u, n, float(own[u])) for u in range(n) if own[u])
        return tuple(
            Edge(u, v, float(counts[u, v] / num_nvlinks))
            for u in range(n)
            for v in range(u + 1, n)
            if counts[u, v]
        )

    def _nvlink_routes(self, n: int) -> Ints:
        """Return routes over at most two NVLinks, `(n, n, 2)`, as NCCL takes them; -1 for none."""
        table = route_table(self._edges(n), n)
        routes = np.full((n, n, 2), -1, dtype=np.int64)
        short = np.all(table[:, :, 2:] < 0, axis=2)
        reach = table[:, :, :2]
        routes[:, :, : reach.shape[2]] = np.where(short[:, :, None], reach, -1)
        return routes

    def _tree(self, n: int, per_node: int) -> PcieTree:
        groups, gpus = self.parsed.groups, len(self.parsed.gpus)
        cards = groups[gpus : gpus + self.num_cards(per_node)]
        return pcie_tree((*groups[:n], *cards), False)

    def num_links(self, n: int, per_node: int = 1) -> int:
        return 2 * len(self._edges(n)) + self._tree(n, per_node).num_links

    def ends(self, links: Ints, n: int, per_node: int = 1) -> tuple[Ints, Ints]:
        tree, edges = self._tree(n, per_node), self._edges(n)
        first = 2 * len(edges)
        leaves, enters = tree.ends(np.maximum(links - first, 0))
        switch = len(tree.parents) + len(tree.sockets)
        both = np.array([(e.u, e.v if e.v < n else switch) for e in edges] or [(0, 0)])
        number = np.clip(links // 2, 0, len(both) - 1)
        nvlink, back = links < first, links % 2
        return (
            np.where(nvlink, both[number, back], leaves),
            np.where(nvlink, both[number, 1 - back], enters),
        )

    def routes(self, src: Ints, dst: Ints, n: int, per_node: int = 1) -> Ints:
        tree, first = self._tree(n, per_node), 2 * len(self._edges(n))
        over_pcie = tree.routes(src, dst, LEVELS[self.p2p_level])
        links = np.full((len(src), max(over_pcie.shape[1], 2)), -1, dtype=np.int64)
        links[:, : over_pcie.shape[1]] = np.where(over_pcie >= 0, over_pcie + first, -1)
        gpus = np.flatnonzero((src < n) & (dst < n))
        nvlink = self._nvlink_routes(n)[src[gpus], dst[gpus]]
        there = nvlink[:, 0] >= 0
        links[gpus[there], :2] = nvlink[there]
        links[gpus[there], 2:] = -1
        return links

    def figures(self, links: Ints, link: Link, n: int, per_node: int = 1) -> tuple[Floats, Floats]:
        edges = self._edges(n)
        first = 2 * len(edges)
        slot = link if self.pcie is None else self.pcie
        tree = self._tree(n, per_node)
        alpha, bandwidth = self.pcie_figures(tree, np.maximum(links - first, 0), slot, n)
        width = np.array([edge.width for edge in edges] or [1.0])
        nvlink = links < first
        own = link.bandwidth * width[np.clip(links // 2, 0, len(width) - 1)]
        return np.where(nvlink, link.alpha, alpha), np.where(nvlink, own, bandwidth)

    def begins_stage(self, links: Ints, n: int, per_node: int = 1) -> Bools:
        first = 2 * len(self._edges(n))
        return self._tree(n, per_node).begins_stage(links - first) & (links >= first)

    def switch_name(self, vertex: int, n: int, per_node: int = 1) -> str:
        tree, cards = self._tree(n, per_node), self.num_cards(per_node)
        return (*tree.names, "the NVSwitch")[vertex - n - cards]
