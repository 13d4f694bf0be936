"""Algorithms in levels: inside nodes, between nodes, and along the dimensions of a torus.

A rail consists of the ranks with the same place in their nodes. Inside, a rank shares fast links
with few others; across, every rank sends only its m-th part of the buffer, m being the ranks per
node. With one node, or one rank per node, only one of the two levels exists. With ``slices`` the
stages form a pipeline: while one slice is sent across, the next one is reduced inside.

On a 2-D torus rank r is in row ``r // columns`` and column ``r % columns``, independent of its
node: rows take the place of nodes, and columns that of rails.

References
----------
Cho et al., "BlueConnect: decomposing all-reduce for deep learning on heterogeneous network
hierarchy", MLSys 2019; Ying et al., "Image classification at supercomputer scale", 2018 (arXiv
1811.06992): the 2-D gradient summation of TPU pods.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable
from dataclasses import replace
from functools import lru_cache, partial
from math import ceil, isqrt, lcm
from typing import Literal, Self

import numpy as np
from pydantic import field_validator, model_validator

from simdp.arrays import Ints
from simdp.collectives import (
    ALL_GATHER,
    ALSO_CALLED,
    AnyAllGather,
    AnyAllReduce,
    AnyBroadcast,
    AnyReduce,
    AnyReduceScatter,
)
from simdp.collectives.base import (
    MAX_SLICES,
    Algorithm,
    AllGatherAlgorithm,
    AllReduceAlgorithm,
    AllToAllAlgorithm,
    BroadcastAlgorithm,
    Composed,
    ReduceAlgorithm,
    ReduceScatterAlgorithm,
)
from simdp.collectives.plans import Assembly, Layout, Plan, Round, even_offsets
from simdp.collectives.ring import RingAllGather, RingAllReduce, RingBroadcast, RingReduceScatter
from simdp.collectives.tree import TreeReduce
from simdp.spec import Bool, Int, problem

# Levels -------------------------------------------------------------------------------------------


@lru_cache(maxsize=16)
def rails_of(layout: Layout) -> tuple[Ints, Layout]:
    """Return members and layout of the rails, without switches that add in different orders."""
    try:
        return layout.rails()
    except ValueError:
        return replace(layout, across=()).rails()


def aligned_chunks(nbytes: float, chunk_size: float) -> int:
    """Return the number of chunks of at most ``chunk_size`` bytes: 1, 2, 4, ... `MAX_SLICES`.

    Powers of two let the levels of a hierarchy cut the buffer at the same places.
    """
    wanted = min(max(ceil(nbytes / chunk_size), 1), MAX_SLICES)
    return 1 << (wanted - 1).bit_length()


def cut_of(algorithm: Algorithm, layout: Layout, nbytes: float) -> Hashable:
    """Cut one level's share of the buffer."""
    return algorithm.cut(layout, nbytes) if layout.world_size > 1 else None


def plan_of(algorithm: Algorithm, layout: Layout, cut: Hashable, root: int = 0) -> Plan | None:
    """Plan one level; None for a level of one rank."""
    return algorithm.build(layout, cut, root) if layout.world_size > 1 else None


def count(plan: Plan | None) -> int:
    """Return the chunks of one level's plan."""
    return plan.num_chunks if plan else 1


def _level_problem(name: str, algorithm: Algorithm, layout: Layout) -> str | None:
    wrong = algorithm.problem_with(layout) if layout.world_size > 1 else None
    return f"cannot use its {name} {algorithm.kind}, which {wrong}" if wrong else None


def levels_problem(layout: Layout, inner: list[Algorithm], outer: Algorithm) -> str | None:
    """Explain why one of the levels is not supported, or None."""
    problems = [_level_problem("inner", member, layout.node) for member in inner]
    return next(
        filter(None, [*problems, _level_problem("outer", outer, rails_of(layout)[1])]), None
    )


class Levels:
    """Adds plans on the nodes and on the rails of a layout to an assembly of ``num_chunks``."""

    def __init__(self, layout: Layout, parts: Assembly, num_chunks: int) -> None:
        self.parts, self.num_chunks = parts, num_chunks
        self.nodes = layout.vertices_of_nodes()
        self.rails, _ = rails_of(layout)
        self.piece = num_chunks // layout.per_node  # chunks of a local rank's part of the buffer
        self.after: tuple[int, ...] = ()

    def inside(self, plan: Plan | None) -> None:
        """Let every node work on the whole buffer, cut by its plan."""
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
        self.after = self.parts.add(plan, members, first, width, np.arange(width), self.after)

    # The r-th of n pieces belongs to rank r, so that the pieces of a local rank inside its
    # node lie apart: one piece in every m.

    def pieces_inside(self, plan: Plan | None) -> None:
        """Assign the pieces i, m + i, 2 m + i ... to place i of every node."""
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
        """Assign piece k m + i to place k of rail i."""
        if plan:
            num_nodes, m = len(self.nodes), len(self.rails)
            piece = self.num_chunks // (num_nodes * m)
            members = self.rails[:, : plan.num_vertices]
            first = np.arange(m) * piece
            spread = np.arange(piece)
            self.after = self.parts.add(plan, members, first, m * piece, spread, self.after)


