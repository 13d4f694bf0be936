"""Playing: what of a program is under way on the cluster's links, which it shares max-min fairly.

Messages and the transfers of collectives are flows over one network. A collective whose links
nobody else uses while it is under way need not be played: where its plan has no link of two
transfers at a time, the vectorised clock tells its ends as exactly, and sooner. Once somebody else
comes to its links, its transfers are brought to that instant, and go on in the loop. What has no
transfers, since a formula or a table times it, or too many, is one flow over all of its links at
once then, as fast as the narrowest of them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import numpy as np

from simdp.arrays import Floats, Ints
from simdp.cluster import Cluster
from simdp.engine.clocks.call import Call
from simdp.engine.clocks.links import Links, Route
from simdp.engine.clocks.loop import Loop
from simdp.engine.clocks.transfers import Transfers, Where
from simdp.engine.network import Network
from simdp.engine.ops import Launch
from simdp.engine.programs.timing import GroupTimes, Served

Reached = Callable[[Sequence[int], float], None]
"""Told of the places that are done, and when [s]."""


class Course:
    """A collective on its way.

    Parameters
    ----------
    group : hashable
        Whose; collectives of one group follow each other on every rank.
    times : GroupTimes
        Of the group.
    served : Served
        How it is served.
    nbytes : float
        The whole buffer [bytes].
    reached : callable
        Told of the places that are done; none before all have come.
    """

    def __init__(
        self, group: Hashable, times: GroupTimes, served: Served, nbytes: float, reached: Reached
    ) -> None:
        self.group, self.times, self.served, self.nbytes = group, times, served, nbytes
        self.reached = reached
        self.alone = served.seconds is not None or not served.shared
        self.entered: dict[int, float] = {}  # by place
        self.early: list[int] = []  # places that are through before all have come
        self.done: dict[int, None] = {}
        self.ends: Floats | None = None  # of each place, if nothing comes between
        self.call: Call | None = None
        self.size = len(times.members)

    def follows(self, other: Course) -> bool:
        """Whether it can be under way with another one, and never on a link at the same time."""
        return self.group is other.group and self.times.follow(other.served, self.served)


class Way(NamedTuple):
    """How messages get from one rank to another.

    Attributes
    ----------
    links : ndarray, int64
        Each once.
    alpha : float
        Latency [s].
    route : Route
        For flows.
    """

    links: Ints
    alpha: float
    route: Route


class Playing:
    """All that is under way.

    Parameters
    ----------
    loop : Loop
        Where.
    cluster : Cluster
        Whose links.
    """

    def __init__(self, loop: Loop, cluster: Cluster) -> None:
        self.loop = loop
        self._network = Network(cluster)
        self._links = Links(loop, cluster)
        self._transfers = Transfers(loop, self._links)
        self._users = np.zeros(cluster.num_links, dtype=np.int64)
        self._courses: list[Course] = []

    # Messages -----------------------------------------------------------------------------------

    def way(self, source: int, target: int) -> Way:
        """Find the way from one rank to another."""
        links, alpha, bandwidth = self._network.connect(np.array([source]), np.array([target]))
        route = self._links.route(links[0], float(bandwidth[0]))
        return Way(np.unique(links[links >= 0]), float(alpha[0]), route)

    def send(self, way: Way, nbytes: float, arrived: Callable[[float], None]) -> None:
        """Send a message now: its latency comes first, then its bytes flow.

        Parameters
        ----------
        way : Way
            From `way`.
        nbytes : float
            How many.
        arrived : callable
            Told when all of them are there [s].
        """
        self._claim(way.links)
        self.loop.at(self.loop.now + way.alpha, self._flow, way, nbytes, arrived)

    def _flow(self, way: Way, nbytes: float, arrived: Callable[[float], None], now: float) -> None:
        self._links.join(way.route, nbytes, self._arrive, way, arrived)

    def _arrive(self, way: Way, arrived: Callable[[float], None], now: float) -> None:
        self._users[way.links] -= 1
        arrived(now)

    # Collectives --------------------------------------------------------------------------------

    def enter(self, course: Course, place: int, since: float) -> None:
        """Let a member of the group take part.

        Parameters
        ----------
        course : Course
            In what.
        place : int
            Its place in the group.
        since : float
            Since when it has been ready to: now, or before where the last one had to come before
            anybody knew what to do [s].
        """
        if not course.entered:
            self._begin(course)
        course.entered[place] = since
        if course.call is not None:
            self._transfers.come(course.call, int(course.times.members[place]), self.loop.now)
        if len(course.entered) < course.size:
            return
        enter = np.array([course.entered[place] for place in range(course.size)])
        if course.alone:
            course.ends = course.times.ends(course.served, course.nbytes, enter)
            instants, which = np.unique(course.ends, return_inverse=True)
            for number, instant in enumerate(instants.tolist()):
                self.loop.at(instant, self._as_told, course, np.flatnonzero(which == number))
        elif course.served.as_one:
            ends = course.times.ends(course.served, course.nbytes, enter)
            self._hold(course, float(ends.max() - enter.max()))
        for early in course.early:
            self.loop.at(self.loop.now, self._through, course, early)

    def _begin(self, course: Course) -> None:
        """Claim the links of a collective; play it if somebody else is there."""
        free = self._claim(course.served.links, course)
        course.alone = course.alone and free
        self._courses.append(course)
        if not course.alone and not course.served.as_one:
            course.call = self._prepared(course)

    def _claim(self, links: Ints, course: Course | None = None) -> bool:
        """Claim links, for a collective or a message; tell whether nobody else needs them now.

        Collectives that are not played so far are from now on, if they need any of them.
        """
        users = self._users[links]
        for other in self._courses if users.any() else ():
            common = np.isin(links, other.served.links)
            if course is not None and course.follows(other):
                users = users - common
            elif other.alone and common.any():
                self._play(other)
        self._users[links] += 1
        return not users.any()

    def _prepared(self, course: Course) -> Call:
        served, members = course.served, course.times.members
        place = {rank: place for place, rank in enumerate(members.tolist())}

        def left(call: Call, rank: int, instant: float) -> None:
            self.loop.at(instant, self._through, course, place[rank])

        op = Launch(0, "", 0, served.placed, course.nbytes, False)
        network = course.times.network
        return self._transfers.call(op, members.tolist(), network, course.group, left)

    def _play(self, course: Course) -> None:
        """Go on with a collective in the loop that was not played so far."""
        course.alone, now = False, self.loop.now
        if course.served.as_one:
            if course.ends is not None:
                self._hold(course, max(float(course.ends.max()) - now, 0.0))
            return
        course.call = self._prepared(course)
        rehearsal = Rehearsal(self._transfers)
        for place, instant in course.entered.items():
            rank = int(course.times.members[place])
            rehearsal.loop.at(instant, rehearsal.come, course.call, rank)
        rehearsal.hand_over(now)

    def _hold(self, course: Course, seconds: float) -> None:
        """Let a collective hold its links as one flow, for so long if they are its own [s]."""
        _, bandwidth = self._network.cluster.link_figures(course.served.links)
        narrowest = float(bandwidth.min())
        route = self._links.route(course.served.links, narrowest)
        left = np.array([place for place in range(course.size) if place not in course.done])
        self._links.join(route, seconds * narrowest, self._finish, course, left)

    def _as_told(self, course: Course, places: Ints, now: float) -> None:
        """Let places be done when the vectorised clock said so, if it still holds."""
        if course.alone:
            self._finish(course, places, now)

    def _through(self, course: Course, place: int, now: float) -> None:
        """Let a place be done whose transfers are, once all have come."""
        if len(course.entered) < course.size:
            course.early.append(place)
        elif place not in course.done:
            self._finish(course, np.array([place]), now)

    def _finish(self, course: Course, places: Ints, now: float) -> None:
        done = places.tolist()
        course.done.update(dict.fromkeys(done))
        if len(course.done) == course.size:
            self._users[course.served.links] -= 1
            self._courses.remove(course)
        course.reached(done, now)


class Rehearsal(Transfers):
    """Brings a collective, whose links have been its own so far, to an instant.

    Parameters
    ----------
    stage : Transfers
        Where it goes on then.
    """

    def __init__(self, stage: Transfers) -> None:
        super().__init__(Loop(), stage.links)
        self.wires, self._stage = stage.wires, stage
        self._under_way: dict[tuple[int, int], tuple[Where, float, float]] = {}

    def _start(self, where: Where, i: int, now: float) -> None:
        leg, wires = where[1], self.wires
        connection = leg.needs.connection[i]
        begin = now + wires.alpha[connection]
        end = begin + leg.chunk_nbytes * leg.needs.count[i] / wires.bandwidth[connection]
        self._under_way[leg.number, i] = where, begin, end
        self.loop.at(end, self._arrive, where, i)

    def _arrive(self, where: Where, i: int, now: float) -> None:
        del self._under_way[where[1].number, i]
        super()._arrive(where, i, now)

    def hand_over(self, now: float) -> None:
        """Play until an instant, at which the stage takes on what is under way [s]."""
        while self.loop.peek() <= now:
            self.loop.step()
        stage, wires = self._stage, self.wires
        for (_, i), (where, begin, end) in self._under_way.items():
            connection = where[1].needs.connection[i]
            if begin > now:
                stage.loop.at(begin, stage._flow, where, i)
            else:
                left = (end - now) * wires.bandwidth[connection]
                stage.links.join(wires.route[connection], left, stage._arrive, where, i)
