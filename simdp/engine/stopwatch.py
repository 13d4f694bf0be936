"""Stopwatch: step times of scenarios that differ little from one of them."""

from __future__ import annotations

from simdp.engine.simulate import play
from simdp.results.metrics import steady_step_time, times
from simdp.results.trace import StepEnds, TraceBuilder
from simdp.scenario import Scenario
from simdp.scenario.wiring import wiring_of

NETWORK = {"link": None, "inter_node": None}
"""What collectives know of a cluster, and strategies the bandwidth between nodes."""


class Stopwatch:
    """Times steps; what other scenarios have in common with the first is not worked out again.

    Parameters
    ----------
    scenario : Scenario
        The first, without a sweep and without numerics.

    Attributes
    ----------
    metrics : dict
        Of the first scenario, those of `simdp.results.metrics.times`.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        trace = TraceBuilder()
        run = play(scenario, trace).run
        samples = [record.samples for record in run.numbers.records]
        self.metrics = times(trace.build(), run.world_size, len(samples), samples)
        self._times, self._told = run.times, run.launcher.told

    def step_time(self, other: Scenario) -> float:
        """Simulated time of a steady step of another scenario, to the last bit [s]."""
        if self._runs_alike(other):
            return float(self.metrics["step_time_s"])
        ends = StepEnds(other.cluster.world_size)
        known = self._times if self._computes_alike(other) else None
        play(other, TraceBuilder(keep=False, ends=ends), times=known)
        return steady_step_time(ends.ends())

    def _computes_alike(self, other: Scenario) -> bool:
        """Whether the other one computes the same on the same devices."""
        a, b = self.scenario.cluster, other.cluster
        return self.scenario.workload is other.workload and all(
            getattr(a, key) == getattr(b, key)
            for key in ("world_size", "local_size", "ranks_per_device", "device")
        )

    def _runs_alike(self, other: Scenario) -> bool:
        """Whether the other's network tells the first one's times for all that this asked it.

        Then every collective begins and ends as it did, and so does all that follows.
        """
        a, b = self.scenario, other
        if not (a.collectives.cost.timed and b.collectives.cost.timed):
            return False
        same = {"cluster": None, "collectives": None, "workload": None}
        if a.strategy.one_process:
            return False  # copies between its devices take what links take
        if a.workload is not b.workload or _without(a, same) != _without(b, same):
            return False
        if a.cluster.model_copy(update=NETWORK) != b.cluster.model_copy(update=NETWORK):
            return False
        wiring, cost = wiring_of(b.cluster), b.collectives.cost
        if wiring.inter_bandwidth != wiring_of(a.cluster).inter_bandwidth:
            return False  # a strategy may read this
        return all(cost.seconds(*asked, wiring) == told for asked, told in self._told.items())


def _without(scenario: Scenario, keys: dict[str, None]) -> Scenario:
    return scenario.model_copy(update=keys)
