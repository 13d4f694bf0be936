"""Recursive doubling, and halving with doubling.

Only a power of two of ranks, the core, exchanges. Each other rank is represented by a neighbour in
the core, as in MPICH. A rank's part of the buffer is always one range of chunks, sent as one
transfer.

Halving and doubling sends the bytes of a ring in about log2 n rounds if n, the number of ranks, is
a power of two. For other n some ranks send the whole buffer to a partner first and receive the
result last, in two more rounds. Its all_gather is `recursive_doubling`, which has the fewest
rounds, log2 n for powers of two, but sends the whole buffer in every round of an all_reduce, for
short messages.

References
----------
Rabenseifner, "Optimization of collective reduction operations", ICCS 2004; van de Geijn, "On global
combine operations", JPDC 22(2), 1994; Thakur, Rabenseifner and Gropp, "Optimization of collective
communication operations in MPICH", IJHPCA 19(1), 2005.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from simdp.arrays import Ints
from simdp.collectives.base import (
    AllGatherAlgorithm,
    AllReduceAlgorithm,
    BarrierAlgorithm,
    BroadcastAlgorithm,
    ReduceAlgorithm,
    ReduceScatterAlgorithm,
    Simple,
    Whole,
)
from simdp.collectives.plans import Layout, Order, Round

# Powers -------------------------------------------------------------------------------------------


class Core(NamedTuple):
    """Ranks that exchange."""

    # shape `(p,)`: the rank at each place; p is the largest power of two up to the number of ranks
    ranks: Ints
    # shape `(p + 1,)`: first chunk of each place with one chunk per rank: its own, and the
    # represented rank's
    starts: Ints
    # helpers, aside: shape `(world_size - p,)`: ranks that represent others, and the represented
    # ranks
    helpers: Ints
    aside: Ints


def core_of(world_size: int) -> Core:
    """Return the core of ``world_size`` ranks."""
    num_places = 1 << (world_size.bit_length() - 1)
    num_aside = world_size - num_places
    helpers = 2 * np.arange(num_aside)
    ranks = np.concatenate([helpers, np.arange(2 * num_aside, world_size)])
    return Core(ranks, np.append(ranks, world_size), helpers, helpers + 1)


def upwards(num_places: int) -> list[int]:
    """Return distances of exchanges, from the nearest place to the farthest: 1, 2, ..., p / 2."""
    return [1 << bit for bit in range(num_places.bit_length() - 1)]


def downwards(num_places: int) -> list[int]:
    """Return distances from the farthest place to the nearest: p / 2, ..., 2, 1."""
    return upwards(num_places)[::-1]


def _lows(num_places: int, distances: list[int]) -> list[Ints]:
    """Return the begin of each place's range, before the first halving and after each one."""
    place, size = np.arange(num_places), num_places
    lows = [np.zeros(num_places, dtype=np.int64)]
    for distance in distances:
        size //= 2
        lows.append(lows[-1] + size * (place & distance > 0))
    return lows


def _send(
    ranks: Ints, starts: Ints, src: Ints, dst: Ints, low: Ints, size: int, reduce: bool
) -> Round:
    """Send the chunks of ``size`` places from ``low`` on, from places ``src``."""
    count = starts[low + size] - starts[low]
    return Round(ranks[src], ranks[dst], starts[low], reduce, num_chunks=count)


def halve(ranks: Ints, starts: Ints, distances: list[int]) -> Iterator[Round]:
    """Reduce-scatter: each place keeps half of its range and sends the other to its partner.

    ``ranks``, ``starts`` are as in `Core`; ``distances`` are those of `upwards`, in any order. At
    the end every place has the sum of its own chunks: those in ``starts`` with `downwards`.
    """
    place, lows = np.arange(len(ranks)), _lows(len(ranks), distances)
    for step, distance in enumerate(distances):
        partner, size = place ^ distance, len(ranks) >> (step + 1)
        yield _send(ranks, starts, place, partner, lows[step + 1][partner], size, True)


def double(
    ranks: Ints, starts: Ints, distances: list[int], scattered: bool = False
) -> Iterator[Round]:
    """All-gather, the reverse of `halve`: partners exchange all their chunks.

    After `binomial_scatter` places do not receive chunks that they still have.
    """
    place, lows = np.arange(len(ranks)), _lows(len(ranks), distances)
    for step in range(len(distances) - 1, -1, -1):
        distance, size = distances[step], len(ranks) >> (step + 1)
        src = place[(place ^ distance) % (2 * distance) > 0] if scattered else place
        yield _send(ranks, starts, src, src ^ distance, lows[step + 1][src], size, False)


def binomial_scatter(ranks: Ints, starts: Ints, distances: list[int]) -> Iterator[Round]:
    """Scatter from place 0 along a binomial tree, with the distances `downwards`."""
    lows = _lows(len(ranks), distances)
    for step, distance in enumerate(distances):
        giver = np.arange(0, len(ranks), 2 * distance)
        taker, size = giver + distance, len(ranks) >> (step + 1)
        yield _send(ranks, starts, giver, taker, lows[step + 1][taker], size, False)


def binomial_gather(ranks: Ints, starts: Ints, distances: list[int]) -> Iterator[Round]:
    """Gather at place 0, the reverse of `binomial_scatter`."""
    lows = _lows(len(ranks), distances)
    for step in range(len(distances) - 1, -1, -1):
        giver = np.arange(distances[step], len(ranks), 2 * distances[step])
        taker, size = giver - distances[step], len(ranks) >> (step + 1)
        yield _send(ranks, starts, giver, taker, lows[step + 1][giver], size, False)


