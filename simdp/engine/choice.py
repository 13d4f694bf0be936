"""Chooses the algorithm of a collective for ``auto``."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from simdp.arrays import Ints
from simdp.cluster import Cluster
from simdp.collectives import Layout, Plan
from simdp.collectives.base import Algorithm
from simdp.collectives.plans import in_groups
from simdp.engine.clocks.vector import VectorFabric
from simdp.engine.network import NetworkRoutes
from simdp.engine.network.traffic import shared_link
from simdp.engine.ops import ClockOp, ClockWait, Launch
from simdp.engine.slowdown import Slowdown
from simdp.results.trace import TraceBuilder
from simdp.scenario.placement import among_others, group_layout, layout

MAX_PREDICTED = 500_000
"""Transfers of a candidate above which it is not predicted: some tens of milliseconds."""


MAX_EXACT = 70_000
"""Transfers of a candidate up to which the event fabric predicts it: at most half a second."""


def is_auto(requested: Algorithm) -> bool:
    """Whether the algorithm is to be chosen."""
    return requested.kind == "auto"


class Prediction(NamedTuple):
    """Predicted duration [s] of an isolated collective that every rank enters at once."""

    algorithm: Algorithm
    seconds: float


class Planner:
    """Plans the collectives of a cluster, and chooses between algorithms by their predicted time.

    Parameters
    ----------
    cluster, seed
        The cluster; the scenario's seed, for `NetworkRoutes`.
    network : NetworkRoutes, optional
        The cluster's routes, if it is a part of a larger one.
    groups : ndarray, shape `(num_groups, group size)`, int64, optional
        Process groups that run the same collective at the same time; default: all ranks are one.
        Other ranks take no part.
    """

    def __init__(
        self,
        cluster: Cluster,
        network: NetworkRoutes | None = None,
        groups: Ints | None = None,
        seed: int = 0,
    ) -> None:
        self.cluster, self.groups = cluster, groups
        self.network = network or NetworkRoutes(cluster, seed=seed)
        self.layout: Layout = layout(cluster) if groups is None else group_layout(cluster, groups)
        if network is not None:
            self.layout = among_others(self.layout)
        self._in_groups: dict[Plan, Plan] = {}
        self._idle = Slowdown(cluster, 0)  # a prediction has no compute to slow down
        self._shared: dict[tuple[Algorithm, int], bool] = {}
        self._clocks: dict[tuple[Algorithm, int], VectorFabric] = {}
        self._predictions: dict[tuple[Algorithm, float, int], list[Prediction]] = {}
        self._chosen: dict[tuple[Algorithm, float, int], Algorithm] = {}

    def of_groups(self, groups: Ints) -> Planner:
        """Create a planner for process groups on the same network."""
        return Planner(self.cluster, self.network, groups)

    def algorithm(self, requested: Algorithm, nbytes: float, root: int = 0) -> Algorithm:
        """The algorithm of a size: the given one, or for ``auto`` the fastest candidate."""
        if not is_auto(requested):
            return requested
        key = (requested, nbytes, root)
        if key not in self._chosen:
            self._chosen[key] = min(self.predict(requested, nbytes, root), key=_seconds).algorithm
        return self._chosen[key]

    def chosen(self) -> dict[str, list[dict[str, Any]]]:
        """Choices of ``auto`` by collective.

        Each is a list of dicts: ``nbytes``, the smallest requested size with this ``algorithm``,
        which also applies to sizes up to the next entry.
        """
        choices: dict[str, list[dict[str, Any]]] = {}
        for (requested, nbytes, _), algorithm in sorted(self._chosen.items(), key=_size):
            entries = choices.setdefault(requested.collective, [])
            if not entries or entries[-1]["algorithm"] != algorithm.kind:
                entries.append({"nbytes": nbytes, "algorithm": algorithm.kind})
        return choices

    def plan(self, requested: Algorithm, nbytes: float, root: int = 0) -> Plan:
        """Plan a collective; see `Algorithm.plan`."""
        return self._planned(self.algorithm(requested, nbytes, root), nbytes, root)

    def _planned(self, algorithm: Algorithm, nbytes: float, root: int) -> Plan:
        plan = algorithm.plan(self.layout, nbytes, root)
        if self.groups is None:
            return plan
        if plan not in self._in_groups:
            self._in_groups[plan] = in_groups(plan, self.groups, self.cluster.world_size)
        return self._in_groups[plan]

    def seconds(self, requested: Algorithm, nbytes: float, root: int = 0) -> float:
        """Predict an isolated collective that every rank enters at once [s]."""
        algorithm = self.algorithm(requested, nbytes, root)
        return self._predicted(algorithm, self._planned(algorithm, nbytes, root), nbytes, root)

    def predict(self, requested: Algorithm, nbytes: float, root: int = 0) -> list[Prediction]:
        """Predict every candidate that supports the cluster.

        A candidate with shared links and more than `MAX_EXACT` transfers gets even shares of links,
        as equal ranks do. One of more than `MAX_PREDICTED` transfers is skipped unless there is no
        other.
        """
        from simdp.collectives.auto import Auto

        assert isinstance(requested, Auto), "only `auto` leaves a choice"
        key = (requested, nbytes, root)
        if key not in self._predictions:
            plans = [(a, self._planned(a, nbytes, root)) for a in requested.fitting(self.layout)]
            short = [(a, plan) for a, plan in plans if _length(plan) <= MAX_PREDICTED]
            self._predictions[key] = [
                Prediction(algorithm, self._predicted(algorithm, plan, nbytes, root))
                for algorithm, plan in short or plans
            ]
        return self._predictions[key]

    def _predicted(self, algorithm: Algorithm, plan: Plan, nbytes: float, root: int) -> float:
        key = (algorithm, root)
        if key not in self._shared:
            self._shared[key] = shared_link(self.network, [plan]) is not None
        if self._shared[key] and plan.num_transfers <= MAX_EXACT:
            return self._by_events(plan, nbytes)
        if key not in self._clocks:
            fixed = self._shared[key]
            self._clocks[key] = VectorFabric(self.network, self._idle, TraceBuilder(), fixed)
        enter = np.zeros(self.cluster.world_size)
        return float(self._clocks[key].times(plan, nbytes, enter).max())

    def _by_events(self, plan: Plan, nbytes: float) -> float:
        from simdp.engine.clocks.event import EventFabric  # and SimPy with it
        from simdp.engine.clocks.transfers import FabricJob

        job = FabricJob(self.network, {0: [plan]}, self._idle, TraceBuilder(keep=False))
        script: list[ClockOp] = [Launch(0, "prediction", 0, plan, nbytes, False), ClockWait((0,))]
        EventFabric([job]).play([iter(script)])
        return max(job.calls[0].end.values())


def _length(plan: Plan) -> int:
    """Transfers of a plan; rings and chains count 0, since they have closed forms."""
    return sum(
        len(part.members) * part.plan.num_transfers
        for part in plan.everything
        if part.plan.order not in ("ring", "chain")
    )


def _size(chosen: tuple[tuple[Algorithm, float, int], Algorithm]) -> tuple[str, float, int]:
    (requested, nbytes, root), _ = chosen
    return requested.collective, nbytes, root


def _seconds(prediction: Prediction) -> float:
    return prediction.seconds
