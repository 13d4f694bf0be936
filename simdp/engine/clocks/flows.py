"""Flows that share links max-min fairly, and SimPy's event loop with exact instants.

SimPy adds delays, so that rounding separates instants that should be equal; this loop keeps each
instant as computed. Events of one instant run in turns: triggered events, ranks in ascending order,
link sharing, and last the events that need all arrivals.

Max-min fairness: no flow can gain rate except at the cost of a flow with an equal or lower rate
(Bertsekas and Gallager, "Data Networks", 1992, section 6.5.2).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from heapq import heappop, heappush
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import simpy
from simpy.events import NORMAL, EventPriority

from simdp.arrays import Floats, Ints
from simdp.cluster import Cluster
from simdp.collectives import SubPlan
from simdp.engine.network import NetworkRoutes
from simdp.engine.network.traffic import (
    SAME,
    fair_rates,
    load_of,
    narrowest,
    on_full_link,
    overtaken,
)

# EventLoop ----------------------------------------------------------------------------------------

SHARES, LAST = EventPriority(2**40), EventPriority(2**40 + 1)
"""Turns after those of all ranks: sharing of links, then handlers that need all arrivals."""


def turn_of(rank: int) -> EventPriority:
    """Return the turn of a rank within an instant."""
    return EventPriority(NORMAL + 1 + rank)


class Until(float):
    """A delay for which ``now + delay`` is exactly the target instant [s]."""

    instant: float

    def __new__(cls, instant: float, now: float) -> Until:
        """Create a float equal to the delay."""
        delay = super().__new__(cls, instant - now)
        delay.instant = instant
        return delay

    def __radd__(self, now: float) -> float:
        return self.instant


Arrived = Callable[..., object]
"""Called with its arguments and the instant at which the last byte arrives [s]."""

ArrivalCall = tuple[Arrived, tuple[object, ...]]
"""A function to call, and its arguments besides the instant."""


class Moment(simpy.Timeout):
    """A timeout that ends at an exact instant [s], which is its value, in a given turn."""

    def __init__(self, loop: EventLoop, instant: float, turn: EventPriority) -> None:
        self.turn = turn
        super().__init__(loop, Until(instant, loop.now), instant)


def call_back(event: simpy.Event, act: Callable[[simpy.Event], None]) -> None:
    """Add a callback to an event that has not happened yet."""
    assert event.callbacks is not None, "the event has already happened"
    event.callbacks.append(act)


class EventLoop(simpy.Environment):
    """A SimPy environment that also schedules at exact instants."""

    def __init__(self) -> None:
        super().__init__(0.0)
        self._due: dict[float, list[tuple[Callable[..., object], tuple[Any, ...]]]] = {}

    def schedule(
        self, event: simpy.Event, priority: EventPriority = NORMAL, delay: float = 0
    ) -> None:
        """Schedule an event as SimPy does; a `Moment` in its turn."""
        super().schedule(event, event.turn if isinstance(event, Moment) else priority, delay)

    def until(self, instant: float, turn: EventPriority = NORMAL) -> Moment:
        """Create a timeout that ends at an instant [s], its value; now if that is past."""
        now = self.now
        return Moment(self, instant if instant > now else now, turn)

    def at(self, instant: float, act: Callable[..., object], *args: object) -> None:
        """Call ``act(*args, instant)`` at an instant [s], or now if that is past.

        Calls at the same instant share one timeout and run in the order in which they were added.
        """
        due = self._due.get(instant)
        if due is None:
            instant = max(instant, self.now)
            due = self._due.setdefault(instant, [])
            if not due:
                call_back(self.until(instant), self._act)
        due.append((act, args))

    def in_turn(
        self, instant: float, turn: EventPriority, act: Callable[..., None], *args: object
    ) -> None:
        """Call ``act(*args, instant)`` at an instant [s] in a certain turn."""
        call_back(self.until(instant, turn), lambda moment: act(*args, moment.value))

    def _act(self, moment: simpy.Event) -> None:
        now = self.now
        for act, args in self._due.pop(now):
            act(*args, now)


class SlowedClock:
    """A clock on which a second lasts ``slow`` seconds of the loop.

    When the factor changes, pending events are rescheduled, and ``changed`` is called.
    """

    def __init__(self, loop: EventLoop, changed: Callable[[], object] | None = None) -> None:
        self._loop, self._changed = loop, changed
        self.slow = 1.0
        self._own, self._since = loop.now, loop.now  # its own instant, and the loop's
        self._due: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._number = 0
        self._next: Moment | None = None

    def timeout(self, seconds: float) -> simpy.Event:
        """Create an event after some seconds of this clock; its value is the loop's instant [s]."""
        event = self._loop.event()
        self.after(seconds, event.succeed)
        return event

    def after(self, seconds: float, act: Callable[..., object], *args: object) -> None:
        """Call ``act(*args, instant)`` after some seconds of this clock; else as `EventLoop.at`."""
        own = self._own + (self._loop.now - self._since) / self.slow + seconds
        self._number += 1
        heappush(self._due, (own, self._number, act, args))
        if self._due[0][1] == self._number:
            self._announce()

    def change(self, slow: float) -> None:
        """Set the factor on durations from now on."""
        if slow == self.slow:
            return
        now = self._loop.now
        self._own += (now - self._since) / self.slow
        self._since, self.slow = now, slow
        self._announce()
        if self._changed is not None:
            self._changed()

    def _announce(self) -> None:
        if self._due:
            left = max(self._due[0][0] - self._own, 0.0)
            self._next = self._loop.until(self._since + left * self.slow)
            call_back(self._next, self._act)

    def _act(self, moment: simpy.Event) -> None:
        if moment is not self._next:  # the pace has changed since it was announced
            return
        now, own, ready = self._loop.now, self._due[0][0], []
        while self._due and self._due[0][0] == own:
            ready.append(heappop(self._due)[2:])
        self._own, self._since = own, now
        self._announce()
        for act, args in ready:
            act(*args, now)


