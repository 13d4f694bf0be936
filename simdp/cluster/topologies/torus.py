"""Torus of any number of dimensions: neighbours along each, dimension-ordered routes."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field, field_validator

from simdp.arrays import Ints
from simdp.cluster.topologies.base import Topology, compact
from simdp.spec import Int, problem


class TorusTopology(Topology):
    """Endpoints on a grid that wraps around, each with full-duplex links to its neighbours.

    Attributes
    ----------
    dims : list of int or None
        Endpoints along each dimension, the last one running fastest. None: as equal as their
        product allows.
    """

    num_dims: ClassVar[int]

    dims: list[Annotated[Int, Field(ge=1, le=2**20)]] | None = None

    @field_validator("dims")
    @classmethod
    def _one_per_dimension(cls, dims: list[int] | None) -> list[int] | None:
        if dims is not None and len(dims) != cls.num_dims:
            raise problem(f"has {len(dims)} entries; give {cls.num_dims}.")
        return dims

    def problem_with(self, n: int, per_node: int = 1) -> str | None:
        if self.dims is None or math.prod(self.dims) == n:
            return None
        said = " x ".join(map(str, self.dims))
        return (
            f"dims {said} make {math.prod(self.dims)} places for {n} endpoints; "
            f"give dims whose product is {n}, or leave them out."
        )

    def shape(self, n: int) -> list[int]:
        """Endpoints along each dimension."""
        if self.dims is not None:
            return self.dims
        sizes, left = [], n
        for remaining in range(self.num_dims, 0, -1):
            # Rounded first: the cube root of 64 is a little less than 4 in floating point.
            most = math.floor(round(left ** (1 / remaining), 9))
            size = left if remaining == 1 else max(d for d in range(1, most + 1) if left % d == 0)
            sizes.append(size)
            left //= size
        return sizes

    # A dimension of s > 2 endpoints has n links up and n down; of 2, whose neighbours are one and
    # the same, n; of 1, none. Dimensions follow each other.

    def _blocks(self, n: int) -> list[tuple[int, int, int]]:
        """Size, stride and first link of every dimension."""
        blocks, first, stride = [], 0, n
        for size in self.shape(n):
            stride //= size
            blocks.append((size, stride, first))
            first += n * min(size - 1, 2)
        return blocks

    def num_links(self, n: int, per_node: int = 1) -> int:
        return n * sum(min(size - 1, 2) for size in self.shape(n))

    def ends(self, links: Ints, n: int, per_node: int = 1) -> tuple[Ints, Ints]:
        start = links % n
        end = start.copy()
        for size, stride, first in self._blocks(n):
            step = np.where(links < first + n, 1, -1)
            place = start // stride % size
            moved = start + ((place + step) % size - place) * stride
            end = np.where((links >= first) & (links < first + n * min(size - 1, 2)), moved, end)
        return start, end

    def routes(self, src: Ints, dst: Ints, n: int, per_node: int = 1) -> Ints:
        here, parts = src, [np.empty((len(src), 0), dtype=np.int64)]
        for size, stride, first in self._blocks(n):
            place, goal = here // stride % size, dst // stride % size
            ahead = (goal - place) % size
            forward = ahead <= size - ahead  # the way up where both are equally long
            hops = np.where(forward, ahead, size - ahead)
            step = np.arange(hops.max(initial=0))
            sign = np.where(forward, 1, -1)[:, None]
            passed = (
                here[:, None] + ((place[:, None] + sign * step) % size - place[:, None]) * stride
            )
            links = first + np.where(forward, 0, n)[:, None] + passed
            parts.append(np.where(step < hops[:, None], links, -1))
            here = here + (goal - place) * stride
        return compact(np.concatenate(parts, axis=1))
