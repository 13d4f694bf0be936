"""Wires: the connections of some plans, numbered, and what of their routes they share."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

import numpy as np

from simdp.arrays import Ints
from simdp.collectives import Part
from simdp.engine.clocks.links import Links, Route
from simdp.engine.network import Network
from simdp.engine.network.sharing import overtaken

Numbers = dict[tuple[int, int, int], int]
"""Numbers of connections by source, destination and channel."""


class Figures(NamedTuple):
    """What connections cost.

    Attributes
    ----------
    alpha, bandwidth : list of float
        Of each connection: the latency of its route [s], what it lets through [bytes/s].
    route : list of Route
        Of each connection.
    """

    alpha: list[float]
    bandwidth: list[float]
    route: list[Route]


class Wires:
    """Every connection that the plans of a run use, as lists that are walked per event.

    Parameters
    ----------
    links : Links
        Over which they lead.

    Attributes
    ----------
    alpha, bandwidth : list of float
        Of each connection: the latency of its route [s], what it lets through [bytes/s].
    own : list of bool
        Whether no other connection uses any link of the route, and no later collective catches up
        with an earlier one on it; unknown, and so never, before `find_owners`.
    route : list of Route
        Of each connection.
    """

    def __init__(self, links: Links) -> None:
        self._links = links
        self._lines: dict[Hashable, Numbers] = {}
        self._overtaken: list[bool] = []
        self.alpha: list[float] = []
        self.bandwidth: list[float] = []
        self.own: list[bool] = []
        self.route: list[Route] = []
        self._ends: list[tuple[int, int]] = []
        self._at: dict[Network, Figures] = {}

    def at(self, network: Network, step: int) -> Figures:
        """What the connections of a network cost in a step."""
        there = network.at(step)
        if there is network:
            return Figures(self.alpha, self.bandwidth, self.route)
        if there not in self._at or len(self._at[there].route) < len(self.route):
            links, alpha, bandwidth = there.connect(*np.array(self._ends, dtype=np.int64).T)
            limits = there.cluster.link_figures(links)[1]
            rows = zip(links, limits, bandwidth.tolist(), strict=True)
            routes = [self._links.route(row, limit, own) for row, own, limit in rows]
            self._at[there] = Figures(alpha.tolist(), bandwidth.tolist(), routes)
        return self._at[there]

    def lay(self, line: Hashable, network: Network, part: Part, num_ranks: int) -> Numbers:
        """Number the connections of a part.

        Parameters
        ----------
        line : hashable
            Parts of one line follow each other, and so share connections; those of different lines
            may run at the same time.
        network : Network
            Routes them.
        part : Part
            Whose connections.
        num_ranks : int
            Vertices from here on are switches.

        Returns
        -------
        dict of (int, int, int) to int
            All of the line.
        """
        known = self._lines.setdefault(line, {})
        c = network.of_part(part)
        links: Ints = c.links.reshape(c.src.size, c.links.shape[-1])
        channels = np.broadcast_to(c.places[:, 2:], c.src.shape)
        late = overtaken(part, c, num_ranks)
        columns = (c.src, c.dst, channels, c.alpha, c.bandwidth, late)
        rows = zip(*(column.reshape(-1).tolist() for column in columns), strict=True)
        for i, (src, dst, channel, alpha, bandwidth, is_late) in enumerate(rows):
            number = known.get((src, dst, channel))
            if number is None:
                known[src, dst, channel] = len(self.route)
                self.route.append(self._links.route(links[i], bandwidth))
                self.alpha.append(alpha)
                self.bandwidth.append(bandwidth)
                self._ends.append((src, dst))
                self._overtaken.append(is_late)
                self.own.append(False)
            elif is_late:
                self._overtaken[number] = True
        return known

    def find_owners(self) -> None:
        """Find the connections that have their links to themselves, among those that there are."""
        users = dict[int, int]()
        routes = [route.tolist() for route in self.route]
        for route in routes:
            for link in route:
                users[link] = users.get(link, 0) + 1
        self.own = [
            not late and all(users[link] == 1 for link in route)
            for late, route in zip(self._overtaken, routes, strict=True)
        ]
