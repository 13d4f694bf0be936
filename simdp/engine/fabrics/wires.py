"""Wires: the connections of some plans, numbered, and what of their routes they share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simdp.collectives import Plan
from simdp.engine.network import Network

Ints = NDArray[np.int64]


class Wires:
    """Every connection that the plans of a run use, as lists that are walked per event.

    Parameters
    ----------
    network : Network
        Routes.
    plans : sequence of Plan
        Every plan that may be launched.

    Attributes
    ----------
    number : dict of int to int
        Numbers of connections by ``src * world_size + dst``.
    alpha, bandwidth : list of float
        Of each connection: the latency of its route [s], its narrowest link [bytes/s].
    own : list of bool
        Whether no other connection uses any link of the route.
    route : list of ndarray
        Links of each route as positions in ``capacity``, filled up with its last one.
    capacity : ndarray, shape `(num_links + 1,)`
        Bandwidth of every link in use, and an infinite one that stands for no link [bytes/s].
    longest : int
        Links of the longest route.
    """

    def __init__(self, network: Network, plans: Sequence[Plan]) -> None:
        n = network.cluster.world_size
        self.number: dict[int, int] = {}
        self.alpha: list[float] = []
        self.bandwidth: list[float] = []
        routes: list[Ints] = []
        for plan in plans:
            c = network.of_plan(plan)
            for i, pair in enumerate((c.src * n + c.dst).tolist()):
                if pair not in self.number:
                    self.number[pair] = len(self.number)
                    routes.append(c.links[i][c.links[i] >= 0])
                    self.alpha.append(float(c.alpha[i]))
                    self.bandwidth.append(float(c.bandwidth[i]))
        every = np.concatenate([np.empty(0, dtype=np.int64), *routes])
        used, times = np.unique(every, return_counts=True)
        self.longest = max((len(route) for route in routes), default=1)
        self.own: list[bool] = []
        self.route: list[Ints] = []
        for route in routes:
            places = np.searchsorted(used, route)
            self.own.append(bool((times[places] == 1).all()))
            padding = self.longest - len(places)
            self.route.append(np.pad(places, (0, padding), constant_values=len(used)))
        _, bandwidth = network.cluster.link_figures(used)
        self.capacity = np.append(bandwidth, np.inf)
