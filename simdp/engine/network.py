"""Network: a cluster's routes as arrays, for the connections that plans use."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simdp.cluster import Cluster
from simdp.collectives import Plan

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Connections:
    """Ordered pairs of ranks that exchange chunks, and their routes.

    Attributes
    ----------
    src, dst : ndarray, shape `(num_connections,)`
        Ranks.
    links : ndarray, shape `(num_connections, longest)`
        Link numbers of each route, filled up with -1.
    alpha, bandwidth : ndarray, shape `(num_connections,)`
        Sum of the links' latencies [s]; the narrowest link [bytes/s].
    """

    src: Ints
    dst: Ints
    links: Ints
    alpha: Floats
    bandwidth: Floats


class Network:
    """Routes of one cluster.

    Parameters
    ----------
    cluster : Cluster
        Whose links.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._of_plan: dict[Plan, Connections] = {}

    def connect(self, src: Ints, dst: Ints) -> Connections:
        """Route pairs of ranks; ``src`` and ``dst`` have equal length."""
        links = self.cluster.routes(src, dst)
        alpha, bandwidth = self.cluster.link_figures(links)
        there = links >= 0
        return Connections(
            src,
            dst,
            links,
            np.where(there, alpha, 0.0).sum(axis=1),
            np.where(there, bandwidth, np.inf).min(axis=1, initial=np.inf),
        )

    def of_plan(self, plan: Plan) -> Connections:
        """Connections that a plan uses, each once; of a plan that repeats, as in its rounds."""
        if plan not in self._of_plan:
            self._of_plan[plan] = self._find(plan)
        return self._of_plan[plan]

    def _find(self, plan: Plan) -> Connections:
        n = plan.world_size
        if plan.repeats:
            first = next(plan.rounds(), None)
            if first is not None:
                return self.connect(first.src, first.dst)
        pairs = [np.unique(r.src * n + r.dst) for r in plan.rounds()]
        each = np.unique(np.concatenate(pairs)) if pairs else np.empty(0, dtype=np.int64)
        return self.connect(each // n, each % n)

    def shared_link(self, plans: Iterable[Plan]) -> str | None:
        """Name a link that several connections of the plans use, or None.

        Without such a link no two transfers can be on one link at a time, since those of one
        connection take turns.
        """
        found = [c for c in map(self.of_plan, plans) if len(c.src)]
        if not found:
            return None
        n = self.cluster.world_size
        pairs = np.concatenate([c.src * n + c.dst for c in found])
        longest = max(c.links.shape[1] for c in found)
        links = np.concatenate(
            [
                np.pad(c.links, ((0, 0), (0, longest - c.links.shape[1])), constant_values=-1)
                for c in found
            ]
        )
        _, once = np.unique(pairs, return_index=True)
        used, times = np.unique(links[once][links[once] >= 0], return_counts=True)
        if not (times > 1).any():
            return None
        return self.cluster.link_name(int(used[np.argmax(times)]))
