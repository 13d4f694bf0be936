"""Hybrid cube mesh: the NVLinks of a DGX-1 with eight V100."""

from __future__ import annotations

from typing import ClassVar, Literal

from simdp.cluster.topologies.graph import Edge, Edges, GraphTopology

NVLINKS = (
    (0, 1, 1), (0, 2, 1), (0, 3, 2), (0, 4, 2), (1, 2, 2), (1, 3, 1), (1, 5, 2), (2, 3, 2),
    (2, 6, 1), (3, 7, 1), (4, 5, 1), (4, 6, 1), (4, 7, 2), (5, 6, 2), (5, 7, 1), (6, 7, 2),
)  # fmt: skip
"""Pairs of GPUs and how many NVLinks join them, six of each GPU.

As ``nvidia-smi topo -m`` prints them and NCCL reads them (topology file in
github.com/NVIDIA/nccl/issues/671); NVIDIA DGX-1 system architecture white paper, WP-08437-002.
"""


class CubeMeshTopology(GraphTopology):
    """Eight V100 of a DGX-1, each with six NVLinks to four others; the rest by way of one of them.

    ``link`` is what one GPU sends over its six NVLinks together, as the catalogue's ``nvlink2``;
    a single connection has a sixth of its bandwidth, a double one a third. Fewer GPUs are the
    first ones.
    """

    kind: Literal["cube_mesh"] = "cube_mesh"

    only_inside: ClassVar[bool] = True

    def capacity(self) -> int:
        return 8

    def edges(self, n: int) -> Edges:
        return tuple(Edge(u, v, count / 6) for u, v, count in NVLINKS if v < n)
