"""Times one isolated collective: every rank enters at once, and nothing else runs."""

from __future__ import annotations

from typing import NamedTuple

from simdp.arrays import Ints
from simdp.cluster import Cluster
from simdp.collectives.base import Algorithm
from simdp.engine.choice import Planner, Prediction, is_auto
from simdp.engine.clocks.clock import FIXED_SHARES, clock_for
from simdp.engine.network.traffic import LinkUse, link_use
from simdp.engine.ops import ClockWait, Launch
from simdp.engine.slowdown import Slowdown
from simdp.results.trace import TraceBuilder


class Timing(NamedTuple):
    """Duration and traffic of a collective; ``fabric`` is the clock, and the reason for it."""

    nbytes: float
    seconds: float
    algorithm: Algorithm
    fabric: str
    links: list[LinkUse]


class Bench:
    """Times collectives on one cluster, without its stragglers.

    Parameters
    ----------
    cluster : Cluster
        The cluster.
    groups : ndarray, shape `(num_groups, group size)`, int64, optional
        Process groups that all run the collective at the same time; default: all ranks are one.
    """

    def __init__(self, cluster: Cluster, groups: Ints | None = None) -> None:
        self.planner = Planner(cluster, groups=groups)
        self._nothing_slows = Slowdown(cluster, 0)  # a collective has no compute

    def time(self, requested: Algorithm, nbytes: float, root: int = 0) -> Timing:
        """Time one collective; parameters are those of `Algorithm.plan`."""
        algorithm = self.planner.algorithm(requested, nbytes, root)
        plan = self.planner.plan(algorithm, nbytes, root)
        trace = TraceBuilder()
        clock = clock_for(self.planner.network, [plan], self._nothing_slows, trace)
        clock.play([Launch(0, "collective", 0, plan, nbytes, False), ClockWait((0,))])
        end = float(trace.build().end.max(initial=0.0))
        fixed = clock.fabric == FIXED_SHARES
        _, links = link_use(self.planner.network, {plan: nbytes}, end, estimated=fixed)
        return Timing(nbytes, end, algorithm, f"{clock.fabric} fabric: {clock.why}", links)

    def candidates(self, requested: Algorithm, nbytes: float, root: int = 0) -> list[Prediction]:
        """Predicted duration of each candidate of ``auto``; empty for other algorithms."""
        return self.planner.predict(requested, nbytes, root) if is_auto(requested) else []
