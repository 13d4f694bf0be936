"""Ring algorithms: one ring, several, both directions.

In one node, or with one rank per node, ring c has steps of the c-th number coprime to n: 1, n - 1,
3, n - 3, ... No two of them use a link of a full mesh in the same direction.

On several nodes of m ranks all rings visit the nodes in the same order, but each enters and leaves
a node at another local rank, so that the rings use different network cards; and inside a node no
two use a link in the same direction. For even m ring c visits the local ranks ``c, c + 1, c - 1, c
+ 2, c - 2, ...`` with steps 1, -2, 3, ... that differ modulo m (Williams 1949): there are m
such rings. For odd m ring c goes in steps of the c-th number s coprime to m, from local rank ``2
s`` to ``s``.

Rings in both directions use full-duplex links, which one ring leaves half idle; two ranks have only
one ring.

References
----------
E. J. Williams, "Experimental designs balanced for the estimation of residual effects of
treatments", Australian Journal of Scientific Research A 2(2), 1949.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Ints
from simdp.collectives.base import (
    AllGatherAlgorithm,
    AllReduceAlgorithm,
    BroadcastAlgorithm,
    Composed,
    Pipelined,
    ReduceAlgorithm,
    ReduceScatterAlgorithm,
    Simple,
    pipeline_chunks,
)
from simdp.collectives.plans import Assembly, Layout, Offsets, Order, Plan, Round, even_offsets
from simdp.spec import Int, PositiveBytes, Spec

Rank = Annotated[Int, Field(ge=0)]
Pair = Annotated[tuple[Rank, Rank], Field()]

MAX_AVOIDED = 64
"""Limit of pairs in ``avoid``."""

MAX_SWAPS = 256
"""Distance in the order up to which a rank may be swapped."""


class Around(Spec):
    """Common option of rings: pairs of ranks that must not be neighbours."""

    avoid: tuple[Pair, ...] = Field((), max_length=MAX_AVOIDED)
    """Pairs of ranks that are no neighbours in the ring, such as the ends of a degraded link; of
    process groups, places in the group. Other ranks are swapped, those of one node if that
    suffices."""

    def problem_with(self, layout: Layout) -> str | None:
        """See `Algorithm.problem_with`."""
        n = layout.world_size
        for a, b in self.avoid:
            if max(a, b) >= n or a == b:
                return f"cannot keep ranks {a} and {b} apart; give two of 0 ... {n - 1} in avoid."
        if n > 1 and self.avoid and _met(self.around(layout), self.avoid):
            return (
                f"finds no order of {n} ranks that keeps apart all pairs of avoid; leave some out."
            )
        return None

    def around(self, layout: Layout) -> Ints:
        """Return the ranks in ring order, from rank 0 on."""
        return ring_order(layout.world_size, layout.per_node, self.avoid)


@lru_cache(maxsize=64)
def ring_order(world_size: int, per_node: int, avoid: tuple[Pair, ...]) -> Ints:
    """Order ranks around a ring by number, from rank 0 on, with pairs kept apart.

    Ranks are swapped two by two while that separates a pair; of several swaps, the one with the
    fewest crossings between nodes and, of these, the nearest. If no order is found, the best one is
    returned. Ranks beyond ``world_size`` are ignored.
    """
    order = np.arange(world_size)
    left = _met(order, avoid)
    while left:
        tried = ((_met(swapped, avoid), far, swapped) for far, swapped in _swaps(order, avoid))
        helps = [
            (_crossings(swapped, per_node), met, far, swapped)
            for met, far, swapped in tried
            if met < left
        ]
        if not helps:
            break
        _, left, _, order = min(helps, key=lambda swap: swap[:3])
    return np.roll(order, -int(np.flatnonzero(order == 0)[0]))


def _met(order: Ints, avoid: Sequence[Pair]) -> int:
    """Count the pairs that are neighbours."""
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    n, there = len(order), [pair for pair in avoid if max(pair) < len(order)]
    apart = [abs(int(place[a]) - int(place[b])) for a, b in there]
    return sum(distance in (1, n - 1) for distance in apart)


def _crossings(order: Ints, per_node: int) -> int:
    """Count the steps between nodes."""
    node = order // per_node
    return int((node != np.roll(node, -1)).sum())


def _swaps(order: Ints, avoid: Sequence[Pair]) -> Iterator[tuple[int, Ints]]:
    """Yield orders with a rank of such a pair swapped, and the distance of the swap."""
    n, place = len(order), {rank: at for at, rank in enumerate(order.tolist())}
    for at in sorted({place[rank] for pair in avoid for rank in pair if rank < n}):
        for far in range(1, min(n, MAX_SWAPS)):
            for other in ((at + far) % n, (at - far) % n):
                swapped = order.copy()
                swapped[[at, other]] = swapped[[other, at]]
                yield far, swapped


# Ring ---------------------------------------------------------------------------------------------


def ring_rounds(
    order: Ints, first_chunk: int, num_reducing: int, num_rounds: int
) -> Iterator[Round]:
    """Yield rounds of a ring in which every rank of ``order`` sends to the next one.

    The rank at place p sends the chunk of the rank at place ``p + first_chunk - step``, which the
    receiver adds in the first ``num_reducing`` rounds.
    """
    n, src, dst = len(order), order, np.roll(order, -1)
    doubled = np.concatenate([order, order])  # doubled[i : i + n] is order[(places + i) % n]
    for step in range(num_rounds):
        shift = (first_chunk - step) % n
        yield Round(src, dst, doubled[shift : shift + n], step < num_reducing)


class RingAllReduce(Around, Simple, AllReduceAlgorithm):
    """Reduce-scatter around the ring, then all-gather: 2 (n - 1) rounds of 1/n of the buffer.

    Attributes
    ----------
    avoid : tuple of (int, int)
        Pairs of ranks that are no neighbours in the ring (`Around`); not with ``gloo``: its ring
        follows rank numbers.

    References
    ----------
    Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC
    69(2), 2009.
    """

    order: ClassVar[Order] = "ring"

    kind: Literal["ring"] = "ring"
    chunking: Literal["even", "gloo"] = "even"
    """How the payload is cut, and so the order of every sum: ``even`` splits whole elements evenly
    and sends upwards; ``gloo`` cuts, sends and adds exactly as gloo's ring, so that float32 bits
    equal those of torch with the gloo backend. The time is the same."""

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
    """Yield rounds of gloo's ring, downwards: chunk c starts at rank c - 1, is complete at c."""
    src = np.arange(world_size)
    for step in range(num_rounds):
        yield Round(
            src, (src - 1) % world_size, (src + 1 + step) % world_size, step < world_size - 1
        )


