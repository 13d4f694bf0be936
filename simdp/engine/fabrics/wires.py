"""Wires: the connections of some plans, numbered, and what of their routes they share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simdp.arrays import Floats, Ints
from simdp.cluster import Cluster
from simdp.collectives import Part
from simdp.engine.network import Network
from simdp.engine.network.sharing import overtaken


class Wires:
    """Every connection that the plans of a run use, as lists that are walked per event.

    Parameters
    ----------
    cluster : Cluster
        Whose links.
    lines : sequence of (Network, list of Part, int)
        Parts that follow each other, the network that routes them, and the number of ranks; parts
        of different lines may run at the same time.

    Attributes
    ----------
    number : list of dict of (int, int, int) to int
        Of each line: numbers of connections by source, destination and channel.
    alpha, bandwidth : list of float
        Of each connection: the latency of its route [s], what it lets through [bytes/s].
    own : list of bool
        Whether no other connection uses any link of the route, and no later collective catches up
        with an earlier one on it.
    route : list of ndarray
        Links of each route as positions in ``capacity``, filled up with its last one.
    capacity : ndarray, shape `(num_links + 1,)`
        Bandwidth of every link in use, and an infinite one that stands for no link [bytes/s]. A
        connection that is slower than its links has a link more, of its own.
    longest : int
        Links of the longest route.
    """

    def __init__(self, cluster: Cluster, lines: Sequence[tuple[Network, list[Part], int]]) -> None:
        self.number: list[dict[tuple[int, int, int], int]] = []
        self.alpha: list[float] = []
        self.bandwidth: list[float] = []
        routes: list[Ints] = []
        self._overtaken: list[bool] = []
        for network, parts, num_ranks in lines:
            known: dict[tuple[int, int, int], int] = {}
            for part in parts:
                c = network.of_part(part)
                links = c.links.reshape(c.src.size, c.links.shape[-1])
                channels = np.broadcast_to(c.places[:, 2:], c.src.shape)
                caught = overtaken(part, c, num_ranks)
                columns = (c.src, c.dst, channels, c.alpha, c.bandwidth, caught)
                rows = zip(*(column.reshape(-1).tolist() for column in columns), strict=True)
                for i, (src, dst, channel, alpha, bandwidth, late) in enumerate(rows):
                    key = (src, dst, channel)
                    if key not in known:
                        known[key] = len(routes)
                        routes.append(links[i][links[i] >= 0])
                        self.alpha.append(alpha)
                        self.bandwidth.append(bandwidth)
                        self._overtaken.append(late)
                    elif late:
                        self._overtaken[known[key]] = True
            self.number.append(known)
        self._lay(cluster, routes)

    def _lay(self, cluster: Cluster, routes: list[Ints]) -> None:
        every = np.concatenate([np.empty(0, dtype=np.int64), *routes])
        used, times = np.unique(every, return_counts=True)
        _, capacity = cluster.link_figures(used)
        slower = [
            i
            for i, route in enumerate(routes)
            if self.bandwidth[i] < capacity[np.searchsorted(used, route)].min(initial=np.inf)
        ]
        extra = {i: len(used) + k for k, i in enumerate(slower)}
        none = len(used) + len(slower)
        self.longest = max((len(route) + (i in extra) for i, route in enumerate(routes)), default=1)
        self.own: list[bool] = []
        self.route: list[Ints] = []
        for i, route in enumerate(routes):
            places = np.searchsorted(used, route)
            alone = bool((times[places] == 1).all())
            self.own.append(alone and not self._overtaken[i])
            if i in extra:
                places = np.append(places, extra[i])
            padding = self.longest - len(places)
            self.route.append(np.pad(places, (0, padding), constant_values=none))
        limits = [self.bandwidth[i] for i in slower]
        self.capacity: Floats = np.concatenate([capacity, limits, [np.inf]])