# Halving doubling ---------------------------------------------------------------------------------


def _whole(src: Ints, dst: Ints, reduce: bool, num_chunks: int) -> Iterator[Round]:
    """Send the whole buffer, unless ``src`` is empty."""
    if len(src):
        yield Round(src, dst, np.zeros_like(src), reduce, num_chunks=num_chunks)


class HalvingDoublingAllReduce(Simple, AllReduceAlgorithm):
    """Recursive halving with the nearest rank first, then doubling back: 2 log2 n rounds.

    Half of the buffer goes to the nearest rank, a quarter to the next but one, and so on, so that
    long messages stay inside a node.
    """

    order: ClassVar[Order] = "rank"

    kind: Literal["halving_doubling"] = "halving_doubling"

    def num_chunks(self, layout: Layout, nbytes: float) -> int:
        return len(core_of(layout.world_size).ranks)

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        ranks, _, helpers, aside = core_of(layout.world_size)
        pieces, distances = np.arange(num_chunks + 1), upwards(num_chunks)
        yield from _whole(aside, helpers, True, num_chunks)
        yield from halve(ranks, pieces, distances)
        yield from double(ranks, pieces, distances)
        yield from _whole(helpers, aside, False, num_chunks)


class HalvingDoublingReduceScatter(Simple, ReduceScatterAlgorithm):
    """Recursive halving, the farthest rank first: log2 n rounds."""

    order: ClassVar[Order] = "rank"

    kind: Literal["halving_doubling"] = "halving_doubling"

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        ranks, starts, helpers, aside = core_of(layout.world_size)
        yield from _whole(aside, helpers, True, num_chunks)
        yield from halve(ranks, starts, downwards(len(ranks)))
        if len(aside):
            yield Round(helpers, aside, aside, False)


class _RootedDoubling(Simple):
    """Base of broadcast and reduce: one piece per rank of the core."""

    order: ClassVar[Order] = "rank"

    kind: Literal["halving_doubling"] = "halving_doubling"

    def num_chunks(self, layout: Layout, nbytes: float) -> int:
        return len(core_of(layout.world_size).ranks)


class HalvingDoublingBroadcast(_RootedDoubling, BroadcastAlgorithm):
    """Scatter along a binomial tree, then all-gather by doubling: 2 log2 n rounds."""

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        ranks, helpers, aside = _seen_from(root, layout.world_size)
        pieces, distances = np.arange(num_chunks + 1), downwards(num_chunks)
        yield from binomial_scatter(ranks, pieces, distances)
        yield from double(ranks, pieces, distances, scattered=True)
        yield from _whole(helpers, aside, False, num_chunks)


class HalvingDoublingReduce(_RootedDoubling, ReduceAlgorithm):
    """Recursive halving, then gather along a binomial tree: 2 log2 n rounds."""

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        ranks, helpers, aside = _seen_from(root, layout.world_size)
        pieces, distances = np.arange(num_chunks + 1), downwards(num_chunks)
        yield from _whole(aside, helpers, True, num_chunks)
        yield from halve(ranks, pieces, distances)
        yield from binomial_gather(ranks, pieces, distances)


def _seen_from(root: int, world_size: int) -> tuple[Ints, Ints, Ints]:
    """Return the core, the representatives and their partners, with the root at place 0."""
    core = core_of(world_size)
    ranks, helpers, aside = (
        (root + numbers) % world_size for numbers in (core.ranks, core.helpers, core.aside)
    )
    return ranks, helpers, aside


# Recursive doubling -------------------------------------------------------------------------------


class _Exchange(Whole):
    """Base of algorithms that exchange and add the whole buffer at doubling distances."""

    order: ClassVar[Order] = "rank"

    kind: Literal["recursive_doubling"] = "recursive_doubling"

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        # Both sums of an exchange have the same two terms: equal bits.
        ranks, _, helpers, aside = core_of(layout.world_size)
        if len(aside):
            yield Round(aside, helpers, np.zeros_like(aside), True)
        place, whole = np.arange(len(ranks)), np.zeros_like(ranks)
        for distance in upwards(len(ranks)):
            yield Round(ranks, ranks[place ^ distance], whole, True)
        if len(aside):
            yield Round(helpers, aside, np.zeros_like(aside), False)


class RecursiveDoublingAllReduce(_Exchange, AllReduceAlgorithm):
    """Partners at doubling distances exchange and add the whole buffer: log2 n rounds."""


class RecursiveDoublingAllGather(Simple, AllGatherAlgorithm):
    """Partners at doubling distances exchange all their pieces: log2 n rounds.

    The piece of a rank outside the core is sent with its representative's; it receives the whole
    buffer at the end.
    """

    order: ClassVar[Order] = "rank"

    kind: Literal["recursive_doubling"] = "recursive_doubling"

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        ranks, starts, helpers, aside = core_of(layout.world_size)
        if len(aside):
            yield Round(aside, helpers, aside, False)
        yield from double(ranks, starts, downwards(len(ranks)))
        if len(aside):
            yield Round(helpers, aside, np.zeros_like(aside), False, num_chunks=layout.world_size)


class RecursiveDoublingBarrier(_Exchange, BarrierAlgorithm):
    """Partners at doubling distances exchange an empty message: log2 n rounds."""