class Flows:
    """Active flows and the links that they may use.

    Kept in columns of arrays; the column of an ended flow is refilled with the last flow.
    """

    def __init__(self) -> None:
        self._bandwidth = [np.inf]  # of each link; the first one stands for no link
        self._count = [0]
        self.capacity = self._nearly_full = self._share = np.array(self._bandwidth)
        self._links = np.zeros((1, 64), dtype=np.int64)
        self._left = np.empty(64)
        self._rate = np.zeros(64)
        self._flows: list[tuple[int, Any, Ints, SlowedClock | None]] = []  # the first is a number
        self._joined = 0
        self._joining: list[tuple[Ints, float, Any, SlowedClock | None]] = []
        self._any_pace = False
        self._updated, self._next_end = 0.0, np.inf

    def add_link(self, bandwidth: float) -> int:
        """Add a link with a bandwidth [bytes/s]; return its position."""
        self._bandwidth.append(bandwidth)
        self._count.append(0)
        return len(self._count) - 1

    def bandwidth(self, position: int) -> float:
        """Return a link's bandwidth [bytes/s]."""
        return self._bandwidth[position]

    def join(
        self, links: Ints, nbytes: float, token: ArrivalCall, pace: SlowedClock | None = None
    ) -> None:
        """Add a flow over links at some positions; it begins at the next `settle`.

        A flow with a pace keeps its share of the links, and its rate is divided by ``pace.slow``.
        """
        self._joining.append((links, nbytes, token, pace))
        self._any_pace = self._any_pace or pace is not None

    def settle(self, now: float, done: Callable[[ArrivalCall], None]) -> float:
        """Advance all flows to an instant [s]: end the finished, begin the new, share links again.

        ``done`` is called with the token of each ended flow, in order of joining. Returns the
        instant at which the next flow ends if nothing changes [s]; inf without flows.
        """
        n = len(self._flows)
        if n:
            left, rate = self._left[:n], self._rate[:n]
            left -= rate * (now - self._updated)
            if now >= self._next_end * (1 - SAME):
                # Ended is what its rate finishes within a rounding error of now.
                self._drop(np.flatnonzero(left <= rate * (SAME * max(now, 1e-9))).tolist(), done)
        self._updated = now
        self._admit()
        n = len(self._flows)
        if not n:
            self._next_end = np.inf
            return np.inf
        rate = self._rates(self._links[:, :n])
        if self._any_pace:
            rate = rate / [1.0 if flow[3] is None else flow[3].slow for flow in self._flows]
        self._rate[:n] = rate
        self._next_end = now + float((self._left[:n] / rate).min())
        return self._next_end

    def _rates(self, links: Ints) -> Floats:
        """Fair rates: each flow's narrowest equal share if these fill the links."""
        demand = narrowest(links, self._share)
        load = load_of(links, demand, len(self._share))
        if on_full_link(links, load >= self._nearly_full).all():
            return demand
        return fair_rates(links, self.capacity)

    def _recount(self, links: Ints, change: int) -> None:
        count, share, bandwidth = self._count, self._share, self._bandwidth
        for link in links.tolist():
            count[link] += change
            share[link] = bandwidth[link] / max(count[link], 1)

    def _drop(self, ended: Sequence[int], done: Callable[[ArrivalCall], None]) -> None:
        finished = sorted((self._flows[column] for column in ended), key=itemgetter(0))
        for column in reversed(ended):
            self._recount(self._flows[column][2], -1)
            last = len(self._flows) - 1
            self._flows[column] = self._flows[last]
            self._flows.pop()
            if column != last:
                self._links[:, column] = self._links[:, last]
                self._left[column], self._rate[column] = self._left[last], self._rate[last]
        for _, token, *_ in finished:
            done(token)

    def _admit(self) -> None:
        if len(self._bandwidth) > len(self.capacity):
            self.capacity = np.array(self._bandwidth)
            self._nearly_full = self.capacity * (1 - SAME)
            self._share = self.capacity / np.maximum(self._count, 1)
        for links, nbytes, token, pace in self._joining:
            n, length = len(self._flows), len(links)
            if n == len(self._left):
                self._links = np.concatenate([self._links, np.zeros_like(self._links)], axis=1)
                self._left = np.concatenate([self._left, np.empty(n)])
                self._rate = np.concatenate([self._rate, np.zeros(n)])
            if length > len(self._links):
                more = np.zeros((length - len(self._links), len(self._left)), dtype=np.int64)
                self._links = np.concatenate([self._links, more])
            self._links[:length, n], self._links[length:, n] = links, 0
            self._left[n] = nbytes
            self._recount(links, 1)
            self._flows.append((self._joined, token, links, pace))
            self._joined += 1
        self._joining.clear()


