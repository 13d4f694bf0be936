"""Layout: where ranks live, as far as an algorithm cares; a cluster without clock and links."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from simdp.arrays import Ints


@dataclass(frozen=True)
class Layout:
    """Ranks in nodes of equal size, and the switches that can add.

    Rank r is the local rank ``r % local_size`` of node ``r // local_size``.

    Attributes
    ----------
    world_size : int
        Number of ranks, n.
    local_size : int
        Ranks per node; divides ``world_size``. 0 stands for one node.
    inside : tuple of int
        Who hands its sum to whom inside a node: the parent of each local rank and then of each of
        the node's switches, which are numbered from ``local_size`` on; -1 for the last one. Empty
        where no switch inside a node can add.
    across : tuple of int
        The same between nodes: the parent of every rank and then of each switch, which are
        numbered from ``world_size`` on. Empty where no switch between nodes can add.
    """

    world_size: int
    local_size: int = 0
    inside: tuple[int, ...] = ()
    across: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.world_size < 1:
            raise ValueError(f"world_size must be >= 1, got {self.world_size}")
        if self.local_size < 0 or self.world_size % (self.local_size or self.world_size):
            raise ValueError(
                f"local_size must divide world_size {self.world_size}, got {self.local_size}"
            )

    @property
    def per_node(self) -> int:
        """Ranks per node."""
        return self.local_size or self.world_size

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.world_size // self.per_node

    @property
    def num_inside(self) -> int:
        """Switches of one node that can add."""
        return max(len(self.inside) - self.per_node, 0)

    @property
    def num_across(self) -> int:
        """Switches between nodes that can add."""
        return max(len(self.across) - self.world_size, 0)

    @property
    def num_switches(self) -> int:
        """Switches that can add: those of node 0, 1, ..., and then those between nodes.

        Their vertices are numbered from ``world_size`` on.
        """
        return self.num_nodes * self.num_inside + self.num_across

    @cached_property
    def node(self) -> Layout:
        """One node by itself."""
        return Layout(self.per_node, self.per_node, self.inside)

    def vertices_of_nodes(self) -> Ints:
        """Ranks and then switches of each node, shape `(num_nodes, per_node + num_inside)`."""
        nodes = np.arange(self.num_nodes)[:, None]
        ranks = nodes * self.per_node + np.arange(self.per_node)
        switches = self.world_size + nodes * self.num_inside + np.arange(self.num_inside)
        return np.concatenate([ranks, switches], axis=1)

    def rails(self) -> tuple[Ints, Layout]:
        """Ranks with the same place in their nodes, which talk to each other across nodes.

        Returns
        -------
        (ndarray, Layout)
            Ranks and then the switches between nodes that add for them, shape
            `(per_node, num_nodes + switches of a rail)`; and the layout that every rail sees, with
            one rank to a node.

        Raises
        ------
        ValueError
            If switches add for some rails in another order than for others.
        """
        nodes, m = self.num_nodes, self.per_node
        ranks = np.arange(self.world_size).reshape(nodes, m).T
        if not self.across:
            return ranks, Layout(nodes, 1)
        trees = [self._rail_tree(rail) for rail in ranks.tolist()]
        if len({parents for _, parents in trees}) > 1:
            raise ValueError("the switches between nodes form another tree for every rail")
        first = nodes * self.num_inside  # the switches between nodes follow those inside
        switches = np.array([found for found, _ in trees], dtype=np.int64).reshape(m, -1)
        return np.concatenate([ranks, switches + first], axis=1), Layout(nodes, 1, (), trees[0][1])

    def _rail_tree(self, rail: list[int]) -> tuple[list[int], tuple[int, ...]]:
        """The switches above some ranks, in the order in which they are met, and the tree."""
        found: dict[int, int] = {}
        parents = [0] * len(rail)
        for number, rank in enumerate(rail):
            child, vertex = number, self.across[rank]
            while vertex >= 0:
                met = vertex in found
                parents[child] = found.setdefault(vertex, len(parents))
                if met:
                    break
                parents.append(-1)
                child, vertex = found[vertex], self.across[vertex]
        return list(found), tuple(parents)


def layout_of(layout: Layout | int) -> Layout:
    """Take a number of ranks for a layout of one node."""
    return layout if isinstance(layout, Layout) else Layout(layout)
