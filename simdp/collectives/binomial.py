"""Binomial trees: in every round twice as many ranks have the buffer as in the one before.

The whole buffer in each of ceil(log2 n) rounds: MPI's way for short messages.

References
----------
Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
IJHPCA 19(1), 2005.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import numpy as np

from simdp.arrays import Ints
from simdp.collectives.base import Broadcast, Order, Reduce, Round, Simple
from simdp.collectives.plans.layout import Layout


def _edges(world_size: int, root: int) -> list[tuple[Ints, Ints]]:
    """Parents and children of each round of a broadcast, the farthest first."""
    rounds = []
    for bit in reversed(range((world_size - 1).bit_length())):
        child = np.arange(1 << bit, world_size, 2 << bit)
        rounds.append(((root + child - (1 << bit)) % world_size, (root + child) % world_size))
    return rounds


class BinomialBroadcast(Simple, Broadcast):
    """Every rank that has the buffer sends it to one that has not: ceil(log2 n) rounds."""

    order: ClassVar[Order] = "rank"

    kind: Literal["binomial"] = "binomial"

    def num_chunks(self, layout: Layout, nbytes: float) -> int:
        return 1

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        for parent, child in _edges(layout.world_size, root):
            yield Round(parent, child, np.zeros_like(child), False)


class BinomialReduce(Simple, Reduce):
    """The way of the broadcast back: every second rank hands its sum on: ceil(log2 n) rounds."""

    order: ClassVar[Order] = "rank"

    kind: Literal["binomial"] = "binomial"

    def num_chunks(self, layout: Layout, nbytes: float) -> int:
        return 1

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        for parent, child in reversed(_edges(layout.world_size, root)):
            yield Round(child, parent, np.zeros_like(child), True)
