"""Switch: every endpoint has one port into a switch that never blocks."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from simdp.arrays import Ints
from simdp.cluster.topologies.base import Topology
from simdp.spec import Bool


class SwitchTopology(Topology):
    """A crossbar, as NVSwitch is: link ``r`` leads from endpoint ``r`` up, ``n + r`` down to it.

    A route takes two links, each with the given alpha.

    Attributes
    ----------
    in_network : bool
        Whether the switch, vertex ``n``, can add, as NVSwitch can from its third generation on
        (NVLink SHARP), and InfiniBand switches with SHARP.
    """

    kind: Literal["switch"] = "switch"
    in_network: Bool = False

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
        return np.where(links[:, :1] < 0, links[:, ::-1], links)  # down from the switch alone

    def parents(self, n: int, per_node: int = 1) -> Ints | None:
        if not self.in_network:
            return None
        return np.append(np.full(n, n, dtype=np.int64), -1)
