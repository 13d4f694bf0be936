"""Hierarchical algorithms: work inside the nodes, and across them on every rail at the same time.

A rail is what ranks with the same place in their nodes form. Inside, a rank shares fast links with
few others; across, every rank sends only its m-th part of the buffer, m being the ranks per node.
With one node, or one rank per node, only one of the two levels is there.

With ``slices`` the stages run as a pipeline: while one slice is under way across, the next one is
reduced inside.

References
----------
Cho et al., "BlueConnect: decomposing all-reduce for deep learning on heterogeneous network
hierarchy", MLSys 2019.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable
from functools import partial
from math import lcm
from typing import Literal, Self

import numpy as np
from pydantic import model_validator

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
    Algorithm,
    AllGather,
    AllReduce,
    AllToAll,
    Assembly,
    Broadcast,
    Composed,
    Plan,
    Reduce,
    ReduceScatter,
    Round,
    even_offsets,
)
from simdp.collectives.levels import (
    Levels,
    count,
    cut_of,
    levels_problem,
    once_per_rank,
    plan_of,
    rails_of,
)
from simdp.collectives.plans.layout import Layout
from simdp.collectives.ring import (
    RingAllGather,
    RingAllReduce,
    RingBroadcast,
    RingReduceScatter,
)
from simdp.collectives.tree import TreeReduce
from simdp.spec import problem


class HierarchicalAllReduce(Composed, AllReduce):
    """Reduce_scatter inside every node, all_reduce across on every rail, all_gather inside.

    Attributes
    ----------
    inner : ReduceScatter
        Inside the node.
    outer : AllReduce
        Across nodes, on 1/m of the buffer per rail.
    inner_gather : AllGather
        Inside the node, at the end; left out, the kind of ``inner`` with its options.
    """

    kind: Literal["hierarchical"] = "hierarchical"
    inner: AnyReduceScatter = RingReduceScatter()
    outer: AnyAllReduce = RingAllReduce()
    inner_gather: AnyAllGather | None = None

    @model_validator(mode="after")
    def _the_way_back_is_known(self) -> Self:
        if self.inner_gather is None and not self._has_a_way_back():
            raise problem(
                f"inner {self.inner.kind!r} has no all_gather of its kind; "
                f"add inner_gather: {', '.join(ALL_GATHER)}."
            )
        return self

    @property
    def _kind_back(self) -> str:
        """The kind of all_gather that goes the way of ``inner`` back."""
        other = ALSO_CALLED["all_gather"].get(self.inner.kind, {})
        return other.get("kind", self.inner.kind)

    def _has_a_way_back(self) -> bool:
        member = ALL_GATHER.get(self._kind_back)
        return member is not None and not any(
            field.is_required() for field in member.model_fields.values()
        )

    @property
    def gather(self) -> AllGather:
        """What brings the sums to every rank of the node."""
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
        m = layout.per_node
        num_chunks = lcm(count(scatter), m * count(reduce), count(gather))
        levels = Levels(layout, parts, num_chunks)
        levels.inside(scatter)
        levels.across(reduce)
        levels.inside(gather)
        return num_chunks


class _Pieces(Composed):
    """What the families have in common in which every rank has a piece."""

    kind: Literal["hierarchical"] = "hierarchical"
    inner: Algorithm
    outer: Algorithm

    @abstractmethod
    def play(self, levels: Levels, inner: Plan | None, outer: Plan | None) -> None:
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
        levels = Levels(layout, parts, num_chunks)
        self.play(levels, inner, outer)
        return num_chunks


class HierarchicalReduceScatter(_Pieces, ReduceScatter):
    """Reduce_scatter inside every node, then across on every rail.

    Attributes
    ----------
    inner, outer : ReduceScatter
        Inside the node, and across nodes.
    """

    inner: AnyReduceScatter = RingReduceScatter()
    outer: AnyReduceScatter = RingReduceScatter()

    def play(self, levels: Levels, inner: Plan | None, outer: Plan | None) -> None:
        levels.pieces_inside(inner)
        levels.pieces_across(outer)


class HierarchicalAllGather(_Pieces, AllGather):
    """All_gather across on every rail, then inside every node.

    Attributes
    ----------
    inner, outer : AllGather
        Inside the node, and across nodes.
    """

    inner: AnyAllGather = RingAllGather()
    outer: AnyAllGather = RingAllGather()

    def play(self, levels: Levels, inner: Plan | None, outer: Plan | None) -> None:
        levels.pieces_across(outer)
        levels.pieces_inside(inner)


class _Rooted(Composed):
    """What broadcast and reduce have in common."""

    kind: Literal["hierarchical"] = "hierarchical"
    inner: Algorithm
    outer: Algorithm

    @abstractmethod
    def play(self, levels: Levels, inner: Plan | None, outer: Plan | None, place: int) -> None:
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
        self.play(levels, inner, outer, place)
        return levels.num_chunks


class HierarchicalBroadcast(_Rooted, Broadcast):
    """Across on the root's rail, then inside every node.

    Attributes
    ----------
    inner, outer : Broadcast
        Inside the node, and across nodes.
    """

    inner: AnyBroadcast = RingBroadcast()
    outer: AnyBroadcast = RingBroadcast()

    def play(self, levels: Levels, inner: Plan | None, outer: Plan | None, place: int) -> None:
        levels.on_rail(place, outer)
        levels.inside(inner)


class HierarchicalReduce(_Rooted, Reduce):
    """Inside every node, then across on the root's rail.

    Attributes
    ----------
    inner, outer : Reduce
        Inside the node, and across nodes.
    """

    inner: AnyReduce = TreeReduce()
    outer: AnyReduce = TreeReduce()

    def play(self, levels: Levels, inner: Plan | None, outer: Plan | None, place: int) -> None:
        levels.inside(inner)
        levels.on_rail(place, outer)


class HierarchicalAllToAll(Composed, AllToAll):
    """Exchange inside the node, then across on every rail in messages m times as large.

    First every rank gives its neighbour on rail j what is for rail j on any node; then the rails
    carry it: N - 1 messages of m pieces across in place of m (N - 1) of one.

    References
    ----------
    Rajbhandari et al., "DeepSpeed-MoE", ICML 2022, section 5.2 (hierarchical all-to-all).
    """

    kind: Literal["hierarchical"] = "hierarchical"

    def cuts(self, layout: Layout, nbytes: float) -> tuple[Hashable, ...]:
        return ()

    def num_scratch(self, layout: Layout, num_chunks: int) -> int:
        return 2 * num_chunks  # the result, and what waits for its way across

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
    """Inside a node, place j gets what is for place j of any node; it waits behind the result."""
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
    """Node k gets what waits for it on every rail, m pieces at a time."""
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
