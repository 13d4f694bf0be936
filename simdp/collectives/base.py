"""Base classes of collective algorithms, which make plans (`simdp.collectives.plans`)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from simdp.arrays import Ints
from simdp.collectives.plans import (
    Assembly,
    Layout,
    Moves,
    Offsets,
    Order,
    Plan,
    Round,
    SubPlan,
    behind,
    even_offsets,
    expand,
    in_slices,
    in_turn,
    layout_of,
)
from simdp.spec import Int, PositiveBytes, Spec, problem

MAX_SLICES = 1024
"""Limit of slices and pipelined chunks; more only add latencies."""


class Algorithm(Spec):
    """Base of every collective algorithm; `plan` is its interface.

    Members are either `Simple`, which states its rounds, or `Composed`, which combines other plans.
    """

    collective: ClassVar[str]
    """The collective, set by the family."""

    kind: str
    slices: Int = Field(1, ge=1, le=MAX_SLICES)
    """Pieces of every chunk, which pass through the algorithm one after the other."""

    @abstractmethod
    def cut(self, layout: Layout, nbytes: float) -> Hashable:
        """Return how a buffer of ``nbytes`` is cut, all that a plan takes from its size."""

    @abstractmethod
    def build(self, layout: Layout, cut: Hashable, root: int) -> Plan:
        """Build the plan for two ranks or more."""

    def problem_with(self, layout: Layout) -> str | None:
        """Explain why the algorithm does not support a layout, or None."""
        return None

    def offsets(self, layout: Layout, num_chunks: int) -> Offsets:
        """Return where chunks begin in a buffer."""
        return even_offsets(num_chunks)

    def _offsets(self, layout: Layout, num_chunks: int) -> Offsets:
        """Return `offsets` with every chunk cut into slices."""
        if self.slices == 1:
            return self.offsets(layout, num_chunks)
        return even_offsets(num_chunks * self.slices)

    def settled(self, base: Path) -> Self:
        """Return the same algorithm with its files, and its members', read from folder ``base``.

        Raises
        ------
        ScenarioError
            If a file is unreadable or another algorithm.
        """
        members: dict[str, Any] = {}
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, Algorithm):
                members[name] = value.settled(base)
            elif isinstance(value, tuple) and all(
                isinstance(member, Algorithm) for member in value
            ):
                members[name] = tuple(member.settled(base) for member in value)
        return self.model_copy(update=members) if members else self

    def plan(self, layout: Layout | int, nbytes: float, root: int = 0) -> Plan:
        """Plan the collective.

        Parameters
        ----------
        layout : Layout or int
            Ranks and nodes, or the number of ranks in one node.
        nbytes : float
            Bytes of the whole buffer: the result of an all_reduce or a broadcast on every rank, the
            input of a reduce_scatter or a scatter, the output of an all_gather or a gather, the
            bytes that a rank sends and receives in an all_to_all.
        root : int
            For broadcast, reduce, scatter and gather.

        Returns
        -------
        Plan
            The same object for equal arguments, so that derived values are cached.

        Raises
        ------
        ValueError
            If ``nbytes`` or ``root`` is out of range, or the algorithm does not support the layout.
        """
        layout = layout_of(layout)
        if not 0 <= nbytes < float("inf"):
            raise ValueError(f"nbytes must be >= 0 and finite, got {nbytes}")
        if not 0 <= root < layout.world_size:
            raise ValueError(f"root must be in 0 ... {layout.world_size - 1}, got {root}")
        if layout.world_size == 1:
            return _nothing(self.collective)
        wrong = self.problem_with(layout)
        if wrong:
            raise ValueError(f"{self.collective} {self.kind}: {wrong}")
        return _plan(self, layout, self.cut(layout, nbytes), root)


@lru_cache(maxsize=256)
def _plan(algorithm: Algorithm, layout: Layout, cut: Hashable, root: int) -> Plan:
    return algorithm.build(layout, cut, root)


@lru_cache(maxsize=16)
def _nothing(collective: str) -> Plan:
    """Return the plan of a single rank."""
    scratch = int(collective == "all_to_all")  # the result of an all_to_all
    return Plan(collective, 1, 1, 0, lambda: iter(()), even_offsets(1), num_scratch=scratch)


class Simple(Algorithm):
    """An algorithm that states its rounds."""

    order: ClassVar[Order] = "chunk"

    @abstractmethod
    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        """Generate the rounds for two ranks or more, without slices."""

    def num_chunks(self, layout: Layout, nbytes: float) -> int:
        """Return the chunks of a buffer of ``nbytes``, at least 1; by default one per rank."""
        return layout.world_size

    def num_scratch(self, layout: Layout, num_chunks: int) -> int:
        """Return the chunks of scratch per rank, in addition to the buffer's."""
        return 0

    def num_switches(self, layout: Layout) -> int:
        """Return the number of reducing switches."""
        return 0

    def route(self, layout: Layout, root: int) -> Ints | None:
        """See `Plan.route`."""
        return None

    def cut(self, layout: Layout, nbytes: float) -> Hashable:
        """See `Algorithm`: the number of chunks."""
        return self.num_chunks(layout, nbytes)

    def build(self, layout: Layout, cut: Hashable, root: int) -> Plan:
        """See `Algorithm`."""
        assert isinstance(cut, int)
        num_chunks, k = cut, self.slices

        def rounds() -> Iterator[Round]:
            generated = self.rounds(layout, num_chunks, root)
            if k == 1:
                return generated
            return in_turn(generated, k) if self.order == "ring" else behind(generated, k)

        return Plan(
            collective=self.collective,
            world_size=layout.world_size,
            num_chunks=num_chunks * k,
            root=root,
            rounds=rounds,
            offsets=self._offsets(layout, num_chunks),
            order=self.order,
            slices=k,
            route=self.route(layout, root),
            num_scratch=self.num_scratch(layout, num_chunks) * k,
            num_switches=self.num_switches(layout),
        )


