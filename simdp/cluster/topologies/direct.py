"""Topologies without tiers: switch, ring, full mesh, cube mesh, torus."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field, field_validator

from simdp.arrays import Ints
from simdp.cluster.topologies.base import Edge, Edges, GraphTopology, Topology, compact
from simdp.spec import Bool, Int, problem


class RingTopology(Topology):
    """Every endpoint has a link to each neighbour; two endpoints share a single link.

    Link ``r`` leads from ``r`` to ``r + 1``; link ``n + r`` from ``r`` to ``r - 1``. With two
    endpoints both neighbours are the same one, so that only links 0 and 1 exist.
    """

    kind: Literal["ring"] = "ring"

    def num_links(self, n: int, per_node: int = 1) -> int:
        return 0 if n < 2 else 2 if n == 2 else 2 * n

    def ends(self, links: Ints, n: int, per_node: int = 1) -> tuple[Ints, Ints]:
        start, forward = links % n, links < n
        return start, (start + np.where(forward, 1, -1)) % n

    def routes(self, src: Ints, dst: Ints, n: int, per_node: int = 1) -> Ints:
        ahead = (dst - src) % n
        forward = ahead <= n - ahead  # the way up where both are equally long
        hops = np.where(forward, ahead, n - ahead)
        step = np.arange(hops.max(initial=0))
        up = (src[:, None] + step) % n
        down = n + (src[:, None] - step) % n
        return np.where(step < hops[:, None], np.where(forward[:, None], up, down), -1)


class FullMeshTopology(Topology):
    """Every ordered pair has a link: ``src * n + dst`` leads from ``src`` to ``dst``."""

    kind: Literal["full_mesh"] = "full_mesh"

    def num_links(self, n: int, per_node: int = 1) -> int:
        return n * n

    def ends(self, links: Ints, n: int, per_node: int = 1) -> tuple[Ints, Ints]:
        return links // n, links % n

    def routes(self, src: Ints, dst: Ints, n: int, per_node: int = 1) -> Ints:
        return (src * n + dst)[:, None]


NVLINKS = (
    (0, 1, 1), (0, 2, 1), (0, 3, 2), (0, 4, 2), (1, 2, 2), (1, 3, 1), (1, 5, 2), (2, 3, 2),
    (2, 6, 1), (3, 7, 1), (4, 5, 1), (4, 6, 1), (4, 7, 2), (5, 6, 2), (5, 7, 1), (6, 7, 2),
)  # fmt: skip
"""Pairs of GPUs and the number of NVLinks between them, six of each GPU.

As in ``nvidia-smi topo -m`` and NCCL (topology file in github.com/NVIDIA/nccl/issues/671); NVIDIA
DGX-1 system architecture white paper, WP-08437-002.
"""


class CubeMeshTopology(GraphTopology):
    """Eight V100 of a DGX-1, each with six NVLinks to four others; the rest via one of them.

    ``link`` is the send bandwidth of one GPU over its six NVLinks together, as the catalogue's
    ``nvlink2``; a single connection has a sixth of it, a double one a third. Fewer GPUs are the
    first ones.
    """

    kind: Literal["cube_mesh"] = "cube_mesh"

    only_inside: ClassVar[bool] = True

    def capacity(self) -> int:
        return 8

    def edges(self, n: int) -> Edges:
        return tuple(Edge(u, v, count / 6) for u, v, count in NVLINKS if v < n)


class TorusTopology(Topology):
    """Endpoints on a grid with wraparound, each with full-duplex links to its neighbours."""

    num_dims: ClassVar[int]

    dims: list[Annotated[Int, Field(ge=1, le=2**20)]] | None = None
    """Endpoints along each dimension, the last one running fastest. None: as equal as possible."""

    @field_validator("dims")
    @classmethod
    def _one_per_dimension(cls, dims: list[int] | None) -> list[int] | None:
        if dims is not None and len(dims) != cls.num_dims:
            raise problem(f"has {len(dims)} entries; give {cls.num_dims}.")
        return dims

    def problem_with(self, n: int, per_node: int = 1) -> str | None:
        if self.dims is None or math.prod(self.dims) == n:
            return None
        dims = " x ".join(map(str, self.dims))
        return (
            f"dims {dims} make {math.prod(self.dims)} places for {n} endpoints; "
            f"give dims whose product is {n}, or leave them out."
        )

    def shape(self, n: int) -> list[int]:
        """Return endpoints along each dimension."""
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

    # A dimension of s > 2 endpoints has n links up and n down; of 2, where both neighbours are
    # the same, n; of 1, none. Dimensions follow each other.

    def _blocks(self, n: int) -> list[tuple[int, int, int]]:
        """Return size, stride and first link of every dimension."""
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


class Torus2DTopology(TorusTopology):
    """Rings along 2 dimensions; a route goes the shorter way along each, the first one first."""

    kind: Literal["torus2d"] = "torus2d"

    num_dims: ClassVar[int] = 2


class Torus3DTopology(TorusTopology):
    """Rings along 3 dimensions; a route goes the shorter way along each, the first one first."""

    kind: Literal["torus3d"] = "torus3d"

    num_dims: ClassVar[int] = 3


class SwitchTopology(Topology):
    """A crossbar such as NVSwitch: link ``r`` leads from endpoint ``r`` up, ``n + r`` down to it.

    A route uses two links, each with the given alpha.
    """

    kind: Literal["switch"] = "switch"
    in_network: Bool = False
    """Whether the switch, vertex ``n``, can add, as NVSwitch from its third generation on (NVLink
    SHARP), and InfiniBand switches with SHARP."""

    of_ports: ClassVar[bool] = True

    def num_links(self, n: int, per_node: int = 1) -> int:
        return 2 * n

    def ends(self, links: Ints, n: int, per_node: int = 1) -> tuple[Ints, Ints]:
        port, up = links % n, links < n
        switch = np.full_like(port, n)
        return np.where(up, port, switch), np.where(up, switch, port)

    def routes(self, src: Ints, dst: Ints, n: int, per_node: int = 1) -> Ints:
        if max(src.max(initial=0), dst.max(initial=0)) < n:
            return np.stack([src, n + dst], axis=1)
        up, down = np.where(src < n, src, -1), np.where(dst < n, n + dst, -1)
        links = np.stack([up, down], axis=1)
        return np.where(links[:, :1] < 0, links[:, ::-1], links)  # only down from the switch

    def parents(self, n: int, per_node: int = 1) -> Ints | None:
        if not self.in_network:
            return None
        return np.append(np.full(n, n, dtype=np.int64), -1)