def _quotient_up(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


def gloo_offsets(world_size: int) -> Offsets:
    """Return the offsets of gloo's ring.

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


class RingReduceScatter(Around, Simple, ReduceScatterAlgorithm):
    """n - 1 rounds; the piece of rank r starts at rank r + 1 and is complete at rank r."""

    order: ClassVar[Order] = "ring"

    kind: Literal["ring"] = "ring"

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        n = layout.world_size
        yield from ring_rounds(self.around(layout), -1, n - 1, n - 1)


class RingAllGather(Around, Simple, AllGatherAlgorithm):
    """n - 1 rounds; every rank forwards the chunk that it received last."""

    order: ClassVar[Order] = "ring"

    kind: Literal["ring"] = "ring"

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        yield from ring_rounds(self.around(layout), 0, 0, layout.world_size - 1)


class RingBroadcast(Pipelined, Around, BroadcastAlgorithm):
    """A pipelined chain along the ring: chunk c leaves the root in round c."""

    order: ClassVar[Order] = "chain"

    kind: Literal["ring"] = "ring"

    def route(self, layout: Layout, root: int) -> Ints:
        return _from(self.around(layout), root)

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        yield from _chain_rounds(self.route(layout, root), num_chunks, reduce=False)


class RingReduce(Pipelined, Around, ReduceAlgorithm):
    """A pipelined chain around the ring that ends at the root: every rank adds and forwards."""

    order: ClassVar[Order] = "chain"

    kind: Literal["ring"] = "ring"

    def route(self, layout: Layout, root: int) -> Ints:
        return np.roll(_from(self.around(layout), root), -1)

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        yield from _chain_rounds(self.route(layout, root), num_chunks, reduce=True)


def _from(order: Ints, root: int) -> Ints:
    """Return a ring's order from the root on."""
    return np.roll(order, -int(np.flatnonzero(order == root)[0]))


def _chain_rounds(route: Ints, num_chunks: int, reduce: bool) -> Iterator[Round]:
    """Yield rounds of a chain, in which position p sends chunk ``step - p`` to the next one."""
    last_position = len(route) - 2
    for step in range(num_chunks + last_position):
        position = np.arange(max(0, step - num_chunks + 1), min(last_position, step) + 1)
        yield Round(route[position], route[position + 1], step - position, reduce)


# Multi ring ---------------------------------------------------------------------------------------

MAX_CHANNELS = 64
"""NCCL's limit (MAXCHANNELS)."""


def add_rings(collective: str, orders: list[Ints], parts: Assembly) -> int:
    """Add simultaneous rings to ``parts``; return the number of chunks.

    Each of ``orders`` is a ring of ranks that send to the next; every rank's piece is one chunk of
    each ring. ``collective`` is all_reduce, reduce_scatter or all_gather.
    """
    n, k = len(orders[0]), len(orders)
    first_chunk, num_reducing, num_rounds = {
        "all_reduce": (0, n - 1, 2 * (n - 1)),
        "reduce_scatter": (-1, n - 1, n - 1),
        "all_gather": (0, 0, n - 1),
    }[collective]
    for channel, order in enumerate(orders):
        rounds = partial(ring_rounds, order, first_chunk, num_reducing, num_rounds)
        ring = Plan(collective, n, n, 0, rounds, even_offsets(n), order="ring")
        parts.add(ring, np.arange(n)[None, :], np.array([channel]), step=k)
    return n * k


def _strides(size: int) -> list[int]:
    """Return numbers below ``size`` coprime to it, the shortest way round first."""
    small = np.arange(1, size // 2 + 1)
    small = small[np.gcd(small, size) == 1]
    return list(dict.fromkeys(np.stack([small, size - small], axis=1).reshape(-1).tolist()))


def _is_flat(layout: Layout) -> bool:
    return 1 in (layout.num_nodes, layout.per_node)


def num_rings(layout: Layout) -> int:
    """Return the number of rings that share no link."""
    size = layout.world_size if _is_flat(layout) else layout.per_node
    if not _is_flat(layout) and size % 2 == 0:
        return size
    return len(_strides(size))


def ring_orders(layout: Layout, channels: int) -> list[Ints]:
    """Return the visiting order of each of the first ``channels`` rings."""
    n, m = layout.world_size, layout.per_node
    if _is_flat(layout):
        return [np.arange(n) * stride % n for stride in _strides(n)[:channels]]
    local = np.arange(m)
    if m % 2 == 0:
        zigzag = np.where(local % 2, (local + 1) // 2, -(local // 2))
        paths = [(zigzag + channel) % m for channel in range(channels)]
    else:
        paths = [stride * (local + 2) % m for stride in _strides(m)[:channels]]
    nodes = np.arange(0, n, m)[:, None]
    return [(nodes + path).reshape(-1) for path in paths]


class _MultiRing(Composed):
    """Base of algorithms on several rings."""

    kind: Literal["multi_ring"] = "multi_ring"
    channels: Int | None = Field(None, ge=1, le=MAX_CHANNELS)
    """Number of rings; None: as many as share no link, 64 at most."""

    def problem_with(self, layout: Layout) -> str | None:
        there = num_rings(layout)
        if self.channels is None or self.channels <= there:
            return None
        where = f"{layout.world_size} ranks"
        if not _is_flat(layout):
            where = f"{layout.num_nodes} nodes of {layout.per_node} ranks"
        return f"needs channels <= {there} for {where}, got {self.channels}; more would share links"

    def cuts(self, layout: Layout, nbytes: float) -> tuple[Hashable, ...]:
        return ()

    def assemble(
        self, layout: Layout, cuts: tuple[Hashable, ...], root: int, parts: Assembly
    ) -> int:
        channels = self.channels or min(num_rings(layout), MAX_CHANNELS)
        return add_rings(self.collective, ring_orders(layout, channels), parts)


class MultiRingAllReduce(_MultiRing, AllReduceAlgorithm):
    """Simultaneous rings over different links: 2 (n - 1) rounds of 1/(n channels) of the buffer."""


class MultiRingReduceScatter(_MultiRing, ReduceScatterAlgorithm):
    """Simultaneous rings over different links: n - 1 rounds of 1/(n channels) of the buffer."""


class MultiRingAllGather(_MultiRing, AllGatherAlgorithm):
    """Simultaneous rings over different links: n - 1 rounds of 1/(n channels) of the buffer."""


# Bidirectional ring -------------------------------------------------------------------------------


def _ways(world_size: int) -> list[Ints]:
    """Return the ranks upwards and downwards, from rank 0."""
    up = np.arange(world_size)
    return [up, -up % world_size][: world_size - 1]


class _BidirectionalRing(Composed):
    """Base of the families in which every rank has a piece."""

    kind: Literal["bidirectional_ring"] = "bidirectional_ring"

    def cuts(self, layout: Layout, nbytes: float) -> tuple[Hashable, ...]:
        return ()

    def assemble(
        self, layout: Layout, cuts: tuple[Hashable, ...], root: int, parts: Assembly
    ) -> int:
        return add_rings(self.collective, _ways(layout.world_size), parts)


class BidirectionalRingAllReduce(_BidirectionalRing, AllReduceAlgorithm):
    """Two rings in opposite directions: 2 (n - 1) rounds of 1/(2n) of the buffer."""


class BidirectionalRingReduceScatter(_BidirectionalRing, ReduceScatterAlgorithm):
    """Two rings in opposite directions: n - 1 rounds of 1/(2n) of the buffer."""


class BidirectionalRingAllGather(_BidirectionalRing, AllGatherAlgorithm):
    """Two rings in opposite directions: n - 1 rounds of 1/(2n) of the buffer."""


class BidirectionalRingBroadcast(Composed, BroadcastAlgorithm):
    """Two pipelined chains from the root in opposite directions, each with half of the buffer."""

    kind: Literal["bidirectional_ring"] = "bidirectional_ring"
    chunk_size: PositiveBytes = 512 * 2.0**10
    """Bytes per chunk; 512 KiB is the step of NCCL's Simple protocol (4 MiB of buffer in 8
    steps)."""

    def cuts(self, layout: Layout, nbytes: float) -> tuple[Hashable, ...]:
        return (pipeline_chunks(nbytes / len(_ways(layout.world_size)), self.chunk_size),)

    def assemble(
        self, layout: Layout, cuts: tuple[Hashable, ...], root: int, parts: Assembly
    ) -> int:
        n, (num_chunks,) = layout.world_size, cuts
        assert isinstance(num_chunks, int)
        chain, ways = RingBroadcast().build(layout, num_chunks, 0), _ways(n)
        for number, way in enumerate(ways):
            parts.add(chain, (root + way)[None, :] % n, np.array([number * num_chunks]))
        return num_chunks * len(ways)