class Whole(Simple):
    """An algorithm that sends the whole buffer as one chunk."""

    def num_chunks(self, layout: Layout, nbytes: float) -> int:
        """See `Simple`."""
        return 1


class Pipelined(Simple):
    """An algorithm in which chunks of at most ``chunk_size`` bytes follow each other."""

    chunk_size: PositiveBytes = 512 * 2.0**10
    """Bytes per chunk; 512 KiB is the step of NCCL's Simple protocol (4 MiB of buffer in 8
    steps)."""

    def num_chunks(self, layout: Layout, nbytes: float) -> int:
        """See `Simple`."""
        return pipeline_chunks(nbytes, self.chunk_size)


def pipeline_chunks(nbytes: float, chunk_size: float) -> int:
    """Return the number of chunks of at most ``chunk_size`` bytes, 1 ... `MAX_SLICES`."""
    return int(min(max(-(-nbytes // chunk_size), 1), MAX_SLICES))


class Composed(Algorithm):
    """An algorithm that combines others."""

    @model_validator(mode="after")
    def _members_are_certain(self) -> Self:
        for name in type(self).model_fields:
            if getattr(getattr(self, name), "kind", None) == "auto":
                raise problem(
                    f"{name}: auto chooses between whole algorithms; name one, or list several as "
                    "candidates of auto."
                )
        return self

    @abstractmethod
    def cuts(self, layout: Layout, nbytes: float) -> tuple[Hashable, ...]:
        """Return how each of the others cuts its share of a buffer of ``nbytes``."""

    @abstractmethod
    def assemble(
        self, layout: Layout, cuts: tuple[Hashable, ...], root: int, parts: Assembly
    ) -> int:
        """Add the parts; return the number of chunks of the whole."""

    def num_scratch(self, layout: Layout, num_chunks: int) -> int:
        """Return the chunks of scratch per rank, in addition to the buffer's."""
        return 0

    def cut(self, layout: Layout, nbytes: float) -> Hashable:
        """See `Algorithm`."""
        return self.cuts(layout, nbytes / self.slices)

    def build(self, layout: Layout, cut: Hashable, root: int) -> Plan:
        """See `Algorithm`."""
        assert isinstance(cut, tuple)
        parts = Assembly()
        num_chunks = self.assemble(layout, cut, root, parts)
        return Plan(
            collective=self.collective,
            world_size=layout.world_size,
            num_chunks=num_chunks * self.slices,
            root=root,
            rounds=lambda: iter(()),
            offsets=self._offsets(layout, num_chunks),
            slices=self.slices,
            num_scratch=self.num_scratch(layout, num_chunks) * self.slices,
            num_switches=layout.num_switches,
            parts=in_slices(parts.parts, self.slices),
        )


class AllReduceAlgorithm(Algorithm):
    """Every rank ends with the sum of all ranks' buffers."""

    collective: ClassVar[str] = "all_reduce"


class ReduceScatterAlgorithm(Algorithm):
    """Rank r ends with the sum of all ranks' r-th piece."""

    collective: ClassVar[str] = "reduce_scatter"


class AllGatherAlgorithm(Algorithm):
    """Every rank ends with every rank's piece."""

    collective: ClassVar[str] = "all_gather"


class AllToAllAlgorithm(Algorithm):
    """Rank r ends with every rank's r-th piece, in the order of the ranks."""

    collective: ClassVar[str] = "all_to_all"


class BroadcastAlgorithm(Algorithm):
    """Every rank ends with the root's buffer."""

    collective: ClassVar[str] = "broadcast"


class ReduceAlgorithm(Algorithm):
    """The root ends with the sum of all ranks' buffers."""

    collective: ClassVar[str] = "reduce"


class ScatterAlgorithm(Algorithm):
    """Rank r ends with the root's r-th piece."""

    collective: ClassVar[str] = "scatter"


class GatherAlgorithm(Algorithm):
    """The root ends with every rank's piece."""

    collective: ClassVar[str] = "gather"


class BarrierAlgorithm(Algorithm):
    """No rank leaves before every rank has entered; only empty messages are sent."""

    collective: ClassVar[str] = "barrier"


__all__ = [
    "MAX_SLICES",
    "Algorithm",
    "AllGatherAlgorithm",
    "AllReduceAlgorithm",
    "AllToAllAlgorithm",
    "Assembly",
    "BarrierAlgorithm",
    "BroadcastAlgorithm",
    "Composed",
    "GatherAlgorithm",
    "Ints",
    "Moves",
    "Offsets",
    "Order",
    "Pipelined",
    "Plan",
    "ReduceAlgorithm",
    "ReduceScatterAlgorithm",
    "Round",
    "ScatterAlgorithm",
    "Simple",
    "SubPlan",
    "Whole",
    "even_offsets",
    "expand",
    "pipeline_chunks",
]