def once_per_rank(algorithm: Algorithm, layout: Layout) -> str | None:
    """Explain why an algorithm does not support pieces at a distance, or None."""
    if layout.world_size == 1 or algorithm.problem_with(layout):
        return None
    if algorithm.plan(layout, 0.0).num_chunks == layout.world_size:
        return None
    return (
        f"needs an outer algorithm with one chunk per node, and {algorithm.kind} cuts finer; "
        "leave out its slices, or give slices to hierarchical itself"
    )


# Hierarchical -------------------------------------------------------------------------------------


class HierarchicalAllReduce(Composed, AllReduceAlgorithm):
    """Reduce_scatter inside every node, all_reduce across on every rail, all_gather inside."""

    kind: Literal["hierarchical"] = "hierarchical"
    inner: AnyReduceScatter = RingReduceScatter()
    """Inside the node."""
    outer: AnyAllReduce = RingAllReduce()
    """Across nodes, on 1/m of the buffer per rail."""
    inner_gather: AnyAllGather | None = None
    """Inside the node, at the end; default: the kind of ``inner`` with its options."""

    @model_validator(mode="after")
    def _the_way_back_is_known(self) -> Self:
        if self.inner_gather is not None:
            return self
        member = ALL_GATHER.get(self._kind_back)
        if member is None or any(field.is_required() for field in member.model_fields.values()):
            raise problem(
                f"inner {self.inner.kind!r} has no all_gather of its kind; "
                f"add inner_gather: {', '.join(ALL_GATHER)}."
            )
        return self

    @property
    def _kind_back(self) -> str:
        """The kind of all_gather that reverses ``inner``."""
        other = ALSO_CALLED["all_gather"].get(self.inner.kind, {})
        return other.get("kind", self.inner.kind)

    @property
    def gather(self) -> AllGatherAlgorithm:
        """The all_gather of the sums inside the node."""
        if self.inner_gather is not None:
            return self.inner_gather
        member = ALL_GATHER[self._kind_back]
        options = self.inner.model_dump(mode="json", exclude_none=True)
        known = {key: value for key, value in options.items() if key in member.model_fields}
        return member.model_validate({**known, "kind": self._kind_back})

    def problem_with(self, layout: Layout) -> str | None:
        return levels_problem(layout, [self.inner, self.gather], self.outer)

    def cuts(self, layout: Layout, nbytes: float) -> tuple[Hashable, ...]:
        node, rail = layout.node, rails_of(layout)[1]
        return (
            cut_of(self.inner, node, nbytes),
            cut_of(self.outer, rail, nbytes / layout.per_node),
            cut_of(self.gather, node, nbytes),
        )

    def assemble(
        self, layout: Layout, cuts: tuple[Hashable, ...], root: int, parts: Assembly
    ) -> int:
        scatter = plan_of(self.inner, layout.node, cuts[0])
        reduce = plan_of(self.outer, rails_of(layout)[1], cuts[1])
        gather = plan_of(self.gather, layout.node, cuts[2])
        num_chunks = lcm(count(scatter), layout.per_node * count(reduce), count(gather))
        levels = Levels(layout, parts, num_chunks)
        levels.inside(scatter)
        levels.across(reduce)
        levels.inside(gather)
        return num_chunks


class _Pieces(Composed):
    """Base of the families in which every rank has a piece."""

    kind: Literal["hierarchical"] = "hierarchical"
    inner: Algorithm
    outer: Algorithm

    @abstractmethod
    def add_plans(self, levels: Levels, inner: Plan | None, outer: Plan | None) -> None:
        """Add the plan inside and the one across, first things first."""

    def problem_with(self, layout: Layout) -> str | None:
        wrong = levels_problem(layout, [self.inner], self.outer)
        return wrong or once_per_rank(self.outer, rails_of(layout)[1])

    def cuts(self, layout: Layout, nbytes: float) -> tuple[Hashable, ...]:
        return (
            cut_of(self.inner, layout.node, nbytes),
            cut_of(self.outer, rails_of(layout)[1], nbytes / layout.per_node),
        )

    def assemble(
        self, layout: Layout, cuts: tuple[Hashable, ...], root: int, parts: Assembly
    ) -> int:
        inner = plan_of(self.inner, layout.node, cuts[0])
        outer = plan_of(self.outer, rails_of(layout)[1], cuts[1])
        num_chunks = lcm(layout.world_size, layout.num_nodes * count(inner))
        self.add_plans(Levels(layout, parts, num_chunks), inner, outer)
        return num_chunks


