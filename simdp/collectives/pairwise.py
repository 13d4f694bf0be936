"""Pairwise exchange: in each of n - 1 rounds every rank talks to one other rank.

References
----------
Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
IJHPCA 19(1), 2005.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import numpy as np

from simdp.collectives.base import AllToAll, Order, Round, Simple
from simdp.collectives.plans.layout import Layout


class PairwiseAllToAll(Simple, AllToAll):
    """Every rank sends one piece in each of n - 1 rounds.

    In round i the ranks ``r`` and ``r xor i`` exchange pieces where n is a power of two; else rank
    ``r`` sends to ``r + i`` and receives from ``r - i``.
    """

    order: ClassVar[Order] = "rank"

    kind: Literal["pairwise"] = "pairwise"

    def num_chunks(self, layout: Layout, nbytes: float) -> int:
        return layout.world_size

    def num_scratch(self, layout: Layout, num_chunks: int) -> int:
        return num_chunks

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        n, src = layout.world_size, np.arange(layout.world_size)
        in_pairs = n.bit_count() == 1
        for step in range(1, n):
            dst = src ^ step if in_pairs else (src + step) % n
            yield Round(src, dst, dst, False, to=num_chunks + src)
