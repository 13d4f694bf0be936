"""Auto: the fastest of several algorithms for each size.

As NCCL, which takes the smallest predicted time (src/graph/tuning.cc), but with simdp's own times:
the engine chooses, since an algorithm has no times.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar, Literal, Self

from pydantic import model_validator

from simdp.collectives import (
    FAMILIES,
    AnyAllGather,
    AnyAllReduce,
    AnyAllToAll,
    AnyBroadcast,
    AnyReduce,
    AnyReduceScatter,
)
from simdp.collectives.base import (
    Algorithm,
    AllGatherAlgorithm,
    AllReduceAlgorithm,
    AllToAllAlgorithm,
    BroadcastAlgorithm,
    ReduceAlgorithm,
    ReduceScatterAlgorithm,
)
from simdp.collectives.plans import Layout, Plan
from simdp.spec import problem

MAX_DIRECT_RANKS = 1024
"""Limit of ranks up to which unnamed candidates include algorithms that send between all pairs."""


class Auto(Algorithm):
    """Base of the choices."""

    ordinary: ClassVar[tuple[str, ...]]

    kind: Literal["auto"] = "auto"
    candidates: tuple[Algorithm, ...] | None = None
    """Candidates; None: every kind of ``ordinary`` that supports the cluster."""

    @model_validator(mode="after")
    def _chooses_between_algorithms(self) -> Self:
        if self.candidates is None:
            return self
        if not self.candidates:
            raise problem("candidates: there are none; name algorithms, or leave this out.")
        if any(isinstance(candidate, Auto) for candidate in self.candidates):
            raise problem("candidates: auto cannot choose itself; name algorithms.")
        if self.slices > 1:
            raise problem(
                "slices: belongs to each of the candidates that are named; write for example "
                f"candidates: [{{kind: {self.candidates[0].kind}, slices: {self.slices}}}]."
            )
        return self

    def fitting(self, layout: Layout) -> list[Algorithm]:
        """Return every candidate that supports a layout; at least one."""
        if self.candidates:
            return list(self.candidates)
        table = FAMILIES[self.collective]
        free = [table[kind].model_validate({"slices": self.slices}) for kind in self.ordinary]
        few = layout.world_size <= MAX_DIRECT_RANKS
        return [a for a in free if a.problem_with(layout) is None and (few or a.kind != "direct")]

    def problem_with(self, layout: Layout) -> str | None:
        for candidate in self.candidates or ():
            wrong = candidate.problem_with(layout)
            if wrong is not None:
                return f"candidate {candidate.kind}: {wrong}"
        return None

    def cut(self, layout: Layout, nbytes: float) -> Hashable:
        """Raise TypeError: only the chosen algorithm cuts."""
        raise TypeError("auto has no plan; simdp.engine.collective.Planner chooses an algorithm")

    def build(self, layout: Layout, cut: Hashable, root: int) -> Plan:
        """Raise TypeError: only the chosen algorithm has a plan."""
        raise TypeError("auto has no plan; simdp.engine.collective.Planner chooses an algorithm")


class AutoAllReduce(Auto, AllReduceAlgorithm):
    """The fastest all_reduce for each size."""

    ordinary: ClassVar[tuple[str, ...]] = (
        "ring",
        "tree",
        "double_binary_tree",
        "recursive_doubling",
        "halving_doubling",
        "hierarchical",
        "direct",
        "nvls",
    )
    candidates: tuple[AnyAllReduce, ...] | None = None


class AutoReduceScatter(Auto, ReduceScatterAlgorithm):
    """The fastest reduce_scatter for each size."""

    ordinary: ClassVar[tuple[str, ...]] = ("ring", "halving_doubling", "hierarchical", "direct")
    candidates: tuple[AnyReduceScatter, ...] | None = None


class AutoAllGather(Auto, AllGatherAlgorithm):
    """The fastest all_gather for each size."""

    ordinary: ClassVar[tuple[str, ...]] = ("ring", "recursive_doubling", "hierarchical", "direct")
    candidates: tuple[AnyAllGather, ...] | None = None


class AutoBroadcast(Auto, BroadcastAlgorithm):
    """The fastest broadcast for each size."""

    ordinary: ClassVar[tuple[str, ...]] = (
        "ring",
        "tree",
        "double_binary_tree",
        "binomial",
        "naive",
    )
    candidates: tuple[AnyBroadcast, ...] | None = None


class AutoReduce(Auto, ReduceAlgorithm):
    """The fastest reduce for each size."""

    ordinary: ClassVar[tuple[str, ...]] = ("tree", "double_binary_tree", "binomial", "naive")
    candidates: tuple[AnyReduce, ...] | None = None


class AutoAllToAll(Auto, AllToAllAlgorithm):
    """The fastest all_to_all for each size."""

    ordinary: ClassVar[tuple[str, ...]] = ("pairwise", "hierarchical", "direct")
    candidates: tuple[AnyAllToAll, ...] | None = None
