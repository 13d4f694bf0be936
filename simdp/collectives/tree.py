"""Tree algorithms: binary, binomial, double binary.

Rounds alone; the time of NCCL's own tree is that of `simdp.collectives.costs.nccl`.

Binary: ranks are in heap order, counted from the root: position p has the children 2p + 1 and 2p +
2, and position p is rank ``(root + p) % world_size``. A chunk climbs one level per round, from the
deepest level, and descends one level per round; chunk c follows chunk c - 1 by one round.

Binomial: the whole buffer in each of ceil(log2 n) rounds, for short messages.

Double binary: an inner node of a binary tree sends and receives more than a leaf. Half of the ranks
are inner nodes of the first tree and leaves of the second one, and vice versa, so that all ports
carry the same. Places on a tree are numbered in order, so that odd places are leaves; the second
tree is the first one mirrored (even numbers of places) or shifted by one place (odd numbers), as in
NCCL. An all_reduce has a separate root in each tree, as in NCCL; with an odd number of places the
first tree's root, which has one child there, is an inner node of the second one too. A broadcast
and a reduce have their root above both trees, as in the paper.

On several nodes the trees join the nodes, and inside a node is a chain: in the first tree from
local rank 0 upwards, in the second one from the last local rank downwards (of a broadcast or
reduce: from the root's local rank, upwards and downwards).

References
----------
Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
IJHPCA 19(1), 2005; Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast,
reduction and scan", Parallel Computing 35(12), 2009; S. Jeaugey, "Massively scale your deep
learning training with NCCL 2.4", NVIDIA developer blog, 2019.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from functools import partial
from typing import ClassVar, Literal

import numpy as np

from simdp.arrays import Ints
from simdp.collectives.base import (
    AllReduceAlgorithm,
    BarrierAlgorithm,
    BroadcastAlgorithm,
    Composed,
    Pipelined,
    ReduceAlgorithm,
    Whole,
    pipeline_chunks,
)
from simdp.collectives.plans import Assembly, Layout, Order, Plan, Round, even_offsets
from simdp.spec import PositiveBytes

# Tree ---------------------------------------------------------------------------------------------


def depth(world_size: int) -> int:
    """Return the levels below the root, ``floor(log2 world_size)``."""
    return world_size.bit_length() - 1


def _levels(world_size: int, root: int) -> list[tuple[Ints, Ints]]:
    """Return the edges of each level below the root, as parents and children."""
    levels = []
    for level in range(1, depth(world_size) + 1):
        child = np.arange(2**level - 1, min(2 ** (level + 1) - 1, world_size))
        levels.append(((root + (child - 1) // 2) % world_size, (root + child) % world_size))
    return levels


def level_rounds(
    levels: list[tuple[Ints, Ints]], num_chunks: int, up: bool, down: bool
) -> Iterator[Round]:
    """Send chunks up and down the edges of a tree, one level per round and chunk.

    ``levels`` are parents and children, the root's edges first; up, parents add.
    """
    climb = len(levels) if up else 0
    stages = [(child, parent) for parent, child in reversed(levels)] if up else []
    stages += levels if down else []
    for step in range(num_chunks + len(stages) - 1):
        first, last = max(0, step - num_chunks + 1), min(len(stages) - 1, step)
        moving = [(*stages[s], s, step - s) for s in range(first, last + 1)]
        yield Round(
            np.concatenate([src for src, _, _, _ in moving]),
            np.concatenate([dst for _, dst, _, _ in moving]),
            np.concatenate([np.full(len(src), chunk) for src, _, _, chunk in moving]),
            np.concatenate([np.full(len(src), s < climb) for src, _, s, _ in moving]),
        )


class TreeAllReduce(Pipelined, AllReduceAlgorithm):
    """Reduce up to rank 0 and broadcast down, pipelined."""

    kind: Literal["tree"] = "tree"

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        return level_rounds(_levels(layout.world_size, root), num_chunks, up=True, down=True)


class TreeBroadcast(Pipelined, BroadcastAlgorithm):
    """Down the tree from the root, pipelined."""

    kind: Literal["tree"] = "tree"

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        return level_rounds(_levels(layout.world_size, root), num_chunks, up=False, down=True)


class TreeReduce(Pipelined, ReduceAlgorithm):
    """Up the tree to the root, pipelined."""

    kind: Literal["tree"] = "tree"

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        return level_rounds(_levels(layout.world_size, root), num_chunks, up=True, down=False)


class TreeBarrier(Whole, BarrierAlgorithm):
    """An empty message up the tree and down again."""

    kind: Literal["tree"] = "tree"

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        return level_rounds(_levels(layout.world_size, root), num_chunks, up=True, down=True)


# Binomial -----------------------------------------------------------------------------------------


def _edges(world_size: int, root: int) -> list[tuple[Ints, Ints]]:
    """Return parents and children of each round of a broadcast, the farthest first."""
    rounds = []
    for bit in reversed(range((world_size - 1).bit_length())):
        child = np.arange(1 << bit, world_size, 2 << bit)
        rounds.append(((root + child - (1 << bit)) % world_size, (root + child) % world_size))
    return rounds


class BinomialBroadcast(Whole, BroadcastAlgorithm):
    """Every rank with the buffer sends it to one without: ceil(log2 n) rounds."""

    order: ClassVar[Order] = "rank"

    kind: Literal["binomial"] = "binomial"

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        for parent, child in _edges(layout.world_size, root):
            yield Round(parent, child, np.zeros_like(child), False)


class BinomialReduce(Whole, ReduceAlgorithm):
    """The reverse of the broadcast: every second rank sends its sum: ceil(log2 n) rounds."""

    order: ClassVar[Order] = "rank"

    kind: Literal["binomial"] = "binomial"

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        for parent, child in reversed(_edges(layout.world_size, root)):
            yield Round(child, parent, np.zeros_like(child), True)


# Double binary tree -------------------------------------------------------------------------------


def parents_in_order(num_places: int) -> Ints:
    """Return the parents of places 1, 2, ... on a binary tree numbered in order.

    A place's lowest set bit gives its height; its parent is the nearest place one level higher, or
    the nearest existing one below it. Place 0 is the root.
    """
    place = np.arange(1, num_places)
    lowest = place & -place
    below = place - lowest
    above = below | (lowest << 1)
    return np.where(above < num_places, above, below)


def complement(num_places: int) -> Ints:
    """Return the mapping of places to the second tree."""
    places = np.arange(num_places)
    return places[::-1] if num_places % 2 == 0 else np.roll(places, -1)


def _by_depth(num_nodes: int, per_node: int) -> tuple[Ints, Ints, Ints]:
    """Return the edges of a tree of chains as (child, parent, begins).

    Place ``v * per_node + i`` is the i-th of chain v. Edges are sorted by the child's depth; those
    of depth d begin at ``begins[d]``.
    """
    places = np.arange(num_nodes * per_node).reshape(num_nodes, per_node)
    parents = places - 1
    parents[0, 0] = 0
    parents[1:, 0] = parents_in_order(num_nodes) * per_node
    parent, at = parents.reshape(-1), places.reshape(-1)
    depth = np.zeros_like(at)
    while at.any():
        depth += at > 0
        at = parent[at]
    child = np.argsort(depth, kind="stable")[1:]
    begins = np.searchsorted(depth[child], np.arange(int(depth.max()) + 2))
    return child, parent[child], begins


def tree_rounds(
    num_nodes: int, per_node: int, num_chunks: int, up: bool, down: bool
) -> Iterator[Round]:
    """Yield rounds in which chunk c climbs and then descends, a round behind c - 1."""
    child, parent, begins = _by_depth(num_nodes, per_node)
    height = len(begins) - 2
    depth = np.repeat(np.arange(height + 1), np.diff(begins))
    climb = height if up else 0
    for step in range(num_chunks + climb + (height if down else 0) - 1):
        sides = []
        if up:  # the child at depth d sends chunk step - (height - d)
            first, last = max(1, height - step), min(height, height - step + num_chunks - 1)
            edge = slice(begins[first], begins[max(last, first - 1) + 1])
            chunk = step - height + depth[edge]
            sides.append((child[edge], parent[edge], chunk, np.ones(len(chunk), dtype=bool)))
        if down:  # the child at depth d gets chunk step - climb - (d - 1)
            late = step - climb
            first, last = max(1, late - num_chunks + 2), min(height, late + 1)
            edge = slice(begins[first], begins[max(last, first - 1) + 1])
            chunk = late + 1 - depth[edge]
            sides.append((parent[edge], child[edge], chunk, np.zeros(len(chunk), dtype=bool)))
        src, dst, chunks, reduce = (np.concatenate(column) for column in zip(*sides, strict=True))
        yield Round(src, dst, chunks, reduce)


def _on_nodes(layout: Layout) -> tuple[int, int]:
    """Return places on the trees and ranks on the chain at each; one node has chains of one."""
    if layout.num_nodes == 1:
        return layout.world_size, 1
    return layout.num_nodes, layout.per_node


def _for_everyone(layout: Layout) -> list[Ints]:
    """Return the rank at each place of both trees, each with a separate root."""
    nodes, m = _on_nodes(layout)
    local = np.arange(m)
    first = np.arange(nodes)[:, None] * m + local
    second = complement(nodes)[:, None] * m + local[::-1]
    return [first.reshape(-1), second.reshape(-1)]


def _below(layout: Layout, root: int) -> list[Ints]:
    """Return the rank at each place of both trees with the same root; of one tree for two ranks."""
    nodes, m = _on_nodes(layout)
    top, head = divmod(root, m)
    local = np.arange(m)
    others = np.append(0, 1 + complement(nodes - 1))
    first = (top + np.arange(nodes))[:, None] % nodes * m + (head + local) % m
    second = (top + others)[:, None] % nodes * m + (head - local) % m
    return [first.reshape(-1), second.reshape(-1)][: layout.world_size - 1]


class _DoubleBinaryTree(Composed):
    """Base of the double binary trees."""

    kind: Literal["double_binary_tree"] = "double_binary_tree"
    chunk_size: PositiveBytes = 512 * 2.0**10
    """Bytes per chunk; 512 KiB is the step of NCCL's Simple protocol (4 MiB of buffer in 8
    steps)."""

    def cuts(self, layout: Layout, nbytes: float) -> tuple[Hashable, ...]:
        return (pipeline_chunks(nbytes / 2, self.chunk_size),)

    def assemble(
        self, layout: Layout, cuts: tuple[Hashable, ...], root: int, parts: Assembly
    ) -> int:
        (num_chunks,) = cuts
        assert isinstance(num_chunks, int)
        up, down = self.collective != "broadcast", self.collective != "reduce"
        trees = _for_everyone(layout) if up and down else _below(layout, root)
        tree = Plan(
            self.collective,
            layout.world_size,
            num_chunks,
            0,
            partial(tree_rounds, *_on_nodes(layout), num_chunks, up, down),
            even_offsets(num_chunks),
        )
        for number, ranks in enumerate(trees):
            parts.add(tree, ranks[None, :], np.array([number * num_chunks]))
        return num_chunks * len(trees)


class DoubleBinaryTreeAllReduce(_DoubleBinaryTree, AllReduceAlgorithm):
    """Up and down two pipelined binary trees, each with half of the buffer."""


class DoubleBinaryTreeBroadcast(_DoubleBinaryTree, BroadcastAlgorithm):
    """Down two pipelined binary trees, each with half of the buffer."""


class DoubleBinaryTreeReduce(_DoubleBinaryTree, ReduceAlgorithm):
    """Up two pipelined binary trees, each with half of the buffer."""
