"""Reductions in switches: SHARP and NVLink SHARP (NVLS).

With SHARP every rank, or with ``{kind: hierarchical, outer: sharp}`` every rank of a rail, is
connected to a switch. Chunks follow each other through the tree, one edge per round; every edge
carries the buffer once each way, for any number of ranks.

With NVLS rank r reduces the r-th piece of the buffer. It reads that piece through the switch
(``multimem.ld_reduce``), which fetches all copies and returns their sum, and writes the sum to all
ranks through the switch (``multimem.st``). An all_reduce sends ``S (1 + 1/n)`` up every port and as
much down. Pieces are cut further and pipelined.

References
----------
Graham et al., "Scalable hierarchical aggregation protocol (SHArP)", COMHPC 2016; NVIDIA, "PTX ISA",
multimem instructions; NCCL, src/device/all_reduce.h (algorithm NVLS).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from typing import Literal

import numpy as np

from simdp.arrays import Ints
from simdp.collectives.base import (
    AllGatherAlgorithm,
    AllReduceAlgorithm,
    BroadcastAlgorithm,
    ReduceAlgorithm,
    ReduceScatterAlgorithm,
    Simple,
)
from simdp.collectives.hierarchical import aligned_chunks
from simdp.collectives.plans import Layout, Round
from simdp.collectives.tree import level_rounds
from simdp.spec import PositiveBytes


def _neighbours(layout: Layout) -> list[list[int]]:
    """Return neighbours in the tree, without switches that lead to no further rank."""
    neighbours: list[list[int]] = [[] for _ in layout.across]
    for vertex, parent in enumerate(layout.across):
        if parent >= 0:
            neighbours[vertex].append(parent)
            neighbours[parent].append(vertex)
    waiting = deque(range(layout.world_size, len(neighbours)))
    while waiting:
        switch = waiting.popleft()
        if len(neighbours[switch]) == 1:
            (last,) = neighbours[switch]
            neighbours[switch] = []
            neighbours[last].remove(switch)
            if last >= layout.world_size:
                waiting.append(last)
    return neighbours


def _top(layout: Layout) -> int:
    """Return the lowest switch above all ranks."""
    neighbours = _neighbours(layout)
    above = layout.across[0]
    while layout.across[above] in neighbours[above]:
        above = layout.across[above]
    return above


@lru_cache(maxsize=16)
def _edges(layout: Layout, start: int) -> list[tuple[Ints, Ints]]:
    """Return edges of the tree by distance from a vertex, as nearer and farther ends."""
    neighbours = _neighbours(layout)
    distance, before = np.full((2, len(neighbours)), -1)
    distance[start] = 0
    waiting = deque([start])
    while waiting:
        here = waiting.popleft()
        for there in neighbours[here]:
            if distance[there] < 0:
                distance[there], before[there] = distance[here] + 1, here
                waiting.append(there)
    # The switches inside nodes are numbered before those between them.
    shift = layout.num_nodes * layout.num_inside
    vertices = np.arange(len(distance))
    vertices += shift * (vertices >= layout.world_size)
    edges = []
    for level in range(1, int(distance.max()) + 1):
        far = np.flatnonzero(distance == level)
        edges.append((vertices[before[far]], vertices[far]))
    return edges


class _Sharp(Simple):
    """Base of SHARP's algorithms."""

    kind: Literal["sharp"] = "sharp"
    chunk_size: PositiveBytes = 2 * 2.0**20
    """Bytes per chunk; 2 MiB are 4 steps of NCCL's Simple protocol, as a chunk of its rings."""

    def problem_with(self, layout: Layout) -> str | None:
        if not layout.across:
            return (
                "needs switches that add between nodes; "
                "give inter_node a topology with in_network: true"
            )
        if sum(parent < 0 for parent in layout.across) > 1:
            return (
                "needs one tree of switches over all ranks; use {kind: hierarchical, outer: sharp}"
            )
        return None

    def num_switches(self, layout: Layout) -> int:
        return layout.num_switches

    def num_chunks(self, layout: Layout, nbytes: float) -> int:
        return aligned_chunks(nbytes, self.chunk_size)


class SharpAllReduce(_Sharp, AllReduceAlgorithm):
    """Sums go up to the topmost switch, which sends them down."""

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        return level_rounds(_edges(layout, _top(layout)), num_chunks, True, True)


class SharpBroadcast(_Sharp, BroadcastAlgorithm):
    """From the root over the tree; every switch copies to all its other ports."""

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        return level_rounds(_edges(layout, root), num_chunks, False, True)


