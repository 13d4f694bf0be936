"""Times of the calls of rank programs.

The same as in a scenario: the transfers of the algorithm's plan over the cluster's links; or the
cluster's formula or table, where it has one. Where transfers share links among themselves, and are
too many to be played, fixed shares tell what it takes, as in `simdp.engine.collective`.

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
from simdp.collectives import Collectives, Plan, Wiring
from simdp.engine.choice import Planner
from simdp.engine.clocks.clock import MAX_EVENT_TRANSFERS
from simdp.engine.clocks.flows import EventLoop, FlowLinks, Route
from simdp.engine.clocks.transfers import CollectiveTimes, Transfers, Where
from simdp.engine.clocks.vector import VectorFabric
from simdp.engine.network import NetworkRoutes
from simdp.engine.network.traffic import shared_link
from simdp.engine.ops import Launch
from simdp.engine.slowdown import Slowdown
from simdp.errors import ProgramError
from simdp.results.trace import TraceBuilder
from simdp.scenario.placement import wiring_of

# Timing -------------------------------------------------------------------------------------------


class Served(NamedTuple):
    """How a collective of some size is served.

    Attributes
    ----------
    plan : Plan
        Over the places of the group, for the data.
    placed : Plan
        Over the ranks of the cluster, for the time.
    links : ndarray, int64
        Every link that it uses, once.
    seconds : float or None
        From when the last rank has come; None where the transfers tell [s].
    shared : bool
        Whether transfers share links among themselves.
    as_one : bool
        Whether there are no transfers to be played, or too many.
    """

    plan: Plan
    placed: Plan
    links: Ints
    seconds: float | None
    shared: bool
    as_one: bool


class GroupTimes:
    """Times the collectives of one process group.

    Parameters
    ----------
    cluster : Cluster
        Where.
    collectives : Collectives
        Algorithms and cost.
    ranks : tuple of int
        The group's, in its order.

    Attributes
    ----------
    members : ndarray, shape `(num_places,)`, int64
        The same.
    network : Network
        Their routes.
    """

    def __init__(self, cluster: Cluster, collectives: Collectives, ranks: tuple[int, ...]) -> None:
        self._cluster, self._collectives = cluster, collectives
        self.members = np.array(ranks)
        everyone = len(ranks) == cluster.world_size
        self._planner = Planner(cluster, groups=None if everyone else self.members[None])
        self.network = self._planner.network
        idle, nothing = Slowdown(cluster, 0), TraceBuilder(keep=False)
        self._clocks = [VectorFabric(self.network, idle, nothing, fixed) for fixed in (False, True)]
        self._wiring = group_wiring(cluster, self.members)
        self._served: dict[tuple[str, float, int], Served] = {}
        self._meet: dict[tuple[Plan, Plan], bool] = {}

    def served(self, collective: str, nbytes: float, root: int) -> Served:
        """Say how a collective is served; ``root`` is a place.

        Raises
        ------
        ProgramError
            If the algorithm cannot serve the group.
        """
        key = (collective, nbytes, root)
        if key not in self._served:
            self._served[key] = self._serve(*key)
        return self._served[key]

    def _serve(self, collective: str, nbytes: float, root: int) -> Served:
        asked, planner = getattr(self._collectives, collective), self._planner
        try:
            algorithm = planner.algorithm(asked, nbytes, root)
            plan = algorithm.plan(planner.layout, nbytes, root)
        except ValueError as error:
            raise ProgramError(
                f"{error}; choose another algorithm in collectives: of the cluster's scenario."
            ) from None
        placed = planner.plan(algorithm, nbytes, root)
        network, cost = self.network, self._collectives.cost_of(collective)
        used = [network.of_part(part).links.reshape(-1) for part in placed.everything]
        links = np.unique(np.concatenate([np.empty(0, dtype=np.int64), *used]))
        seconds = None
        if cost.timed and cost.problem_with(collective, self._wiring) is None:
            seconds = cost.seconds(collective, nbytes, self._wiring)
        shared = seconds is None and shared_link(network, [placed]) is not None
        too_many = placed.num_transfers > MAX_EVENT_TRANSFERS
        if shared and too_many:
            together = np.zeros(self._cluster.world_size)
            seconds = float(self._clocks[True].times(placed, nbytes, together).max())
        as_one = too_many or seconds is not None
        return Served(plan, placed, links[links >= 0], seconds, shared, as_one)

    def follow(self, one: Served, other: Served) -> bool:
        """Whether two collectives, one after the other on each rank, meet on no link."""
        key = (one.placed, other.placed)
        if key not in self._meet:
            self._meet[key] = shared_link(self.network, key) is not None
        return not self._meet[key]

    def ends(self, served: Served, nbytes: float, enter: Floats) -> Floats:
        """When each place of a collective by itself is done, none before the last one has come.

        Parameters
        ----------
        served : Served
            From `served`.
        nbytes : float
            As there.
        enter : ndarray, shape `(num_places,)`
            When each place enters [s].
        """
        last = float(enter.max())
        if served.seconds is not None:
            return np.full(len(enter), last + served.seconds)
        everyone = np.full(self._cluster.world_size, float(enter.min()))
        everyone[self.members] = enter
        times = self._clocks[False].times(served.placed, nbytes, everyone)
        found: Floats = np.maximum(times[self.members], last)
        return found


def group_wiring(cluster: Cluster, members: Ints) -> Wiring:
    """What lies between the ranks of a group, as formulas of costs see it.

    A group takes its share of each node's network cards; where it has more ranks on one node than
    on another, the fullest node counts.
    """
    whole = wiring_of(cluster)
    nodes, counts = np.unique(members // cluster.local_size, return_counts=True)
    local = int(counts.max())
    found = whole._replace(world_size=len(members), num_nodes=len(nodes), local_size=local)
    if local == 1:
        found = found._replace(intra_alpha=0.0, intra_bandwidth=np.inf)
    if len(nodes) == 1:
        return found._replace(inter_alpha=0.0, inter_bandwidth=np.inf, cards=0)
    nics = cluster.numbering.nics[members % cluster.local_size]
    cards = min(len(np.unique(nics[members // cluster.local_size == node])) for node in nodes)
    return found._replace(cards=cards, inter_bandwidth=whole.inter_bandwidth * cards / whole.cards)


# Playing ------------------------------------------------------------------------------------------

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
        self.call: CollectiveTimes | None = None
        self.size = len(times.members)

    def follows(self, other: Course) -> bool:
        """Whether it can be under way with another one, and never on a link at the same time."""
        return self.group is other.group and self.times.follow(other.served, self.served)


class MessageRoute(NamedTuple):
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

    def __init__(self, loop: EventLoop, cluster: Cluster) -> None:
        self.loop = loop
        self._network = NetworkRoutes(cluster)
        self._links = FlowLinks(loop, cluster)
        self._transfers = Transfers(loop, self._links)
        self._users = np.zeros(cluster.num_links, dtype=np.int64)
        self._courses: list[Course] = []

    # Messages -----------------------------------------------------------------------------------

    def way(self, source: int, target: int) -> MessageRoute:
        """Find the way from one rank to another."""
        links, alpha, bandwidth = self._network.connect(np.array([source]), np.array([target]))
        route = self._links.route(links[0], float(bandwidth[0]))
        return MessageRoute(np.unique(links[links >= 0]), float(alpha[0]), route)

    def send(self, way: MessageRoute, nbytes: float, arrived: Callable[[float], None]) -> None:
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

    def _flow(
        self, way: MessageRoute, nbytes: float, arrived: Callable[[float], None], now: float
    ) -> None:
        self._links.join(way.route, nbytes, self._arrive, way, arrived)

    def _arrive(self, way: MessageRoute, arrived: Callable[[float], None], now: float) -> None:
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

    def _prepared(self, course: Course) -> CollectiveTimes:
        served, members = course.served, course.times.members
        place = {rank: place for place, rank in enumerate(members.tolist())}

        def left(call: CollectiveTimes, rank: int, instant: float) -> None:
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
        super().__init__(EventLoop(), stage.links)
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
