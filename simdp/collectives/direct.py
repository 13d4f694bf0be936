"""Direct algorithms: in one round everyone sends everyone its piece.

One latency, and n (n - 1) transfers at the same time: for links between all pairs, or small
messages. Where ranks have one port, the transfers share it. `naive` has broadcast and reduce.

References
----------
Chan, Heimlich, Purkayastha and van de Geijn, "Collective communication: theory, practice, and
experience", Concurrency and Computation 19(13), 2007.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import numpy as np

from simdp.arrays import Ints
from simdp.collectives.base import (
    AllGather,
    AllReduce,
    AllToAll,
    Order,
    ReduceScatter,
    Round,
    Simple,
)
from simdp.collectives.plans.layout import Layout

MAX_RANKS = 2048
"""Beyond these, the transfers between all pairs would take gigabytes."""


class _Direct(Simple):
    """What the families have in common."""

    order: ClassVar[Order] = "rank"

    kind: Literal["direct"] = "direct"

    def problem_with(self, layout: Layout) -> str | None:
        n = layout.world_size
        if n <= MAX_RANKS:
            return None
        return f"has {n * (n - 1):,} transfers on {n:,} ranks, and serves {MAX_RANKS:,} at most"


def _pairs(world_size: int) -> tuple[Ints, Ints]:
    """Every rank and every other one: ``(src, dst)`` by destination, then source."""
    dst, src = np.nonzero(~np.eye(world_size, dtype=bool))
    return src, dst


def _scatter(world_size: int) -> Round:
    src, dst = _pairs(world_size)
    return Round(src, dst, dst, True)


def _gather(world_size: int) -> Round:
    src, dst = _pairs(world_size)
    return Round(src, dst, src, False)


class DirectAllReduce(_Direct, AllReduce):
    """Everyone gets its piece from everyone, and sends the sum to everyone: 2 rounds."""

    def num_chunks(self, layout: Layout, nbytes: float) -> int:
        return layout.world_size

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        yield _scatter(layout.world_size)
        yield _gather(layout.world_size)


class DirectReduceScatter(_Direct, ReduceScatter):
    """Everyone gets its piece from everyone and adds them in the order of the ranks: 1 round."""

    def num_chunks(self, layout: Layout, nbytes: float) -> int:
        return layout.world_size

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        yield _scatter(layout.world_size)


class DirectAllGather(_Direct, AllGather):
    """Everyone sends its piece to everyone: 1 round."""

    def num_chunks(self, layout: Layout, nbytes: float) -> int:
        return layout.world_size

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        yield _gather(layout.world_size)


class DirectAllToAll(_Direct, AllToAll):
    """Everyone sends everyone its piece: 1 round."""

    def num_chunks(self, layout: Layout, nbytes: float) -> int:
        return layout.world_size

    def num_scratch(self, layout: Layout, num_chunks: int) -> int:
        return num_chunks

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        src, dst = _pairs(layout.world_size)
        yield Round(src, dst, dst, False, to=num_chunks + src)
