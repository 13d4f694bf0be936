"""Tree algorithms: up a binary tree to the root, and down again, pipelined in chunks.

Ranks lie on the tree in heap order, counted from the root: position p has the children 2p + 1 and
2p + 2, and position p is rank ``(root + p) % world_size``. A chunk climbs one level per round, from
the deepest level, and descends one level per round; chunk c follows chunk c - 1 by one round.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from simdp.arrays import Ints
from simdp.collectives.base import AllReduce, Barrier, Broadcast, Reduce, Round, Simple
from simdp.collectives.plans.layout import Layout
from simdp.collectives.ring import pipeline_chunks
from simdp.spec import PositiveBytes


def depth(world_size: int) -> int:
    """Levels below the root, ``floor(log2 world_size)``."""
    return world_size.bit_length() - 1


def _levels(world_size: int) -> list[Ints]:
    """Positions of each level; level 0 is the root."""
    return [
        np.arange(2**level - 1, min(2 ** (level + 1) - 1, world_size))
        for level in range(depth(world_size) + 1)
    ]


def _tree_rounds(
    world_size: int, num_chunks: int, root: int, up: bool, down: bool
) -> Iterator[Round]:
    """Each edge, child to parent and parent to child, carries chunk c in one round of its own."""
    n, levels = world_size, _levels(world_size)
    height = len(levels) - 1
    climb = height if up else 0
    for step in range(num_chunks + climb + (height if down else 0) - 1):
        src, dst, chunk, reduce = [], [], [], []
        for level in range(height, 0, -1) if up else ():
            c = step - (height - level)
            if 0 <= c < num_chunks:
                child = levels[level]
                src.append(child)
                dst.append((child - 1) // 2)
                chunk.append(np.full(len(child), c))
                reduce.append(np.ones(len(child), dtype=bool))
        for level in range(1, height + 1) if down else ():
            c = step - climb - (level - 1)
            if 0 <= c < num_chunks:
                child = levels[level]
                src.append((child - 1) // 2)
                dst.append(child)
                chunk.append(np.full(len(child), c))
                reduce.append(np.zeros(len(child), dtype=bool))
        ranks = [(root + np.concatenate(part)) % n for part in (src, dst)]
        yield Round(ranks[0], ranks[1], np.concatenate(chunk), np.concatenate(reduce))


class TreeAllReduce(Simple, AllReduce):
    """Reduce up to rank 0 and broadcast down, pipelined.

    Attributes
    ----------
    chunk_size : float
        Bytes per chunk; 512 KiB is the step of NCCL's Simple protocol (4 MiB of buffer in 8 steps).
    """

    kind: Literal["tree"] = "tree"
    chunk_size: PositiveBytes = 512 * 2.0**10

    def num_chunks(self, layout: Layout, nbytes: float) -> int:
        return pipeline_chunks(nbytes, self.chunk_size)

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        return _tree_rounds(layout.world_size, num_chunks, root, up=True, down=True)


class TreeBroadcast(Simple, Broadcast):
    """Down the tree from the root, pipelined.

    Attributes
    ----------
    chunk_size : float
        As in `TreeAllReduce` [bytes].
    """

    kind: Literal["tree"] = "tree"
    chunk_size: PositiveBytes = 512 * 2.0**10

    def num_chunks(self, layout: Layout, nbytes: float) -> int:
        return pipeline_chunks(nbytes, self.chunk_size)

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        return _tree_rounds(layout.world_size, num_chunks, root, up=False, down=True)


class TreeReduce(Simple, Reduce):
    """Up the tree to the root, pipelined.

    Attributes
    ----------
    chunk_size : float
        As in `TreeAllReduce` [bytes].
    """

    kind: Literal["tree"] = "tree"
    chunk_size: PositiveBytes = 512 * 2.0**10

    def num_chunks(self, layout: Layout, nbytes: float) -> int:
        return pipeline_chunks(nbytes, self.chunk_size)

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        return _tree_rounds(layout.world_size, num_chunks, root, up=True, down=False)


class TreeBarrier(Simple, Barrier):
    """An empty message up the tree and down again."""

    kind: Literal["tree"] = "tree"

    def num_chunks(self, layout: Layout, nbytes: float) -> int:
        return 1

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        return _tree_rounds(layout.world_size, num_chunks, root, up=True, down=True)
