"""What torch does with gloo in place of a reduce and of a reduce_scatter, to the same bits.

Both begin as gloo's ring all_reduce does (`ring` with ``chunking: gloo``). gloo has no
reduce_scatter; torch takes a piece of an all_reduce.

References
----------
gloo/reduce.cc; torch/csrc/distributed/c10d/ProcessGroupGloo.cpp, reduce_scatter_tensor_coalesced.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Literal

import numpy as np

from simdp.collectives.base import (
    Assembly,
    Composed,
    Offsets,
    Plan,
    Reduce,
    ReduceScatter,
    even_offsets,
)
from simdp.collectives.naive import NaiveGather
from simdp.collectives.plans.layout import Layout
from simdp.collectives.ring import RingAllReduce, gloo_offsets, gloo_rounds


class GlooReduce(Composed, Reduce):
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


class GlooReduceScatter(ReduceScatter):
    """An all_reduce around the ring, 2 (n - 1) rounds, of which every rank keeps its piece."""

    kind: Literal["gloo"] = "gloo"

    def cut(self, layout: Layout, nbytes: float) -> Hashable:
        return layout.world_size

    def build(self, layout: Layout, cut: Hashable, root: int) -> Plan:
        return RingAllReduce(chunking="gloo", slices=self.slices).build(layout, cut, root)
