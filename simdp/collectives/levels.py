"""Levels: what algorithms share that work inside nodes and across them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from functools import lru_cache
from math import ceil

import numpy as np

from simdp.arrays import Ints
from simdp.collectives.base import MAX_SLICES, Algorithm, Plan
from simdp.collectives.plans.layout import Layout
from simdp.collectives.plans.parts import Assembly


@lru_cache(maxsize=16)
def rails_of(layout: Layout) -> tuple[Ints, Layout]:
    """Members of the rails and what each of them sees, as `Layout.rails`.

    Where switches add in another order for every rail, the rails see none.
    """
    try:
        return layout.rails()
    except ValueError:
        return replace(layout, across=()).rails()


def aligned_chunks(nbytes: float, chunk_size: float) -> int:
    """Number of chunks of at most ``chunk_size`` bytes: a power of two, 1 ... `MAX_SLICES`.

    Powers of two, so that the levels of a hierarchy cut the buffer at the same places.
    """
    wanted = min(max(ceil(nbytes / chunk_size), 1), MAX_SLICES)
    return 1 << (wanted - 1).bit_length()


def cut_of(algorithm: Algorithm, layout: Layout, nbytes: float) -> Hashable:
    """Cut one level's share of the buffer."""
    return algorithm.cut(layout, nbytes) if layout.world_size > 1 else None


def plan_of(algorithm: Algorithm, layout: Layout, cut: Hashable, root: int = 0) -> Plan | None:
    """Plan one level; None where a rank is alone on it."""
    return algorithm.build(layout, cut, root) if layout.world_size > 1 else None


def count(plan: Plan | None) -> int:
    """Chunks of one level's plan."""
    return plan.num_chunks if plan else 1


def _level_problem(name: str, algorithm: Algorithm, layout: Layout) -> str | None:
    wrong = algorithm.problem_with(layout) if layout.world_size > 1 else None
    return f"cannot use its {name} {algorithm.kind}, which {wrong}" if wrong else None


def levels_problem(layout: Layout, inner: list[Algorithm], outer: Algorithm) -> str | None:
    """Why one of the levels cannot be served, or None."""
    found = [_level_problem("inner", member, layout.node) for member in inner]
    return next(filter(None, [*found, _level_problem("outer", outer, rails_of(layout)[1])]), None)


class Levels:
    """Adds plans on the nodes and on the rails of a layout to an assembly.

    Parameters
    ----------
    layout : Layout
        Where the ranks live.
    parts : Assembly
        What is added to.
    num_chunks : int
        Chunks of the whole.
    """

    def __init__(self, layout: Layout, parts: Assembly, num_chunks: int) -> None:
        self.parts, self.num_chunks = parts, num_chunks
        self.nodes = layout.vertices_of_nodes()
        self.rails, _ = rails_of(layout)
        self.piece = num_chunks // layout.per_node  # chunks of a local rank's part of the buffer
        self.after: tuple[int, ...] = ()

    def inside(self, plan: Plan | None) -> None:
        """Let every node work on the whole buffer, cut as its plan cuts it."""
        if plan:
            width = self.num_chunks // plan.num_chunks
            self._add(plan, self.nodes, np.zeros(len(self.nodes), dtype=np.int64), width)

    def across(self, plan: Plan | None) -> None:
        """Let rail i work on the i-th part of the buffer."""
        if plan:
            first = np.arange(len(self.rails)) * self.piece
            self._add(plan, self.rails, first, self.piece // plan.num_chunks)

    def on_rail(self, rail: int, plan: Plan | None) -> None:
        """Let one rail work on the whole buffer."""
        if plan:
            width = self.num_chunks // plan.num_chunks
            self._add(plan, self.rails[rail : rail + 1], np.zeros(1, dtype=np.int64), width)

    def _add(self, plan: Plan, members: Ints, first: Ints, width: int) -> None:
        members = members[:, : plan.num_vertices]
        spread = np.arange(width)
        self.after = self.parts.add(plan, members, first, width, spread, self.after)

    # The r-th of n pieces belongs to rank r, so that what a local rank is in charge of inside its
    # node lies apart: one piece in every m.

    def pieces_inside(self, plan: Plan | None) -> None:
        """Let place i of every node be in charge of the pieces i, m + i, 2 m + i ..."""
        if plan:
            num_nodes, m = len(self.nodes), len(self.rails)
            width = self.num_chunks // (num_nodes * plan.num_chunks)
            block = self.num_chunks // num_nodes
            spread = (np.arange(num_nodes)[:, None] * block + np.arange(width)).reshape(-1)
            members = self.nodes[:, : plan.num_vertices]
            assert plan.num_chunks % m == 0, "as many chunks for every rank of the node"
            first = np.zeros(num_nodes, dtype=np.int64)
            self.after = self.parts.add(plan, members, first, width, spread, self.after)

    def pieces_across(self, plan: Plan | None) -> None:
        """Let place k of rail i be in charge of piece k m + i."""
        if plan:
            num_nodes, m = len(self.nodes), len(self.rails)
            piece = self.num_chunks // (num_nodes * m)
            members = self.rails[:, : plan.num_vertices]
            first = np.arange(m) * piece
            spread = np.arange(piece)
            self.after = self.parts.add(plan, members, first, m * piece, spread, self.after)


def once_per_rank(algorithm: Algorithm, layout: Layout) -> str | None:
    """Why an algorithm cannot take pieces that lie apart, or None."""
    if layout.world_size == 1 or algorithm.problem_with(layout):
        return None
    if algorithm.plan(layout, 0.0).num_chunks == layout.world_size:
        return None
    return (
        f"needs an outer algorithm with one chunk per node, and {algorithm.kind} cuts finer; "
        "leave out its slices, or give slices to hierarchical itself"
    )
