"""Baselines solved backwards: the one-device step that explains a step of several ranks.

A step that was measured on one device is what `compute: measured` asks for; but it may hold work
that one replica does alone, or was measured at another time. Any step of several ranks tells it
too, since a simulated step grows with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from simdp.engine.simulate import simulate
from simdp.engine.stopwatch import Stopwatch
from simdp.errors import ScenarioError
from simdp.results.baselines import Baseline
from simdp.scenario import Scenario
from simdp.studies.calibrate.steps import MeasuredStep, measured_steps
from simdp.studies.validate.intervals import machine_calibration
from simdp.studies.validate.new_steps import step_interval
from simdp.studies.variants import with_values
from simdp.units import format_quantity
from simdp.workload.compute.measured import FromMeasurements
from simdp.workload.step_costs import time_beside_compute

CLOSE = 1e-6
"""Relative error of a solved time."""

POINTS = "workload.compute.points"


def solve_baselines(paths: Sequence[Path], ranks: int | None = None) -> list[Baseline]:
    """Solve the one-device step of each batch size.

    Parameters
    ----------
    paths : sequence of Path
        Scenarios with ``measured:``, and folders with such in them.
    ranks : int, optional
        From the points of so many ranks; left out, of the fewest that each batch size has, 2 or
        more.

    Raises
    ------
    ScenarioError
        If a scenario is wrong, its compute is not measured, no point has so many ranks, or one
        takes less time than communication alone.
    """
    several = [step for step in measured_steps(paths) if step.scenario.cluster.world_size > 1]
    fewest: dict[tuple[str, int], int] = {}
    for step in several:
        key, n = _series(step), step.scenario.cluster.world_size
        fewest[key] = min(n, fewest.get(key, n))
    chosen = [
        step
        for step in several
        if step.scenario.cluster.world_size == (ranks or fewest[_series(step)])
    ]
    if not chosen:
        wanted = "more than one rank" if ranks is None else f"{ranks} ranks"
        raise ScenarioError([f"calibrate baseline: no measured step is of {wanted}; measure one."])
    return [_solved(step) for step in chosen]


def _series(step: MeasuredStep) -> tuple[str, int]:
    return step.scenario.name, step.scenario.workload.microbatch or 0


def _solved(step: MeasuredStep) -> Baseline:
    scenario, compute = step.scenario, step.scenario.workload.compute
    batch = scenario.workload.microbatch
    if not isinstance(compute, FromMeasurements) or batch is None:
        raise ScenarioError(
            [f"{step.title}: compute is not measured; give compute: {{kind: measured, ...}}."]
        )
    device = scenario.cluster.devices()[0]
    beside = time_beside_compute(scenario.workload, batch, device)
    given = [p.step_time for p in compute.of_device(device.name) if p.microbatch == batch]

    def at(seconds: float) -> Scenario:
        point = {"microbatch": batch, "step_time": format_quantity(seconds, "time")}
        return with_values(scenario, step.raw, {POINTS: [point]})

    least = beside + CLOSE * step.seconds

    def found(seconds: float) -> float:
        return _root(lambda x: simulate(at(x)).metrics["step_time_s"] - seconds, least, seconds)

    time = found(step.seconds)
    if time <= least:
        raise ScenarioError(
            [f"{step.title}: communication alone takes longer; calibrate the network first."]
        )
    stopwatch = Stopwatch(at(time))
    known = machine_calibration(scenario.cluster.machine, scenario.base)
    low, high = step_interval(stopwatch.metrics, at(time), known, stopwatch.step_times)
    ends = [found(step.seconds * step.seconds / end) for end in (high, low)]
    cluster = scenario.cluster
    where = cluster.world_size, cluster.num_nodes
    return Baseline(scenario.name, batch, *where, given[0] if given else time, time, *ends)


def _root(excess: Callable[[float], float], low: float, high: float) -> float:
    """Where a rising function is 0, between two ends; the lower end where it is above 0 there."""
    from scipy.optimize import brentq

    if excess(low) > 0:
        return low
    return float(brentq(excess, low, high, rtol=CLOSE, xtol=1e-12))
