"""Times of the calls of rank programs.

As in a scenario: the transfers of the algorithm's plan over the cluster's links; or the cluster's
formula or table. Plans with shared links and too many transfers take fixed shares, as in
`simdp.engine.collective`.

Messages and the transfers of collectives are flows over one network. A collective with exclusive
links need not be simulated by transfers: if its plan never uses a link twice at a time, the
vectorised clock gives the same ends faster. Once other traffic uses its links, its transfers are
brought to that instant, and continue in the loop. A collective without transfers, which a formula
or a table times, or with too many, is then one flow over all of its links, with the bandwidth of
the narrowest.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import numpy as np

from simdp.arrays import Floats, Ints
from simdp.cluster import Cluster
from simdp.collectives import Collectives, Plan, Wiring
from simdp.engine.clocks.clock import MAX_EVENT_TRANSFERS
from simdp.engine.clocks.flows import EventLoop, FlowLinks, Route
from simdp.engine.clocks.transfers import CollectiveTimes, Transfers, Where
from simdp.engine.clocks.vector import VectorFabric
from simdp.engine.collective import Planner
from simdp.engine.network import NetworkRoutes
from simdp.engine.network.traffic import shared_link
from simdp.engine.ops import Launch
from simdp.engine.slowdown import Slowdown
from simdp.errors import ProgramError, joined
from simdp.results.trace import TraceBuilder
from simdp.scenario.placement import wiring_of

# GroupTimes ---------------------------------------------------------------------------------------


class Served(NamedTuple):
    """Algorithm and timing of a collective of a certain size.

    ``plan`` is over the places of the group, for the data; ``placed`` over the ranks of the
    cluster, for the time, with its ``links``. ``seconds`` is the duration from the last rank's
    arrival [s]; None: simulated by transfers. ``shared``: transfers share links with each other;
    ``as_one``: there are no transfers to simulate, or too many.
    """

    plan: Plan
    placed: Plan
    links: Ints
    seconds: float | None
    shared: bool
    as_one: bool


class GroupTimes:
    """Times the collectives of one process group, the ``members`` in its order."""

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
        self._slowdowns: dict[tuple[str, float, int], float] = {}

    def slowdown(self, collective: str, nbytes: float, root: int) -> float:
        """Relative increase of work's duration beside a collective; ``root`` is a place."""
        key = (collective, nbytes, root)
        if key not in self._slowdowns:
            cost = self._collectives.cost_of(collective)
            choice = getattr(self._collectives, collective)
            timed = cost.timed and cost.problem_with(collective, self._wiring) is None

            def alone(size: float) -> float:
                if timed:
                    return cost.seconds(collective, size, self._wiring)
                return self._planner.seconds(choice, size, root)

            n = len(self.members)
            self._slowdowns[key] = self._cluster.slowdown_beside(collective, n, nbytes, alone)
        return self._slowdowns[key]

    def served(self, collective: str, nbytes: float, root: int) -> Served:
        """Algorithm and timing of a collective; ``root`` is a place.

        Raises
        ------
        ProgramError
            If the algorithm does not support the group.
        """
        key = (collective, nbytes, root)
        if key not in self._served:
            self._served[key] = self._serve(*key)
        return self._served[key]

    def _serve(self, collective: str, nbytes: float, root: int) -> Served:
        choice, planner = getattr(self._collectives, collective), self._planner
        try:
            algorithm = planner.algorithm(choice, nbytes, root)
            plan = algorithm.plan(planner.layout, nbytes, root)
        except ValueError as error:
            raise ProgramError(
                joined([f"{error}", "choose another algorithm in the scenario's collectives."])
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

    def follow(self, first: Served, other: Served) -> bool:
        """Whether two collectives in sequence never use a link at the same time."""
        key = (first.placed, other.placed)
        if key not in self._meet:
            self._meet[key] = shared_link(self.network, key) is not None
        return not self._meet[key]

    def ends(self, served: Served, nbytes: float, enter: Floats) -> Floats:
        """End of an isolated collective at each place, none before the last rank's arrival [s]."""
        last = float(enter.max())
        if served.seconds is not None:
            return np.full(len(enter), last + served.seconds)
        everyone = np.full(self._cluster.world_size, float(enter.min()))
        everyone[self.members] = enter
        times = self._clocks[False].times(served.placed, nbytes, everyone)
        ends: Floats = np.maximum(times[self.members], last)
        return ends


def group_wiring(cluster: Cluster, members: Ints) -> Wiring:
    """Wiring of a group's ranks, for cost formulas.

    A group gets its share of each node's NICs; the node with most of its ranks counts.
    """
    whole = wiring_of(cluster)
    nodes, counts = np.unique(members // cluster.local_size, return_counts=True)
    local = int(counts.max())
    wiring = whole._replace(world_size=len(members), num_nodes=len(nodes), local_size=local)
    if local == 1:
        wiring = wiring._replace(intra_alpha=0.0, intra_bandwidth=np.inf)
    if len(nodes) == 1:
        return wiring._replace(inter_alpha=0.0, inter_bandwidth=np.inf, cards=0)
    nics = cluster.numbering.nics[members % cluster.local_size]
    cards = min(len(np.unique(nics[members // cluster.local_size == node])) for node in nodes)
    return wiring._replace(cards=cards, inter_bandwidth=whole.inter_bandwidth * cards / whole.cards)


# Playing: collectives and messages in flight ------------------------------------------------------

Reached = Callable[[Sequence[int], float], None]
"""Called with the finished places, and the instant [s]."""


class Course:
    """A collective in progress.

    Collectives of one ``group`` run one after the other on every rank. ``reached`` is called with
    finished places, but not before all have entered.
    """

    def __init__(
        self, group: Hashable, times: GroupTimes, served: Served, nbytes: float, reached: Reached
    ) -> None:
        self.group, self.times, self.served, self.nbytes = group, times, served, nbytes
        self.reached = reached
        self.alone = served.seconds is not None or not served.shared
        self.entered: dict[int, float] = {}  # by place
        self.early: list[int] = []  # places that end before all have entered
        self.done: dict[int, None] = {}
        self.ends: Floats | None = None  # of each place, without other traffic
        self.call: CollectiveTimes | None = None
        self.size = len(times.members)

    def follows(self, other: Course) -> bool:
        """Whether it can overlap with another one without using a link at the same time."""
        return self.group is other.group and self.times.follow(other.served, self.served)


class MessageRoute(NamedTuple):
    """Route of messages between two ranks: links, latency [s], route for flows."""

    links: Ints
    alpha: float
    route: Route


class Playing:
    """Collectives and messages in progress on one network."""

    def __init__(self, loop: EventLoop, cluster: Cluster) -> None:
        self.loop = loop
        self._network = NetworkRoutes(cluster)
        self._links = FlowLinks(loop, cluster)
        self._transfers = Transfers(loop, self._links)
        self._users = np.zeros(cluster.num_links, dtype=np.int64)
        self._courses: list[Course] = []

    # Messages -----------------------------------------------------------------------------------

    def way(self, source: int, target: int) -> MessageRoute:
        """Find the route from one rank to another."""
        links, alpha, bandwidth = self._network.connect(np.array([source]), np.array([target]))
        route = self._links.route(links[0], float(bandwidth[0]))
        return MessageRoute(np.unique(links[links >= 0]), float(alpha[0]), route)

    def send(self, way: MessageRoute, nbytes: float, arrived: Callable[[float], None]) -> None:
        """Send a message now: its latency, then the flow of its bytes; then call ``arrived``."""
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
        """Enter a member of the group into a collective.

        ``since`` is the instant at which it was ready [s]: now, or earlier if the size of the call
        was unknown before the last rank's arrival.
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
                self.loop.at(instant, self._end_as_planned, course, np.flatnonzero(which == number))
        elif course.served.as_one:
            ends = course.times.ends(course.served, course.nbytes, enter)
            self._hold(course, float(ends.max() - enter.max()))
        for early in course.early:
            self.loop.at(self.loop.now, self._through, course, early)

    def _begin(self, course: Course) -> None:
        """Claim the links of a collective; simulate its transfers if the links are in use."""
        free = self._claim(course.served.links, course)
        course.alone = course.alone and free
        self._courses.append(course)
        if not course.alone and not course.served.as_one:
            course.call = self._prepared(course)

    def _claim(self, links: Ints, course: Course | None = None) -> bool:
        """Claim links for a collective or a message; return whether no other traffic uses them.

        Collectives in progress on these links switch to simulated transfers.
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
        """Switch a collective in progress to simulated transfers."""
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
        """Occupy a collective's links with one flow, of a duration if uncontended [s]."""
        _, bandwidth = self._network.cluster.link_figures(course.served.links)
        narrowest = float(bandwidth.min())
        route = self._links.route(course.served.links, narrowest)
        left = np.array([place for place in range(course.size) if place not in course.done])
        self._links.join(route, seconds * narrowest, self._finish, course, left)

    def _end_as_planned(self, course: Course, places: Ints, now: float) -> None:
        """Finish places at the ends of the vectorised clock, if these are still valid."""
        if course.alone:
            self._finish(course, places, now)

    def _through(self, course: Course, place: int, now: float) -> None:
        """Finish a place after its transfers, once all have entered."""
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
    """Advances a collective, which had exclusive links so far, to an instant."""

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
        """Simulate until an instant [s], and pass the transfers in progress to the stage."""
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
