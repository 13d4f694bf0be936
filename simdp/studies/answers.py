"""Answers: what a single run's result leaves open, each from the same run with one thing changed.

Times alone are simulated, of small clusters or by the vectorised clock, so that a run takes a few
hundredths of a second longer. Points of a sweep go without.
"""

from __future__ import annotations

from typing import Any

from simdp.cluster import Cluster
from simdp.engine.simulate import play, times_alone
from simdp.engine.stopwatch import Stopwatch
from simdp.results.metrics import steady_step_time
from simdp.results.result import Result
from simdp.results.trace import StepEnds, TraceBuilder
from simdp.scenario import Scenario
from simdp.studies.validate.intervals import machine_calibration
from simdp.studies.validate.new_steps import step_interval
from simdp.studies.validate.unmeasured import with_pool

MAX_RANKS = 1024
"""Larger runs are not repeated: their metrics stay None."""

MAX_EVENT_RANK_STEPS = 512
"""Ranks times steps that may be repeated on links which are shared, transfer by transfer."""

INTERVAL_STEPS = 3
"""A step to warm up, and two to see what a constant does to them."""


def complete(scenario: Scenario, result: Result) -> None:
    """Fill in the metrics of a single run that other runs tell.

    Parameters
    ----------
    scenario : Scenario
        One point.
    result : Result
        Gets ``without_stragglers_s`` where it has some, and ``interval_s`` where its machine was
        calibrated, or its collectives are NCCL's by the pool; both seconds, of a steady step.
    """
    if scenario.cluster.world_size > MAX_RANKS or scenario.strategy.player != "together":
        return
    metrics = result.metrics
    if scenario.cluster.stragglers:
        metrics["without_stragglers_s"] = _without_stragglers(scenario)
    metrics["interval_s"] = _interval(scenario, metrics["step_time_s"])


def timed_only(scenario: Scenario, **cluster: Any) -> Scenario:
    """The same run without its numbers, and with another cluster."""
    changed: dict[str, Any] = {"numerics": False}
    if cluster:
        changed["cluster"] = scenario.cluster.model_copy(update=cluster)
    return scenario.model_copy(update=changed)


def _without_stragglers(scenario: Scenario) -> float | None:
    """Time of a steady step without them [s]; None where that would take too long to find."""
    even = timed_only(scenario, stragglers=[])
    found = times_alone(even)
    if found is not None:
        return float(found.metrics["step_time_s"])
    n = scenario.cluster.world_size
    if n * scenario.workload.num_steps(n, scenario.base) > MAX_EVENT_RANK_STEPS:
        return None
    ends = StepEnds(n)
    play(even, TraceBuilder(keep=False, ends=ends))
    return steady_step_time(ends.ends())


def _interval(scenario: Scenario, step_time: float) -> list[float] | None:
    """The 90 % interval of a step, by how well the machine's constants are known [s]."""
    known = with_pool(machine_calibration(scenario.cluster.machine, scenario.base), scenario)
    if not known or not step_time:
        return None
    workload, n = scenario.workload, scenario.cluster.world_size
    steps = min(INTERVAL_STEPS, workload.num_steps(n, scenario.base))
    short = timed_only(scenario).model_copy(
        update={"workload": workload.model_copy(update={"steps": steps, "epochs": None})}
    )
    stopwatch = Stopwatch(short)
    if not stopwatch.repeats and not _is_small(scenario.cluster):
        return None
    time = float(stopwatch.metrics["step_time_s"])
    found = step_interval(stopwatch.metrics, short, known, stopwatch.step_times)
    return [end / time * step_time for end in found]


def _is_small(cluster: Cluster) -> bool:
    return cluster.world_size * INTERVAL_STEPS <= MAX_EVENT_RANK_STEPS
