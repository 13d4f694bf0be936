"""Full mesh: a link of its own between every two endpoints."""

from __future__ import annotations

from typing import Literal

from simdp.cluster.topologies.base import Ints, Topology


class FullMeshTopology(Topology):
    """Every ordered pair has a link: ``src * n + dst`` leads from ``src`` to ``dst``."""

    kind: Literal["full_mesh"] = "full_mesh"

    def num_links(self, num_endpoints: int) -> int:
        return num_endpoints * num_endpoints

    def ends(self, links: Ints, num_endpoints: int) -> tuple[Ints, Ints]:
        return links // num_endpoints, links % num_endpoints

    def routes(self, src: Ints, dst: Ints, num_endpoints: int) -> Ints:
        return (src * num_endpoints + dst)[:, None]
