"""Steps: the simulated step time of a measured point, with its interval."""

from __future__ import annotations

from collections.abc import Sequence

from simdp.engine.stopwatch import Stopwatch
from simdp.results.validation import StepComparison
from simdp.scenario import Scenario
from simdp.scenario.measured import MeasuredPoint
from simdp.scenario.wiring import wiring_of
from simdp.studies.validate.files import cluster_name
from simdp.studies.validate.intervals import Known
from simdp.studies.validate.naive import ring_step_time
from simdp.studies.validate.new_steps import new_of, step_interval
from simdp.studies.validate.unmeasured import with_pool

STEPS = 2
"""A step to warm up and one to measure, where the scenario does not say how many."""


def shortened(point: Scenario) -> Scenario:
    """The same point with as few steps as it takes to time one, unless it says how many."""
    if point.workload.steps is not None:
        return point
    workload = point.workload.model_copy(update={"steps": STEPS, "epochs": None})
    return point.model_copy(update={"workload": workload})


def time_step(
    name: str,
    measured: MeasuredPoint,
    point: Scenario,
    known: Sequence[Known],
    stopwatch: Stopwatch | None = None,
) -> StepComparison:
    """Simulate a point, and hold it against what was measured.

    Parameters
    ----------
    name : str
        Of the scenario that the point belongs to.
    measured : MeasuredPoint
        What a real machine did.
    point : Scenario
        The point; `shortened`.
    known : sequence of Known
        How well its constants are.
    stopwatch : Stopwatch, optional
        Of the point, where there is one already.

    Raises
    ------
    ScenarioError
        If it cannot be simulated.
    """
    stopwatch = stopwatch or Stopwatch(point)
    metrics = stopwatch.metrics
    time = float(metrics["step_time_s"])
    low, high = step_interval(metrics, point, known, stopwatch.step_times)
    n = point.cluster.world_size
    samples = metrics["throughput_samples_per_s"] * time
    return StepComparison(
        scenario=name,
        cluster=cluster_name(name, point),
        set=measured.set,
        world_size=n,
        role=measured.role,
        measured=measured.seconds(samples),
        simulated=time,
        low=low,
        high=high,
        note=measured.note,
        samples=samples,
        linear=None,
        ring=ring_step_time(point, metrics["compute_s"] + metrics["update_s"]),
        new=new_of(point, with_pool(known, point)),
        exposed_measured=measured.exposed_sync,
        exposed_simulated=float(metrics["exposed_comm_s"] + metrics["wait_s"]),
        joined=wiring_of(point.cluster).joined,
    )