class HierarchicalReduceScatter(_Pieces, ReduceScatterAlgorithm):
    """Reduce_scatter inside every node, then across on every rail."""

    inner: AnyReduceScatter = RingReduceScatter()
    """Inside the node."""
    outer: AnyReduceScatter = RingReduceScatter()
    """Across nodes."""

    def add_plans(self, levels: Levels, inner: Plan | None, outer: Plan | None) -> None:
        levels.pieces_inside(inner)
        levels.pieces_across(outer)


class HierarchicalAllGather(_Pieces, AllGatherAlgorithm):
    """All_gather across on every rail, then inside every node."""

    inner: AnyAllGather = RingAllGather()
    """Inside the node."""
    outer: AnyAllGather = RingAllGather()
    """Across nodes."""

    def add_plans(self, levels: Levels, inner: Plan | None, outer: Plan | None) -> None:
        levels.pieces_across(outer)
        levels.pieces_inside(inner)


class _RootedHierarchical(Composed):
    """Base of broadcast and reduce."""

    kind: Literal["hierarchical"] = "hierarchical"
    inner: Algorithm
    outer: Algorithm

    @abstractmethod
    def add_plans(self, levels: Levels, inner: Plan | None, outer: Plan | None, place: int) -> None:
        """Add the plan inside and the one across on the root's rail, first things first."""

    def problem_with(self, layout: Layout) -> str | None:
        return levels_problem(layout, [self.inner], self.outer)

    def cuts(self, layout: Layout, nbytes: float) -> tuple[Hashable, ...]:
        return (
            cut_of(self.inner, layout.node, nbytes),
            cut_of(self.outer, rails_of(layout)[1], nbytes),
        )

    def assemble(
        self, layout: Layout, cuts: tuple[Hashable, ...], root: int, parts: Assembly
    ) -> int:
        node, place = divmod(root, layout.per_node)
        inner = plan_of(self.inner, layout.node, cuts[0], place)
        outer = plan_of(self.outer, rails_of(layout)[1], cuts[1], node)
        levels = Levels(layout, parts, lcm(count(inner), count(outer)))
        self.add_plans(levels, inner, outer, place)
        return levels.num_chunks


class HierarchicalBroadcast(_RootedHierarchical, BroadcastAlgorithm):
    """Across on the root's rail, then inside every node."""

    inner: AnyBroadcast = RingBroadcast()
    """Inside the node."""
    outer: AnyBroadcast = RingBroadcast()
    """Across nodes."""

    def add_plans(self, levels: Levels, inner: Plan | None, outer: Plan | None, place: int) -> None:
        levels.on_rail(place, outer)
        levels.inside(inner)


class HierarchicalReduce(_RootedHierarchical, ReduceAlgorithm):
    """Inside every node, then across on the root's rail."""

    inner: AnyReduce = TreeReduce()
    """Inside the node."""
    outer: AnyReduce = TreeReduce()
    """Across nodes."""

    def add_plans(self, levels: Levels, inner: Plan | None, outer: Plan | None, place: int) -> None:
        levels.inside(inner)
        levels.on_rail(place, outer)


class HierarchicalAllToAll(Composed, AllToAllAlgorithm):
    """Exchange inside the node, then across on every rail in messages m times as large.

    First every rank sends its neighbour on rail j the data for rail j of all nodes; then the rails
    send them: N - 1 messages of m pieces across instead of m (N - 1) of one.

    References
    ----------
    Rajbhandari et al., "DeepSpeed-MoE", ICML 2022, section 5.2 (hierarchical all-to-all).
    """

    kind: Literal["hierarchical"] = "hierarchical"

    def cuts(self, layout: Layout, nbytes: float) -> tuple[Hashable, ...]:
        return ()

    def num_scratch(self, layout: Layout, num_chunks: int) -> int:
        return 2 * num_chunks  # the result, and pieces that wait to be sent across

    def assemble(
        self, layout: Layout, cuts: tuple[Hashable, ...], root: int, parts: Assembly
    ) -> int:
        n = layout.world_size
        everyone, first = np.arange(n)[None, :], np.zeros(1, dtype=np.int64)
        after: tuple[int, ...] = ()
        for exchange in (_to_the_rails(layout), _along_the_rails(layout)):
            plan = Plan(
                collective=self.collective,
                world_size=n,
                num_chunks=n,
                root=0,
                rounds=partial(iter, (exchange,)),
                offsets=even_offsets(n),
                order="rank",
                num_scratch=2 * n,
            )
            after = parts.add(plan, everyone, first, after=after)
        return n


