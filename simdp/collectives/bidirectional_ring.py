"""Bidirectional rings: both ways round at once, each with half of the buffer.

Uses both directions of full-duplex links, which one ring leaves half idle. Two ranks have only one
way to each other, so that one ring takes everything.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Literal

import numpy as np

from simdp.arrays import Ints
from simdp.collectives.base import (
    AllGather,
    AllReduce,
    Assembly,
    Broadcast,
    Composed,
    ReduceScatter,
)
from simdp.collectives.multi_ring import add_rings
from simdp.collectives.plans.layout import Layout
from simdp.collectives.ring import RingBroadcast, pipeline_chunks
from simdp.spec import PositiveBytes


def _ways(world_size: int) -> list[Ints]:
    """The ranks upwards and downwards, from rank 0."""
    up = np.arange(world_size)
    return [up, -up % world_size][: world_size - 1]


class _BidirectionalRing(Composed):
    """What the families in which every rank has a piece have in common."""

    kind: Literal["bidirectional_ring"] = "bidirectional_ring"

    def cuts(self, layout: Layout, nbytes: float) -> tuple[Hashable, ...]:
        return ()

    def assemble(
        self, layout: Layout, cuts: tuple[Hashable, ...], root: int, parts: Assembly
    ) -> int:
        return add_rings(self.collective, _ways(layout.world_size), parts)


class BidirectionalRingAllReduce(_BidirectionalRing, AllReduce):
    """Two rings, one each way: 2 (n - 1) rounds of 1/(2n) of the buffer."""


class BidirectionalRingReduceScatter(_BidirectionalRing, ReduceScatter):
    """Two rings, one each way: n - 1 rounds of 1/(2n) of the buffer."""


class BidirectionalRingAllGather(_BidirectionalRing, AllGather):
    """Two rings, one each way: n - 1 rounds of 1/(2n) of the buffer."""


class BidirectionalRingBroadcast(Composed, Broadcast):
    """Two pipelined chains from the root, one each way, each with half of the buffer.

    Attributes
    ----------
    chunk_size : float
        Bytes per chunk; 512 KiB is the step of NCCL's Simple protocol (4 MiB of buffer in 8 steps).
    """

    kind: Literal["bidirectional_ring"] = "bidirectional_ring"
    chunk_size: PositiveBytes = 512 * 2.0**10

    def cuts(self, layout: Layout, nbytes: float) -> tuple[Hashable, ...]:
        share = nbytes / len(_ways(layout.world_size))
        return (pipeline_chunks(share, self.chunk_size),)

    def assemble(
        self, layout: Layout, cuts: tuple[Hashable, ...], root: int, parts: Assembly
    ) -> int:
        n, (num_chunks,) = layout.world_size, cuts
        assert isinstance(num_chunks, int)
        chain, ways = RingBroadcast().build(layout, num_chunks, 0), _ways(n)
        for number, way in enumerate(ways):
            parts.add(chain, (root + way)[None, :] % n, np.array([number * num_chunks]))
        return num_chunks * len(ways)
