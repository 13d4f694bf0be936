"""Full mesh: a link of its own between every two endpoints."""

from __future__ import annotations

from typing import Literal

from simdp.arrays import Ints
from simdp.cluster.topologies.base import Topology


class FullMeshTopology(Topology):
    """Every ordered pair has a link: ``src * n + dst`` leads from ``src`` to ``dst``."""

    kind: Literal["full_mesh"] = "full_mesh"

    def num_links(self, n: int, per_node: int = 1) -> int:
        return n * n

    def ends(self, links: Ints, n: int, per_node: int = 1) -> tuple[Ints, Ints]:
        return links // n, links % n

    def routes(self, src: Ints, dst: Ints, n: int, per_node: int = 1) -> Ints:
        return (src * n + dst)[:, None]