def _to_the_rails(layout: Layout) -> Round:
    """Inside a node, send place j the data for place j of all nodes, stored after the result."""
    n, m = layout.world_size, layout.per_node
    rank, place = np.repeat(np.arange(n), m), np.tile(np.arange(m), n)
    return Round(
        src=rank,
        dst=rank // m * m + place,
        chunk=place,
        reduce=False,
        to=2 * n + rank % m,
        num_chunks=layout.num_nodes,
        stride=m,
    )


def _along_the_rails(layout: Layout) -> Round:
    """Send node k its pieces over every rail, m pieces at a time."""
    n, m, num_nodes = layout.world_size, layout.per_node, layout.num_nodes
    rank, node = np.repeat(np.arange(n), num_nodes), np.tile(np.arange(num_nodes), n)
    return Round(
        src=rank,
        dst=node * m + rank % m,
        chunk=2 * n + node * m,
        reduce=False,
        to=n + rank // m * m,
        num_chunks=m,
    )


# Torus2d ------------------------------------------------------------------------------------------


def most_square(world_size: int) -> tuple[int, int]:
    """Return rows and columns of the most square grid, at least as many columns.

    Raises
    ------
    ValueError
        If ``world_size < 1``.
    """
    if world_size < 1:
        raise ValueError(f"world_size must be >= 1, got {world_size}")
    rows = next(rows for rows in range(isqrt(world_size), 0, -1) if world_size % rows == 0)
    return rows, world_size // rows


class Torus2d(Composed):
    """Base of the algorithms on a grid of ranks."""

    kind: Literal["torus2d"] = "torus2d"
    dims: tuple[Int, ...] | None = None
    """Rows and columns; default: the most square grid."""

    @field_validator("dims")
    @classmethod
    def _is_a_grid(cls, value: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if value is not None and (len(value) != 2 or min(value) < 1):
            raise problem(f"{list(value)} is not a grid; write [rows, columns], both >= 1.")
        return value

    @abstractmethod
    def levels(self) -> Composed:
        """Return the hierarchical algorithm for the rows and columns."""

    def shape(self, world_size: int) -> tuple[int, ...]:
        """Return rows and columns."""
        return self.dims or most_square(world_size)

    def problem_with(self, layout: Layout) -> str | None:
        rows, columns = self.shape(layout.world_size)
        if rows * columns == layout.world_size:
            return None
        return (
            f"needs dims with the product world_size {layout.world_size}, "
            f"got {rows} x {columns}; leave dims out for the most square grid"
        )

    def cuts(self, layout: Layout, nbytes: float) -> tuple[Hashable, ...]:
        return self.levels().cuts(self._rows(layout), nbytes)

    def assemble(
        self, layout: Layout, cuts: tuple[Hashable, ...], root: int, parts: Assembly
    ) -> int:
        return self.levels().assemble(self._rows(layout), cuts, root, parts)

    def _rows(self, layout: Layout) -> Layout:
        """Return the layout with rows in place of nodes."""
        return Layout(layout.world_size, self.shape(layout.world_size)[1])


class Torus2dAllReduce(Torus2d, AllReduceAlgorithm):
    """Reduce_scatter along the rows, all_reduce along the columns, all_gather along the rows."""

    both_ways: Bool = False
    """Whether half of the buffer goes along the columns first, at the same time, so that the links
    of both directions are busy in every stage."""

    def levels(self) -> Composed:
        return HierarchicalAllReduce()

    def cuts(self, layout: Layout, nbytes: float) -> tuple[Hashable, ...]:
        return super().cuts(layout, nbytes / 2 if self.both_ways else nbytes)

    def assemble(
        self, layout: Layout, cuts: tuple[Hashable, ...], root: int, parts: Assembly
    ) -> int:
        if not self.both_ways:
            return super().assemble(layout, cuts, root, parts)
        # All stages are rings, which cut their share once per rank: the cuts of both halves agree.
        num_ranks, (rows, columns) = layout.world_size, self.shape(layout.world_size)
        upright = np.arange(num_ranks)
        turned = upright.reshape(rows, columns).T.reshape(-1)
        for half, (order, length) in enumerate(((upright, columns), (turned, rows))):
            plan = self.levels().plan(Layout(num_ranks, length), 0.0)
            width = num_ranks // plan.num_chunks
            first = np.array([half * num_ranks])
            parts.add(plan, order[None, :], first, width, np.arange(width))
        return 2 * num_ranks


class Torus2dReduceScatter(Torus2d, ReduceScatterAlgorithm):
    """Reduce_scatter along the rows, then along the columns."""

    def levels(self) -> Composed:
        return HierarchicalReduceScatter()


class Torus2dAllGather(Torus2d, AllGatherAlgorithm):
    """All_gather along the columns, then along the rows."""

    def levels(self) -> Composed:
        return HierarchicalAllGather()
