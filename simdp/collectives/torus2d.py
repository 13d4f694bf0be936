"""2-D torus: along the rows of a grid of ranks, then along its columns.

Rank r stands in row ``r // columns`` and column ``r % columns``. The grid is one of ranks, whatever
nodes they live in: rows take the place of nodes, and columns that of rails.

References
----------
Ying et al., "Image classification at supercomputer scale", 2018 (arXiv 1811.06992): the 2-D
gradient summation of TPU pods.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable
from math import isqrt
from typing import Literal

import numpy as np
from pydantic import field_validator

from simdp.collectives.base import AllGather, AllReduce, Assembly, Composed, ReduceScatter
from simdp.collectives.hierarchical import (
    HierarchicalAllGather,
    HierarchicalAllReduce,
    HierarchicalReduceScatter,
)
from simdp.collectives.plans.layout import Layout
from simdp.spec import Bool, Int, problem


def most_square(world_size: int) -> tuple[int, int]:
    """Rows and columns whose numbers differ least; there are at least as many columns.

    Raises
    ------
    ValueError
        If ``world_size < 1``.
    """
    if world_size < 1:
        raise ValueError(f"world_size must be >= 1, got {world_size}")
    rows = next(rows for rows in range(isqrt(world_size), 0, -1) if world_size % rows == 0)
    return rows, world_size // rows


class Torus2d(Composed):
    """Base of the members: how ranks stand in the grid, and what works on it.

    Attributes
    ----------
    dims : tuple of int or None
        Rows and columns; left out, the most square grid.
    """

    dims: tuple[Int, ...] | None = None

    @field_validator("dims")
    @classmethod
    def _is_a_grid(cls, value: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if value is not None and (len(value) != 2 or min(value) < 1):
            raise problem(f"{list(value)} is not a grid; write [rows, columns], both >= 1.")
        return value

    @abstractmethod
    def levels(self) -> Composed:
        """The hierarchical algorithm that works on the rows and columns."""

    def shape(self, world_size: int) -> tuple[int, ...]:
        """Rows and columns."""
        return self.dims or most_square(world_size)

    def problem_with(self, layout: Layout) -> str | None:
        rows, columns = self.shape(layout.world_size)
        if rows * columns == layout.world_size:
            return None
        return (
            f"needs dims whose product is the world_size {layout.world_size}, "
            f"got {rows} x {columns}; leave dims out for the most square grid"
        )

    def cuts(self, layout: Layout, nbytes: float) -> tuple[Hashable, ...]:
        return self.levels().cuts(self._rows(layout), nbytes)

    def assemble(
        self, layout: Layout, cuts: tuple[Hashable, ...], root: int, parts: Assembly
    ) -> int:
        return self.levels().assemble(self._rows(layout), cuts, root, parts)

    def _rows(self, layout: Layout) -> Layout:
        """The ranks with rows in place of nodes."""
        return Layout(layout.world_size, self.shape(layout.world_size)[1])


class Torus2dAllReduce(Torus2d, AllReduce):
    """Reduce_scatter along the rows, all_reduce along the columns, all_gather along the rows.

    Attributes
    ----------
    both_ways : bool
        Whether one half of the buffer goes along the columns first, at the same time, so that the
        links of both directions are busy in every stage.
    """

    kind: Literal["torus2d"] = "torus2d"
    both_ways: Bool = False

    def levels(self) -> Composed:
        return HierarchicalAllReduce()

    def cuts(self, layout: Layout, nbytes: float) -> tuple[Hashable, ...]:
        return super().cuts(layout, nbytes / 2 if self.both_ways else nbytes)

    def assemble(
        self, layout: Layout, cuts: tuple[Hashable, ...], root: int, parts: Assembly
    ) -> int:
        if not self.both_ways:
            return super().assemble(layout, cuts, root, parts)
        # All stages are rings, which cut their share once per rank: the cuts of both halves agree.
        num_ranks, (rows, columns) = layout.world_size, self.shape(layout.world_size)
        upright = np.arange(num_ranks)
        turned = upright.reshape(rows, columns).T.reshape(-1)
        for half, (order, length) in enumerate(((upright, columns), (turned, rows))):
            grid = Layout(num_ranks, length)
            plan = self.levels().plan(grid, 0.0)
            width = num_ranks // plan.num_chunks
            first = np.array([half * num_ranks])
            parts.add(plan, order[None, :], first, width, np.arange(width))
        return 2 * num_ranks


class Torus2dReduceScatter(Torus2d, ReduceScatter):
    """Reduce_scatter along the rows, then along the columns."""

    kind: Literal["torus2d"] = "torus2d"

    def levels(self) -> Composed:
        return HierarchicalReduceScatter()


class Torus2dAllGather(Torus2d, AllGather):
    """All_gather along the columns, then along the rows."""

    kind: Literal["torus2d"] = "torus2d"

    def levels(self) -> Composed:
        return HierarchicalAllGather()
