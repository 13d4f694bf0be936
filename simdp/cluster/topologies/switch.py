"""Switch: every endpoint has one port into a switch that never blocks."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from simdp.cluster.topologies.base import Ints, Topology


class SwitchTopology(Topology):
    """A crossbar: link ``r`` leads from endpoint ``r`` up, link ``n + r`` down to it.

    A route takes two links, each with the given alpha.
    """

    kind: Literal["switch"] = "switch"

    last_link_is_the_receivers: ClassVar[bool] = True

    def num_links(self, num_endpoints: int) -> int:
        return 2 * num_endpoints

    def ends(self, links: Ints, num_endpoints: int) -> tuple[Ints, Ints]:
        port, up = links % num_endpoints, links < num_endpoints
        switch = np.full_like(port, num_endpoints)
        return np.where(up, port, switch), np.where(up, switch, port)

    def routes(self, src: Ints, dst: Ints, num_endpoints: int) -> Ints:
        return np.stack([src, num_endpoints + dst], axis=1)
