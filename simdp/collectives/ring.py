"""Ring algorithms: every rank sends to one neighbour and receives from the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import numpy as np

from simdp.arrays import Ints
from simdp.collectives.around import Around
from simdp.collectives.base import (
    MAX_SLICES,
    AllGather,
    AllReduce,
    Broadcast,
    Offsets,
    Order,
    Reduce,
    ReduceScatter,
    Round,
    Simple,
    even_offsets,
)
from simdp.collectives.plans.layout import Layout
from simdp.spec import PositiveBytes


def ring_rounds(
    order: Ints, first_chunk: int, num_reducing: int, num_rounds: int
) -> Iterator[Round]:
    """Rounds of a ring in which every rank of ``order`` sends to the next one.

    The rank at place p sends the chunk of the rank at place ``p + first_chunk - step``, which the
    receiver adds in the first ``num_reducing`` rounds.
    """
    n, src, dst = len(order), order, np.roll(order, -1)
    doubled = np.concatenate([order, order])  # doubled[i : i + n] is order[(places + i) % n]
    for step in range(num_rounds):
        shift = (first_chunk - step) % n
        yield Round(src, dst, doubled[shift : shift + n], step < num_reducing)


class RingAllReduce(Around, Simple, AllReduce):
    """Reduce-scatter around the ring, then all-gather: 2 (n - 1) rounds of 1/n of the buffer.

    Attributes
    ----------
    chunking : {"even", "gloo"}
        How the payload is cut, and so the order of every sum: ``even`` splits whole elements
        evenly and sends upwards; ``gloo`` cuts, sends and adds exactly as gloo's ring does, so that
        float32 bits equal those of torch with the gloo backend. The time is the same.
    avoid : tuple of (int, int)
        Pairs of ranks that are no neighbours in the ring (`Around`); not with ``gloo``, whose ring
        goes by the ranks' numbers.

    References
    ----------
    Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
    JPDC 69(2), 2009.
    """

    order: ClassVar[Order] = "ring"

    kind: Literal["ring"] = "ring"
    chunking: Literal["even", "gloo"] = "even"

    def num_chunks(self, layout: Layout, nbytes: float) -> int:
        return layout.world_size

    def problem_with(self, layout: Layout) -> str | None:
        if self.avoid and self.chunking == "gloo":
            return "goes by the ranks' numbers with chunking: gloo; leave out avoid, or use even."
        return super().problem_with(layout)

    def offsets(self, layout: Layout, num_chunks: int) -> Offsets:
        return (
            gloo_offsets(layout.world_size) if self.chunking == "gloo" else even_offsets(num_chunks)
        )

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        n = layout.world_size
        if self.chunking == "even":
            yield from ring_rounds(self.around(layout), 0, n - 1, 2 * (n - 1))
            return
        yield from gloo_rounds(n, 2 * (n - 1))


def gloo_rounds(world_size: int, num_rounds: int) -> Iterator[Round]:
    """Rounds of gloo's ring, which goes down: chunk c starts at rank c - 1, is complete at c."""
    src = np.arange(world_size)
    for step in range(num_rounds):
        yield Round(
            src, (src - 1) % world_size, (src + 1 + step) % world_size, step < world_size - 1
        )


def _quotient_up(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


def gloo_offsets(world_size: int) -> Offsets:
    """Cut a buffer as gloo's ring does.

    Segments of at most 1 MiB, at least two per rank, in a multiple of the number of ranks; a chunk
    is that number of segments, so that the last chunks can be short or empty.
    """

    def offsets(num_elements: int, itemsize: int) -> Ints:
        nbytes = num_elements * itemsize
        per_rank = max(_quotient_up(_quotient_up(nbytes, 2**20), world_size), 2)
        segment = _quotient_up(_quotient_up(nbytes, per_rank * world_size), itemsize)
        chunk = segment * per_rank
        return np.minimum(np.arange(world_size + 1, dtype=np.int64) * chunk, num_elements)

    return offsets


class RingReduceScatter(Around, Simple, ReduceScatter):
    """n - 1 rounds; the piece of rank r starts at rank r + 1 and is complete at rank r."""

    order: ClassVar[Order] = "ring"

    kind: Literal["ring"] = "ring"

    def num_chunks(self, layout: Layout, nbytes: float) -> int:
        return layout.world_size

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        n = layout.world_size
        yield from ring_rounds(self.around(layout), -1, n - 1, n - 1)


class RingAllGather(Around, Simple, AllGather):
    """n - 1 rounds; every rank passes on what it received last."""

    order: ClassVar[Order] = "ring"

    kind: Literal["ring"] = "ring"

    def num_chunks(self, layout: Layout, nbytes: float) -> int:
        return layout.world_size

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        yield from ring_rounds(self.around(layout), 0, 0, layout.world_size - 1)


class RingBroadcast(Around, Simple, Broadcast):
    """A pipelined chain along the ring: chunk c leaves the root in round c.

    Attributes
    ----------
    chunk_size : float
        Bytes per chunk; 512 KiB is the step of NCCL's Simple protocol (4 MiB of buffer in 8 steps).
    """

    order: ClassVar[Order] = "chain"

    kind: Literal["ring"] = "ring"
    chunk_size: PositiveBytes = 512 * 2.0**10

    def num_chunks(self, layout: Layout, nbytes: float) -> int:
        return pipeline_chunks(nbytes, self.chunk_size)

    def route(self, layout: Layout, root: int) -> Ints:
        return _from(self.around(layout), root)

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        yield from _chain_rounds(self.route(layout, root), num_chunks, reduce=False)


class RingReduce(Around, Simple, Reduce):
    """A pipelined chain around the ring that ends at the root: every rank adds and passes on.

    Attributes
    ----------
    chunk_size : float
        As in `RingBroadcast`, which goes the other way.
    """

    order: ClassVar[Order] = "chain"

    kind: Literal["ring"] = "ring"
    chunk_size: PositiveBytes = 512 * 2.0**10

    def num_chunks(self, layout: Layout, nbytes: float) -> int:
        return pipeline_chunks(nbytes, self.chunk_size)

    def route(self, layout: Layout, root: int) -> Ints:
        return np.roll(_from(self.around(layout), root), -1)

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        yield from _chain_rounds(self.route(layout, root), num_chunks, reduce=True)


def _from(order: Ints, root: int) -> Ints:
    """A ring's order, beginning with the root."""
    return np.roll(order, -int(np.flatnonzero(order == root)[0]))


def _chain_rounds(route: Ints, num_chunks: int, reduce: bool) -> Iterator[Round]:
    """Position p on a chain sends chunk ``step - p`` to the next one, where there is one."""
    last_position = len(route) - 2
    for step in range(num_chunks + last_position):
        position = np.arange(max(0, step - num_chunks + 1), min(last_position, step) + 1)
        yield Round(route[position], route[position + 1], step - position, reduce)


def pipeline_chunks(nbytes: float, chunk_size: float) -> int:
    """Number of chunks of at most ``chunk_size`` bytes, 1 ... `MAX_SLICES`."""
    return int(min(max(-(-nbytes // chunk_size), 1), MAX_SLICES))
