"""Algorithms that send straight to the destination, and Gloo's.

Direct ones take one latency and n (n - 1) transfers at the same time, for full meshes or small
messages; where ranks have one port, the transfers share it. `naive` has broadcast and reduce.
Copies of a single process between its devices (cudaMemcpyPeer), as in torch.nn.DataParallel, are
plans outside of all families. Gloo's algorithms begin like its ring all_reduce (`ring` with
``chunking: gloo``); it has no reduce_scatter, torch takes a piece of an all_reduce.

References
----------
Chan, Heimlich, Purkayastha and van de Geijn, "Collective communication: theory, practice, and
experience", Concurrency and Computation 19(13), 2007; Thakur, Rabenseifner and Gropp, "Optimization
of collective communication operations in MPICH", IJHPCA 19(1), 2005; gloo/reduce.cc;
torch/csrc/distributed/c10d/ProcessGroupGloo.cpp, reduce_scatter_tensor_coalesced.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from functools import lru_cache
from math import gcd
from typing import ClassVar, Literal

import numpy as np

from simdp.arrays import Ints
from simdp.collectives.base import (
    AllGatherAlgorithm,
    AllReduceAlgorithm,
    AllToAllAlgorithm,
    BroadcastAlgorithm,
    Composed,
    GatherAlgorithm,
    ReduceAlgorithm,
    ReduceScatterAlgorithm,
    ScatterAlgorithm,
    Simple,
    Whole,
)
from simdp.collectives.plans import Assembly, Layout, Offsets, Order, Plan, Round, even_offsets
from simdp.collectives.ring import RingAllReduce, gloo_offsets, gloo_rounds

# Direct -------------------------------------------------------------------------------------------

MAX_RANKS = 2048
"""Largest number of ranks; transfers between all pairs of more would take gigabytes."""


class _Direct(Simple):
    """Base of the direct algorithms."""

    order: ClassVar[Order] = "rank"

    kind: Literal["direct"] = "direct"

    def problem_with(self, layout: Layout) -> str | None:
        n = layout.world_size
        if n <= MAX_RANKS:
            return None
        return f"has {n * (n - 1):,} transfers on {n:,} ranks; the limit is {MAX_RANKS:,} ranks"


def _pairs(world_size: int) -> tuple[Ints, Ints]:
    """Return all pairs of ranks, ``(src, dst)``, by destination, then source."""
    dst, src = np.nonzero(~np.eye(world_size, dtype=bool))
    return src, dst


def _scatter(world_size: int) -> Round:
    src, dst = _pairs(world_size)
    return Round(src, dst, dst, True)


def _gather(world_size: int) -> Round:
    src, dst = _pairs(world_size)
    return Round(src, dst, src, False)


class DirectAllReduce(_Direct, AllReduceAlgorithm):
    """Every rank receives its piece from all others and sends the sum to all others: 2 rounds."""

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        yield _scatter(layout.world_size)
        yield _gather(layout.world_size)


class DirectReduceScatter(_Direct, ReduceScatterAlgorithm):
    """Every rank receives its piece from all others and adds in rank order: 1 round."""

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        yield _scatter(layout.world_size)


class DirectAllGather(_Direct, AllGatherAlgorithm):
    """Every rank sends its piece to all others: 1 round."""

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        yield _gather(layout.world_size)


class DirectAllToAll(_Direct, AllToAllAlgorithm):
    """Every rank sends all others their pieces: 1 round."""

    def num_scratch(self, layout: Layout, num_chunks: int) -> int:
        return num_chunks

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        src, dst = _pairs(layout.world_size)
        yield Round(src, dst, dst, False, to=num_chunks + src)


class PairwiseAllToAll(Simple, AllToAllAlgorithm):
    """Every rank sends one piece in each of n - 1 rounds.

    In round i the ranks ``r`` and ``r xor i`` exchange pieces where n is a power of two; else rank
    ``r`` sends to ``r + i`` and receives from ``r - i``.
    """

    order: ClassVar[Order] = "rank"

    kind: Literal["pairwise"] = "pairwise"

    def num_scratch(self, layout: Layout, num_chunks: int) -> int:
        return num_chunks

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        n, src = layout.world_size, np.arange(layout.world_size)
        in_pairs = n.bit_count() == 1
        for step in range(1, n):
            dst = src ^ step if in_pairs else (src + step) % n
            yield Round(src, dst, dst, False, to=num_chunks + src)


# Naive --------------------------------------------------------------------------------------------


def _others(world_size: int, root: int) -> Ints:
    """Return every rank but the root, in order."""
    return np.delete(np.arange(world_size), root)


def _send_root(others: Ints, root: int, chunk: Ints, reduce: bool) -> Round:
    return Round(others, np.full_like(others, root), chunk, reduce)


def _send_each(others: Ints, root: int, chunk: Ints) -> Round:
    return Round(np.full_like(others, root), others, chunk, False)


class NaiveAllReduce(Whole, AllReduceAlgorithm):
    """Every rank sends its buffer to rank 0, which adds them in rank order and sends the sum."""

    kind: Literal["naive"] = "naive"

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        others = _others(layout.world_size, root)
        whole = np.zeros_like(others)
        yield _send_root(others, root, whole, True)
        yield _send_each(others, root, whole)


class NaiveReduce(Whole, ReduceAlgorithm):
    """Every rank sends its buffer to the root, which adds them in rank order."""

    kind: Literal["naive"] = "naive"

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        others = _others(layout.world_size, root)
        yield _send_root(others, root, np.zeros_like(others), True)


class NaiveBroadcast(Whole, BroadcastAlgorithm):
    """The root sends its buffer to every rank."""

    kind: Literal["naive"] = "naive"

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        others = _others(layout.world_size, root)
        yield _send_each(others, root, np.zeros_like(others))


class NaiveScatter(Simple, ScatterAlgorithm):
    """The root sends every rank its piece."""

    kind: Literal["naive"] = "naive"

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        others = _others(layout.world_size, root)
        yield _send_each(others, root, others)


class NaiveGather(Simple, GatherAlgorithm):
    """Every rank sends the root its piece."""

    kind: Literal["naive"] = "naive"

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        others = _others(layout.world_size, root)
        yield _send_root(others, root, others, False)


# Copies -------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def copies_from(root: int, sizes: tuple[int, ...]) -> Plan:
    """Plan copies from a rank to every other one, in rank order, one round per copy.

    ``sizes`` are the lengths of each rank's piece in equal parts of the buffer, 0 for none. Equal
    arguments return the same plan.
    """
    return _plan("scatter", root, sizes)


@lru_cache(maxsize=256)
def copies_to(root: int, sizes: tuple[int, ...]) -> Plan:
    """Plan copies to a rank from every other one, in rank order; arguments as of `copies_from`."""
    return _plan("gather", root, sizes)


def _plan(collective: str, root: int, sizes: tuple[int, ...]) -> Plan:
    if not 0 <= root < len(sizes):
        raise ValueError(f"root must be in 0 ... {len(sizes) - 1}, got {root}")
    if min(sizes) < 0 or not any(sizes):
        raise ValueError(f"sizes must be >= 0 and not all 0, got {sizes}")
    unit = gcd(*sizes)  # as few chunks as cut between the pieces
    counts = [size // unit for size in sizes]
    begins = np.cumsum(counts) - counts
    others = [rank for rank, count in enumerate(counts) if count and rank != root]

    def rounds() -> Iterator[Round]:
        for rank in others:
            src, dst = (root, rank) if collective == "scatter" else (rank, root)
            yield Round(_one(src), _one(dst), _one(int(begins[rank])), False, None, counts[rank])

    num_chunks = sum(counts)
    return Plan(
        collective=collective,
        world_size=len(sizes),
        num_chunks=num_chunks,
        root=root,
        rounds=rounds,
        offsets=even_offsets(num_chunks),
        order="rank",
    )


def _one(value: int) -> Ints:
    return np.array([value], dtype=np.int64)


class GlooReduce(Composed, ReduceAlgorithm):
    """Reduce_scatter around the ring, n - 1 rounds; then every rank sends the root its chunk."""

    kind: Literal["gloo"] = "gloo"

    def offsets(self, layout: Layout, num_chunks: int) -> Offsets:
        return gloo_offsets(layout.world_size)

    def cuts(self, layout: Layout, nbytes: float) -> tuple[Hashable, ...]:
        return ()

    def assemble(
        self, layout: Layout, cuts: tuple[Hashable, ...], root: int, parts: Assembly
    ) -> int:
        n = layout.world_size
        everyone, first = np.arange(n)[None, :], np.zeros(1, dtype=np.int64)
        ring = Plan(
            "reduce_scatter", n, n, 0, lambda: gloo_rounds(n, n - 1), even_offsets(n), "ring"
        )
        summed = parts.add(ring, everyone, first)
        parts.add(NaiveGather().plan(layout, 0.0, root), everyone, first, after=summed)
        return n


class GlooReduceScatter(ReduceScatterAlgorithm):
    """An all_reduce around the ring, 2 (n - 1) rounds, of which every rank keeps its piece."""

    kind: Literal["gloo"] = "gloo"

    def cut(self, layout: Layout, nbytes: float) -> Hashable:
        return layout.world_size

    def build(self, layout: Layout, cut: Hashable, root: int) -> Plan:
        return RingAllReduce(chunking="gloo", slices=self.slices).build(layout, cut, root)
