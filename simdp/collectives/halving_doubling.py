"""Halving and doubling: reduce-scatter by recursive halving, all-gather by recursive doubling.

The bytes of a ring in about log2 n rounds where n, the number of ranks, is a power of two. For
other n (`simdp.collectives.powers`) some ranks stand aside and send or get the whole buffer, which
costs two more rounds. The all_gather alone is `recursive_doubling`.

References
----------
Rabenseifner, "Optimization of collective reduction operations", ICCS 2004; van de Geijn, "On global
combine operations", JPDC 22(2), 1994; Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import numpy as np

from simdp.arrays import Ints
from simdp.collectives.base import AllReduce, Broadcast, Order, Reduce, ReduceScatter, Round, Simple
from simdp.collectives.plans.layout import Layout
from simdp.collectives.powers import (
    collect,
    core_of,
    double,
    downwards,
    halve,
    hand_out,
    upwards,
)


def _whole(src: Ints, dst: Ints, reduce: bool, num_chunks: int) -> Iterator[Round]:
    """Send the whole buffer, where there is anyone to send it."""
    if len(src):
        yield Round(src, dst, np.zeros_like(src), reduce, num_chunks=num_chunks)


class HalvingDoublingAllReduce(Simple, AllReduce):
    """Recursive halving with the nearest rank first, then doubling back: 2 log2 n rounds.

    Half of the buffer goes to the nearest rank, a quarter to the next but one, and so on, so that
    the long messages stay inside a node.
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


class HalvingDoublingReduceScatter(Simple, ReduceScatter):
    """Recursive halving, the farthest rank first: log2 n rounds."""

    order: ClassVar[Order] = "rank"

    kind: Literal["halving_doubling"] = "halving_doubling"

    def num_chunks(self, layout: Layout, nbytes: float) -> int:
        return layout.world_size

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        ranks, starts, helpers, aside = core_of(layout.world_size)
        yield from _whole(aside, helpers, True, num_chunks)
        yield from halve(ranks, starts, downwards(len(ranks)))
        if len(aside):
            yield Round(helpers, aside, aside, False)


class _Rooted(Simple):
    """What broadcast and reduce have in common: a piece for every rank of the core."""

    order: ClassVar[Order] = "rank"

    kind: Literal["halving_doubling"] = "halving_doubling"

    def num_chunks(self, layout: Layout, nbytes: float) -> int:
        return len(core_of(layout.world_size).ranks)


class HalvingDoublingBroadcast(_Rooted, Broadcast):
    """Scatter along a binomial tree, then all-gather by doubling: 2 log2 n rounds."""

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        ranks, helpers, aside = _seen_from(root, layout.world_size)
        pieces, distances = np.arange(num_chunks + 1), downwards(num_chunks)
        yield from hand_out(ranks, pieces, distances)
        yield from double(ranks, pieces, distances, handed_out=True)
        yield from _whole(helpers, aside, False, num_chunks)


class HalvingDoublingReduce(_Rooted, Reduce):
    """Recursive halving, then gather along a binomial tree: 2 log2 n rounds."""

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        ranks, helpers, aside = _seen_from(root, layout.world_size)
        pieces, distances = np.arange(num_chunks + 1), downwards(num_chunks)
        yield from _whole(aside, helpers, True, num_chunks)
        yield from halve(ranks, pieces, distances)
        yield from collect(ranks, pieces, distances)


def _seen_from(root: int, world_size: int) -> tuple[Ints, Ints, Ints]:
    """The core, those who speak for others, and these others, with the root at place 0."""
    core = core_of(world_size)
    ranks, helpers, aside = (
        (root + numbers) % world_size for numbers in (core.ranks, core.helpers, core.aside)
    )
    return ranks, helpers, aside
