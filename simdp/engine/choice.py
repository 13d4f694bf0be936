"""Choice: which algorithm serves a collective, where the scenario leaves it to us (``auto``)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from simdp.cluster import Cluster
from simdp.collectives import Layout, Plan
from simdp.collectives.auto import Auto
from simdp.collectives.base import Algorithm
from simdp.engine.fabrics.vector import VectorFabric
from simdp.engine.network import Network
from simdp.engine.sharing import shared_link
from simdp.engine.slowdown import Slowdown
from simdp.placement import among_others, layout
from simdp.results.trace import TraceBuilder

MAX_PREDICTED = 500_000
"""Transfers of a candidate; its prediction then takes some tens of milliseconds."""


class Prediction(NamedTuple):
    """What a candidate would take if every rank entered at once, and nothing else was under way.

    Attributes
    ----------
    algorithm : Algorithm
        The candidate.
    seconds : float
        Until the last rank is done [s].
    """

    algorithm: Algorithm
    seconds: float


class Planner:
    """Plans the collectives of a cluster, and chooses between algorithms by their predicted time.

    Parameters
    ----------
    cluster : Cluster
        Where.
    network : Network, optional
        Its routes, where it is a part of a larger cluster.

    Attributes
    ----------
    layout : Layout
        What algorithms see of the cluster.
    network : Network
        Routes.
    """

    def __init__(self, cluster: Cluster, network: Network | None = None) -> None:
        self.cluster = cluster
        self.network = network or Network(cluster)
        self.layout: Layout = layout(cluster)
        if network is not None:
            self.layout = among_others(self.layout)
        self._clocks: dict[tuple[Algorithm, int], VectorFabric] = {}
        self._chosen: dict[tuple[Algorithm, float, int], Algorithm] = {}

    def algorithm(self, asked: Algorithm, nbytes: float, root: int = 0) -> Algorithm:
        """The algorithm that serves a size: the one asked for, or the fastest candidate."""
        if not isinstance(asked, Auto):
            return asked
        key = (asked, nbytes, root)
        if key not in self._chosen:
            self._chosen[key] = min(self.predict(asked, nbytes, root), key=_seconds).algorithm
        return self._chosen[key]

    def chosen(self) -> dict[str, list[dict[str, Any]]]:
        """What ``auto`` was resolved to: of each collective, by size; equal neighbours once.

        Returns
        -------
        dict of str to list of dict
            ``nbytes``, the smallest size of those asked for that is served by ``algorithm``, and
            by it up to the next entry.
        """
        found: dict[str, list[dict[str, Any]]] = {}
        for (asked, nbytes, _), algorithm in sorted(self._chosen.items(), key=_size):
            entries = found.setdefault(asked.collective, [])
            if not entries or entries[-1]["algorithm"] != algorithm.kind:
                entries.append({"nbytes": nbytes, "algorithm": algorithm.kind})
        return found

    def plan(self, asked: Algorithm, nbytes: float, root: int = 0) -> Plan:
        """Plan a collective; see `Algorithm.plan`."""
        return self.algorithm(asked, nbytes, root).plan(self.layout, nbytes, root)

    def predict(self, asked: Auto, nbytes: float, root: int = 0) -> list[Prediction]:
        """Predict every candidate that can serve the cluster.

        Links that are shared are shared evenly, which is what equal ranks do to them. A candidate
        of more than `MAX_PREDICTED` transfers is passed over unless there is no other.
        """
        plans = [(a, a.plan(self.layout, nbytes, root)) for a in asked.fitting(self.layout)]
        short = [(a, plan) for a, plan in plans if _length(plan) <= MAX_PREDICTED]
        return [
            Prediction(algorithm, self._predicted(algorithm, plan, nbytes, root))
            for algorithm, plan in short or plans
        ]

    def _predicted(self, algorithm: Algorithm, plan: Plan, nbytes: float, root: int) -> float:
        key = (algorithm, root)
        if key not in self._clocks:
            fixed = shared_link(self.network, [plan]) is not None
            slowdown = Slowdown(self.cluster, 0)
            self._clocks[key] = VectorFabric(self.network, slowdown, TraceBuilder(), fixed)
        enter = np.zeros(self.layout.world_size)
        return float(self._clocks[key].times(plan, nbytes, enter).max())


def _length(plan: Plan) -> int:
    """Transfers of a plan; those of rings and chains count for nothing, for their closed forms."""
    return sum(
        len(part.members) * part.plan.num_transfers
        for part in plan.everything
        if part.plan.order not in ("ring", "chain")
    )


def _size(chosen: tuple[tuple[Algorithm, float, int], Algorithm]) -> tuple[str, float, int]:
    (asked, nbytes, root), _ = chosen
    return asked.collective, nbytes, root


def _seconds(prediction: Prediction) -> float:
    return prediction.seconds
