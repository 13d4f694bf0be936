"""Topology: which directed links join a number of endpoints, and which of them a route takes."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import numpy as np

from simdp.arrays import Bools, Floats, Ints
from simdp.cluster.link import Link
from simdp.spec import Spec


class Topology(Spec):
    """How endpoints are joined by directed links.

    Inside a node the endpoints are its devices. Between nodes they are the ports of the network
    cards, node by node (``of_ports``), or the nodes themselves, and the network is there once per
    card. Links and vertices are numbered from 0: first the ``n`` endpoints, then switches.
    ``per_node`` is the number of cards of a node; only what speaks of cards looks at it.
    """

    kind: str

    of_ports: ClassVar[bool] = False
    """Whether, between nodes, every card's port is an endpoint of its own."""

    only_inside: ClassVar[bool] = False
    """Whether it describes the inside of a node, and cannot join nodes."""

    def capacity(self) -> int | None:
        """Count the endpoints that it can join at most; None where it grows with their number."""
        return None

    def problem_with(self, n: int, per_node: int = 1) -> str | None:
        """Say why it cannot join ``n`` endpoints, beginning with a key or a kind, or None."""
        return None

    @abstractmethod
    def num_links(self, n: int, per_node: int = 1) -> int:
        """Count the directed links that join ``n`` endpoints."""

    @abstractmethod
    def ends(self, links: Ints, n: int, per_node: int = 1) -> tuple[Ints, Ints]:
        """Return the vertices that each link leaves and enters, two arrays shaped as ``links``."""

    @abstractmethod
    def routes(self, src: Ints, dst: Ints, n: int, per_node: int = 1) -> Ints:
        """Find the links of many routes at once.

        Parameters
        ----------
        src, dst : ndarray, shape `(num_routes,)`, int64
            The endpoints of each route; they differ. A switch that adds (see `parents`) may stand
            for one of them, if the other is next to it.
        n : int
            How many endpoints there are.
        per_node : int
            Cards of a node.

        Returns
        -------
        ndarray, shape `(num_routes, longest)`, int64
            Link numbers in order of travel; shorter routes end in -1.
        """

    def figures(self, links: Ints, link: Link, n: int, per_node: int = 1) -> tuple[Floats, Floats]:
        """Alpha [s] and bandwidth [bytes/s] of links, two arrays shaped as ``links``.

        Every link is as given, unless a member says otherwise. Places that hold -1 may get
        anything.
        """
        return np.full(links.shape, link.alpha), np.full(links.shape, link.bandwidth)

    def begins_stage(self, links: Ints, n: int, per_node: int = 1) -> Bools:
        """Tell before which links a route is stored and forwarded, as in host memory.

        Such a route sends its bytes stage after stage, so that the times of its stages add up.
        """
        return np.zeros(links.shape, dtype=np.bool_)

    def switch_name(self, vertex: int, n: int, per_node: int = 1) -> str:
        """Name a vertex that is no endpoint, for messages: ``"leaf switch 3"``."""
        return "the switch"

    def num_cards(self, per_node: int) -> int:
        """Count the network cards that it places, as the vertices n, n + 1, ...; 0 if it does not.

        Where it does, a route between nodes takes its links between device and card as well.
        """
        return 0

    def parents(self, n: int, per_node: int = 1) -> Ints | None:
        """Tell who adds what, for reductions inside the network.

        Returns
        -------
        ndarray, shape `(n + num_reducers,)`, int64, or None
            The switch that each endpoint, and each switch that adds, hands its sum to; -1 for the
            last one. Switches that add are the vertices n ... n + num_reducers - 1. None where
            the network cannot add.
        """
        return None

    def parts(self, n: int, per_node: int = 1) -> Ints | None:
        """Number what is joined: a value per endpoint, equal where there is a way; None: all is."""
        return None


def compact(links: Ints) -> Ints:
    """Move the -1 of every row to its end, and cut off columns that hold nothing else.

    Parameters
    ----------
    links : ndarray, shape `(num_routes, columns)`, int64

    Returns
    -------
    ndarray, shape `(num_routes, longest)`, int64
    """
    missing = links < 0
    longest = int((~missing).sum(axis=1).max(initial=0))
    if missing[:, :longest].any():
        order = np.argsort(missing, axis=1, kind="stable")
        links = np.take_along_axis(links, order, axis=1)
    return links[:, :longest]