Route = Ints
"""Positions of the links that a flow uses; from `FlowLinks.route`."""


class FlowLinks:
    """The links of a cluster as flows share them."""

    def __init__(self, loop: EventLoop, cluster: Cluster) -> None:
        self.loop, self._cluster = loop, cluster
        self._flows = Flows()
        self._position: dict[int, int] = {}
        self._degraded: dict[tuple[int, float], int] = {}
        self._is_due = False  # whether links are shared again at this instant
        self._next_end: Moment | None = None

    def route(self, links: Ints, bandwidth: float, limits: Floats | None = None) -> Route:
        """Prepare a route over some links.

        Parameters
        ----------
        links : ndarray, int64
            Links of the cluster, padded with -1.
        bandwidth : float
            Of an uncontended route [bytes/s]; if it is below that of the links, the route gets an
            additional link of its own.
        limits : ndarray, shaped as ``links``, optional
            Bandwidth of links that are degraded in some steps [bytes/s]. Flows of such a step share
            the link with all flows, and the reduced bandwidth with each other.
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
        """Begin a flow of bytes now; return the event of their arrival, its value the instant."""
        event = self.loop.event()
        self.join(route, nbytes, event.succeed)
        return event

    def join(
        self,
        route: Route,
        nbytes: float,
        arrived: Arrived,
        *args: object,
        pace: SlowedClock | None = None,
    ) -> None:
        """Begin a flow of bytes now, and call ``arrived(*args, instant)`` when all have arrived.

        A ``pace`` slows the flow down; it must call `share_anew` when it changes.
        """
        if not nbytes or not len(route):  # nothing to send, or nowhere to go
            self.loop.at(self.loop.now, arrived, *args)
            return
        self._flows.join(route, nbytes, (arrived, args), pace)
        self.share_anew()

    def share_anew(self) -> None:
        """Share links again at this instant, once, after all other events there."""
        if not self._is_due:
            self._is_due = True
            self.loop.in_turn(self.loop.now, SHARES, self._share)

    def _share(self, now: float) -> None:
        def done(token: ArrivalCall) -> None:
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
    """List the limits of the used links; none if no limits are given."""
    return [] if limits is None else limits[links >= 0].tolist()


Numbers = dict[tuple[int, int, int], int]
"""Numbers of connections by source, destination and channel."""


class Figures(NamedTuple):
    """Latency [s], uncontended bandwidth [bytes/s] and route of each connection."""

    alpha: list[float]
    bandwidth: list[float]
    route: list[Route]


class Wires:
    """Every connection that the plans of a run use, as lists for access per event.

    ``alpha`` [s], ``bandwidth`` [bytes/s] of an uncontended flow, and ``route`` are by connection;
    ``own``: no other connection uses any link of the route, and no later collective can overtake an
    earlier one on it (False before `find_owners`).
    """

    def __init__(self, links: FlowLinks) -> None:
        self._links = links
        self._lines: dict[Hashable, Numbers] = {}
        self._overtaken: list[bool] = []
        self.alpha: list[float] = []
        self.bandwidth: list[float] = []
        self.own: list[bool] = []
        self.route: list[Route] = []
        self._ends: list[tuple[int, int]] = []
        self._at: dict[NetworkRoutes, Figures] = {}

    def at(self, network: NetworkRoutes, step: int) -> Figures:
        """Figures of a network's connections in a step."""
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

    def lay(self, line: Hashable, network: NetworkRoutes, part: SubPlan, num_ranks: int) -> Numbers:
        """Number the connections of a part; return all numbers of the line so far.

        Parts of one ``line`` run one after the other and share connections; those of different
        lines may run at the same time. Vertices from ``num_ranks`` on are switches.
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
        """Find the connections that share no link with another one."""
        users = dict[int, int]()
        routes = [route.tolist() for route in self.route]
        for route in routes:
            for link in route:
                users[link] = users.get(link, 0) + 1
        self.own = [
            not late and all(users[link] == 1 for link in route)
            for late, route in zip(self._overtaken, routes, strict=True)
        ]
