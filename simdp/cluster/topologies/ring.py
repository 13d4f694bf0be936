"""Ring: a full-duplex link to each neighbour; messages to others pass through the shorter way."""

from __future__ import annotations

from typing import Literal

import numpy as np

from simdp.arrays import Ints
from simdp.cluster.topologies.base import Topology


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
        links = np.where(forward[:, None], up, down)
        return np.where(step < hops[:, None], links, -1)
