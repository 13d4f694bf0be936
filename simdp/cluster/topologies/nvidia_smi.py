"""A node as ``nvidia-smi topo -m`` prints it: NVLinks, PCIe and network cards."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field, PrivateAttr, ValidationInfo, model_validator

from simdp.arrays import Bools, Floats, Ints
from simdp.cluster.link import AnyLink, Link
from simdp.cluster.topologies.graph import Edge, Edges, route_table
from simdp.cluster.topologies.pcie import LEVELS, PcieTopology, PcieTree, pcie_tree
from simdp.cluster.topologies.topo_matrix import MatrixError, TopoMatrix, parse_matrix
from simdp.errors import ScenarioError
from simdp.files import read_text
from simdp.spec import Int, problem

MOST_NVLINKS = 18
"""NVLinks of one GPU at most, those of an H100 (NVIDIA H100 datasheet); more lead to a switch."""


class NvidiaSmiTopology(PcieTopology):
    """A node as ``nvidia-smi topo -m`` prints it, from a file or written out.

    GPUs that NVLinks join, directly, through a switch or by way of one other GPU, use them;
    others use PCIe. ``link`` is what one GPU sends over all its NVLinks; without any, its slot.
    Devices are the first GPUs of the matrix, network cards its first others.

    Attributes
    ----------
    path : str or None
        A file with the text, relative to the scenario.
    matrix : str or None
        The text itself, in place of a file.
    nvlinks : int or None
        NVLinks of one GPU. None: the most that a row adds up to, or, where that is more than any
        GPU has, the largest entry. Rows that add up to more mean that a switch joins them.
    pcie : Link or None
        A device's slot, where there are NVLinks and still something uses PCIe.
    """

    kind: Literal["nvidia_smi"] = "nvidia_smi"

    path: str | None = None
    matrix: str | None = None
    nvlinks: Int | None = Field(None, ge=1, le=99)
    pcie: AnyLink | None = None

    _parsed: TopoMatrix | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _read(self, info: ValidationInfo) -> NvidiaSmiTopology:
        """Parse the text; a path starts from ``base`` of the validation's context."""
        if self._parsed is not None:
            return self
        if (self.path is None) == (self.matrix is None):
            raise problem(
                "give either path, a file with what nvidia-smi topo -m prints, or matrix."
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
            said = "network cards hang" if not alone.any() else "some GPUs meet"
            return f"nvidia_smi needs to know PCIe, on which {said}; add pcie: pcie4-x16."
        return None

    def num_cards(self, per_node: int) -> int:
        return per_node if self.parsed.cards else 0

    # Links: those of NVLink, edge by edge, and then PCIe's. Vertices: devices, cards and hubs of
    # PCIe, and last the NVSwitch.

    def _edges(self, n: int) -> Edges:
        """NVLinks between n GPUs and, as vertex n, their switch."""
        counts = np.array(self.parsed.nvlinks)
        sums = int(counts.sum(axis=1).max())
        each = self.nvlinks or (sums if sums <= MOST_NVLINKS else int(counts.max()))
        if sums > each:
            own = np.minimum(counts.max(axis=1)[:n], each) / each
            return tuple(Edge(u, n, float(own[u])) for u in range(n) if own[u])
        return tuple(
            Edge(u, v, float(counts[u, v] / each))
            for u in range(n)
            for v in range(u + 1, n)
            if counts[u, v]
        )

    def _nvlink_routes(self, n: int) -> Ints:
        """Routes over at most two NVLinks, `(n, n, 2)`, as NCCL takes them; -1 where none is."""
        table = route_table(self._edges(n), n)
        found = np.full((n, n, 2), -1, dtype=np.int64)
        short = np.all(table[:, :, 2:] < 0, axis=2)
        reach = table[:, :, :2]
        found[:, :, : reach.shape[2]] = np.where(short[:, :, None], reach, -1)
        return found

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
        tree = self._tree(n, per_node)
        return tree.begins_stage(links - first) & (links >= first)

    def switch_name(self, vertex: int, n: int, per_node: int = 1) -> str:
        tree, cards = self._tree(n, per_node), self.num_cards(per_node)
        names = (*tree.names, "the NVSwitch")
        return names[vertex - n - cards]
