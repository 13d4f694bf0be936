"""Links: one network of links in the loop, shared max-min fairly by all that flows over them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import simpy

from simdp.arrays import Floats, Ints
from simdp.cluster import Cluster
from simdp.engine.clocks.flows import Flows
from simdp.engine.clocks.loop import SHARES, Loop, Moment, call_back
from simdp.engine.clocks.pace import Pace

Route = Ints
"""Positions of the links that a flow uses; made by `Links.route`."""

Arrived = Callable[..., object]
"""Told its arguments and the instant at which the last byte is there [s]."""


class Links:
    """The links of a cluster.

    Parameters
    ----------
    loop : Loop
        Where flows end.
    cluster : Cluster
        Whose links.
    """

    def __init__(self, loop: Loop, cluster: Cluster) -> None:
        self.loop, self._cluster = loop, cluster
        self._flows = Flows()
        self._position: dict[int, int] = {}
        self._degraded: dict[tuple[int, float], int] = {}
        self._is_due = False  # to share links anew, at this instant
        self._next_end: Moment | None = None

    def route(self, links: Ints, bandwidth: float, limits: Floats | None = None) -> Route:
        """Prepare a way over some links.

        Parameters
        ----------
        links : ndarray, int64
            Links of the cluster, filled up with -1.
        bandwidth : float
            What it lets through alone; a way that is slower than its links has a link more, of its
            own [bytes/s].
        limits : ndarray, shaped as ``links``, optional
            What the links let through in some steps, where they are degraded. What crosses one in
            such a step shares it with everything, and what is left of it with its like [bytes/s].
        """
        used = links[links >= 0].tolist()
        new = [link for link in used if link not in self._position]
        if new:
            for link, limit in zip(new, self._cluster.link_figures(np.array(new))[1], strict=True):
                self._position[link] = self._flows.add_link(float(limit))
        places = [self._position[link] for link in used]
        for link, place, limit in zip(used, places[:], _there(limits, links), strict=False):
            if limit < self._flows.bandwidth(place):
                if (link, limit) not in self._degraded:
                    self._degraded[link, limit] = self._flows.add_link(limit)
                places.append(self._degraded[link, limit])
        if bandwidth < min(map(self._flows.bandwidth, places), default=np.inf):
            places.append(self._flows.add_link(bandwidth))
        return np.array(places, dtype=np.int64)

    def flow(self, route: Route, nbytes: float) -> simpy.Event:
        """Let bytes flow from now on; the event happens when all are there, its value is when.

        Parameters
        ----------
        route : Route
            From `route`.
        nbytes : float
            How many.
        """
        event = self.loop.event()
        self.join(route, nbytes, event.succeed)
        return event

    def join(
        self,
        route: Route,
        nbytes: float,
        arrived: Arrived,
        *args: Any,
        pace: Pace | None = None,
    ) -> None:
        """Let bytes flow from now on, and call somebody when all are there; else as `flow`.

        With a pace, which tells ``share_anew`` when it changes, they may be slowed down.
        """
        if not nbytes or not len(route):  # nothing to send, or nowhere to go
            self.loop.at(self.loop.now, arrived, *args)
            return
        self._flows.join(route, nbytes, (arrived, args), pace)
        self.share_anew()

    def share_anew(self) -> None:
        """Share links anew at this instant, once, after everything else that happens there."""
        if not self._is_due:
            self._is_due = True
            self.loop.in_turn(self.loop.now, SHARES, self._share)

    def _share(self, now: float) -> None:
        def done(token: tuple[Arrived, tuple[Any, ...]]) -> None:
            token[0](*token[1], now)

        end = self._flows.settle(now, done)  # which also admits what follows from these
        self._is_due = False
        self._next_end = None
        if end < np.inf:
            self._next_end = self.loop.until(end)
            call_back(self._next_end, self._one_ends)

    def _one_ends(self, moment: simpy.Event) -> None:
        if moment is self._next_end:  # else the shares have changed since it was announced
            self.share_anew()


def _there(limits: Floats | None, links: Ints) -> list[float]:
    """Limits of the links that are used; none where none is given."""
    found: list[float] = [] if limits is None else limits[links >= 0].tolist()
    return found
