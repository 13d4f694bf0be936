"""Topology: which directed links join a number of endpoints, and which of them a route takes."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from simdp.spec import Spec

Ints = NDArray[np.int64]


class Topology(Spec):
    """How endpoints (devices in a node, or nodes in a cluster) are joined by directed links.

    Links and endpoints are numbered from 0; a vertex at or above ``num_endpoints`` is a switch.
    """

    kind: str

    last_link_is_the_receivers: ClassVar[bool] = False
    """Whether a route's last link is a port of the receiver, as behind a switch."""

    @abstractmethod
    def num_links(self, num_endpoints: int) -> int:
        """Count the directed links that join ``num_endpoints`` endpoints."""

    @abstractmethod
    def ends(self, links: Ints, num_endpoints: int) -> tuple[Ints, Ints]:
        """Return the vertices that each link leaves and enters, two arrays shaped as ``links``."""

    @abstractmethod
    def routes(self, src: Ints, dst: Ints, num_endpoints: int) -> Ints:
        """Find the links of many routes at once.

        Parameters
        ----------
        src, dst : ndarray, shape `(num_routes,)`, int64
            The endpoints of each route; they differ.
        num_endpoints : int
            How many endpoints there are.

        Returns
        -------
        ndarray, shape `(num_routes, longest)`, int64
            Link numbers in order of travel; shorter routes end in -1.
        """
