"""Timing: what a collective of a process group takes, and which links it uses.

The same as in a scenario: the transfers of the algorithm's plan over the cluster's links; or the
cluster's formula or table, where it has one. Where transfers share links among themselves, and are
too many to be played, fixed shares tell what it takes, as in `simdp.engine.collective`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simdp.arrays import Floats, Ints
from simdp.cluster import Cluster
from simdp.collectives import Collectives, Plan, Wiring
from simdp.engine.choice import Planner
from simdp.engine.clocks.clock import MAX_EVENT_TRANSFERS
from simdp.engine.clocks.vector import VectorFabric
from simdp.engine.network.sharing import shared_link
from simdp.engine.slowdown import Slowdown
from simdp.errors import ProgramError
from simdp.results.trace import TraceBuilder
from simdp.scenario.wiring import wiring_of


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