class SharpReduce(_Sharp, ReduceAlgorithm):
    """Over the tree to the root; every switch adds the inputs of its other ports."""

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        return level_rounds(_edges(layout, root), num_chunks, True, False)


# Nvls ---------------------------------------------------------------------------------------------


class _Nvls(Simple):
    """Base of NVLS's algorithms."""

    kind: Literal["nvls"] = "nvls"
    chunk_size: PositiveBytes = 2 * 2.0**20
    """Bytes of a rank's piece that are in flight at a time; 2 MiB are 16 channels of NCCL's largest
    NVLS chunk, 128 KiB."""

    def problem_with(self, layout: Layout) -> str | None:
        if layout.num_nodes > 1:
            return (
                f"works inside one node, and there are {layout.num_nodes}; "
                "use {kind: hierarchical, inner: nvls}"
            )
        if not layout.inside:
            return (
                "needs a switch that adds inside the node; "
                "write topology: {kind: switch, in_network: true}"
            )
        if layout.num_inside > 1:
            return f"needs one switch for all ranks of the node, and there are {layout.num_inside}"
        return None

    def num_switches(self, layout: Layout) -> int:
        return layout.num_switches

    def num_chunks(self, layout: Layout, nbytes: float) -> int:
        return layout.world_size * aligned_chunks(nbytes / layout.world_size, self.chunk_size)


class _Stages:
    """Rounds of the stages of one of ``cuts`` of every piece, with switch ``num_ranks``."""

    def __init__(self, num_ranks: int, cuts: int) -> None:
        self.ranks, self.cuts = np.arange(num_ranks), cuts
        self.switch = np.full(num_ranks, num_ranks)

    def fetch(self, cut: int) -> Round:
        """The switch adds all ranks' copies."""
        return self._pieces(self.ranks, self.switch, cut, True)

    def answer(self, cut: int) -> Round:
        """The switch sends each rank the sum of its piece."""
        return Round(self.switch, self.ranks, self.ranks * self.cuts + cut, False)

    def write(self, cut: int) -> Round:
        """Each rank sends the switch its piece."""
        return Round(self.ranks, self.switch, self.ranks * self.cuts + cut, False)

    def multicast(self, cut: int) -> Round:
        """The switch writes to all ranks."""
        return self._pieces(self.switch, self.ranks, cut, False)

    def _pieces(self, src: Ints, dst: Ints, cut: int, reduce: bool) -> Round:
        chunk, num_ranks = np.full_like(src, cut), len(self.ranks)
        return Round(src, dst, chunk, reduce, num_chunks=num_ranks, stride=self.cuts)


class NvlsAllReduce(_Nvls, AllReduceAlgorithm):
    """Every rank fetches the sum of its piece from the switch, and writes it to all through it."""

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        cuts = num_chunks // layout.world_size
        stages = _Stages(layout.world_size, cuts)
        # No connection is used by two stages in one round: up go 1 and 3, down 2 and 4.
        for step in range(cuts + 2):
            if step < cuts:
                yield stages.fetch(step)
            if step >= 2:
                yield stages.multicast(step - 2)
            if step < cuts:
                yield stages.answer(step)
            if 1 <= step <= cuts:
                yield stages.write(step - 1)


class NvlsReduceScatter(_Nvls, ReduceScatterAlgorithm):
    """Every rank fetches the sum of its piece from the switch."""

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        cuts = num_chunks // layout.world_size
        stages = _Stages(layout.world_size, cuts)
        for cut in range(cuts):
            yield stages.fetch(cut)
            yield stages.answer(cut)


class NvlsAllGather(_Nvls, AllGatherAlgorithm):
    """Every rank writes its piece to all others through the switch."""

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        cuts = num_chunks // layout.world_size
        stages = _Stages(layout.world_size, cuts)
        for cut in range(cuts):
            yield stages.write(cut)
            yield stages.multicast(cut)


class NvlsBroadcast(_Nvls, BroadcastAlgorithm):
    """The root writes to all ranks through the switch; ``chunk_size`` is of the whole buffer."""

    def num_chunks(self, layout: Layout, nbytes: float) -> int:
        return aligned_chunks(nbytes, self.chunk_size)

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        n = layout.world_size
        up, switch = np.array([root]), np.array([n])
        others = np.delete(np.arange(n), root)
        for chunk in range(num_chunks):
            yield Round(up, switch, np.array([chunk]), False)
            yield Round(np.full_like(others, n), others, np.full_like(others, chunk), False)
