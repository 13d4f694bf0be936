"""Conditions: which links are degraded in which step, where that comes and goes."""

from __future__ import annotations

from simdp.cluster import Cluster
from simdp.cluster.stragglers.degraded_link import DegradedLink
from simdp.rng import stream

Active = tuple[bool, ...]
"""Which of the degraded links that come and go are degraded."""


class Conditions:
    """The conditions that a cluster's links go through.

    Parameters
    ----------
    cluster : Cluster
        Whose stragglers.
    seed : int
        Of the scenario; it draws where flapping begins.
    """

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self._cluster = cluster
        self._changing = [
            (one, float(stream(seed, "straggler", number, "lasting").random()))
            for number, one in enumerate(cluster.stragglers)
            if isinstance(one, DegradedLink) and one.comes_and_goes()
        ]

    def active(self, step: int) -> Active:
        """Which are degraded in a step; empty where none of them ever changes, or none is."""
        found = tuple(one.is_on(step, phase) for one, phase in self._changing)
        return found if any(found) else ()

    def cluster(self, active: Active) -> Cluster:
        """The cluster in which some of them are degraded at all times, and the others never."""
        changing = [one for one, _ in self._changing]
        kept = [one for one in self._cluster.stragglers if one not in changing]
        now = [one.made_lasting() for one, on in zip(changing, active, strict=True) if on]
        return self._cluster.model_copy(update={"stragglers": [*kept, *now]})
