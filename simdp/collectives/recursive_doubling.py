"""Recursive doubling: in round k partners at distance 2^k give each other all that they have.

Fewest rounds, log2 n where n is a power of two; the whole buffer in every round of an all_reduce,
so for short messages. For other n see `simdp.collectives.powers`: two rounds more.

References
----------
Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
IJHPCA 19(1), 2005.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import numpy as np

from simdp.collectives.base import AllGather, AllReduce, Barrier, Order, Round, Simple
from simdp.collectives.plans.layout import Layout
from simdp.collectives.powers import core_of, double, downwards, upwards


def _everything(world_size: int) -> Iterator[Round]:
    """Partners add each other's only chunk; both sums are of the same two terms: equal bits."""
    ranks, _, helpers, aside = core_of(world_size)
    if len(aside):
        yield Round(aside, helpers, np.zeros_like(aside), True)
    place, whole = np.arange(len(ranks)), np.zeros_like(ranks)
    for distance in upwards(len(ranks)):
        yield Round(ranks, ranks[place ^ distance], whole, True)
    if len(aside):
        yield Round(helpers, aside, np.zeros_like(aside), False)


class RecursiveDoublingAllReduce(Simple, AllReduce):
    """Partners at doubling distances exchange and add the whole buffer: log2 n rounds."""

    order: ClassVar[Order] = "rank"

    kind: Literal["recursive_doubling"] = "recursive_doubling"

    def num_chunks(self, layout: Layout, nbytes: float) -> int:
        return 1

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        return _everything(layout.world_size)


class RecursiveDoublingAllGather(Simple, AllGather):
    """Partners at doubling distances exchange all pieces that they have: log2 n rounds.

    The pieces of a rank that stands aside travel with its helper's, and it gets the whole buffer
    at the end.
    """

    order: ClassVar[Order] = "rank"

    kind: Literal["recursive_doubling"] = "recursive_doubling"

    def num_chunks(self, layout: Layout, nbytes: float) -> int:
        return layout.world_size

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        ranks, starts, helpers, aside = core_of(layout.world_size)
        if len(aside):
            yield Round(aside, helpers, aside, False)
        yield from double(ranks, starts, downwards(len(ranks)))
        if len(aside):
            yield Round(helpers, aside, np.zeros_like(aside), False, num_chunks=layout.world_size)


class RecursiveDoublingBarrier(Simple, Barrier):
    """Partners at doubling distances exchange an empty message: log2 n rounds."""

    order: ClassVar[Order] = "rank"

    kind: Literal["recursive_doubling"] = "recursive_doubling"

    def num_chunks(self, layout: Layout, nbytes: float) -> int:
        return 1

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        return _everything(layout.world_size)
