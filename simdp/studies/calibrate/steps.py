"""Fits the constants of a step to measured steps, and solves one-device steps from larger ones.

`compute: measured` takes the step of one device; but that may include work that one replica does
only when alone, or may be from another time. Any step of several ranks determines it too, since a
simulated step grows with it (`solve_baselines`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import hypot, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from simdp.arrays import Bools, Floats, product
from simdp.engine.recorded_script import Stopwatch
from simdp.errors import ScenarioError, UnitError
from simdp.results.metrics import Baseline
from simdp.scenario.root import Scenario
from simdp.studies.calibrate.fit import Constant, Fit, fit, jacobian
from simdp.studies.intervals import Known, deviation_of, machine_calibration, step_interval
from simdp.studies.validate.jobs import load_measured, with_common_workloads
from simdp.studies.variants import value_at, with_values
from simdp.units import DIMENSIONS, format_quantity, parse
from simdp.workload.compute import FromMeasurements
from simdp.workload.step_costs import time_beside_compute

# Fits to steps ------------------------------------------------------------------------------------

REACH = 30.0  # default bounds of a constant, as a factor around the scenario's value

USUAL = (
    "collectives.cost.efficiency.inter",
    "collectives.cost.hop.inter",
    "collectives.cost.efficiency.intra",
    "collectives.cost.hop.intra",
)
"""Constants that are fitted by default: the first ones, as many as the points allow."""

BETWEEN_NODES = ".inter"

OF_ONE = ":"  # separates the name of a scenario from a key that is fitted for it only


class MeasuredStep(NamedTuple):
    """A measured point of a scenario: its time [s], and whether constants may be fitted to it.

    ``noise`` is the relative scatter of such measurements.
    """

    title: str
    scenario: Scenario
    raw: dict[str, Any]
    seconds: float
    is_calibration: bool
    noise: float = 0.0


class StepsFit(NamedTuple):
    """Fitted constants, the points that they affect, and measured points outside the fit.

    ``slopes``, shape `(num_others, num_constants)`, are the derivatives of log step times by log
    constants at the others.
    """

    fit: Fit
    points: list[MeasuredStep]
    slopes: Floats
    others: list[MeasuredStep]


def fit_steps(paths: Sequence[Path], wanted_keys: Sequence[str] = ()) -> StepsFit:
    """Fit constants to the calibration points of scenarios.

    Parameters
    ----------
    paths : sequence of Path
        Scenarios with ``measured:``, and folders with such; all of one cluster.
    wanted_keys : sequence of str
        Keys of the scenarios, ``collectives.cost.hop.inter``; or with bounds,
        ``cluster.overheads.message=10us:10ms``; or of one scenario only, by its name,
        ``my_bert:workload.host.step=1ms:9ms``. By default those of `USUAL` that the points allow.

    Raises
    ------
    ScenarioError
        If a scenario is wrong, a key does not exist, or there are fewer points than constants.
    """
    steps = measured_steps(paths)
    points = [step for step in steps if step.is_calibration]
    if not points:
        raise ScenarioError(
            "calibrate: no point has role: calibration; set it for the points to fit."
        )
    constants = [_constant(text, points) for text in wanted_keys] or _usual(points)
    keys = [constant.key for constant in constants]
    if len({*keys}) < len(keys):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ScenarioError(f"--fit {twice}: is given twice; keep one.")
    watched = [Watched(point) for point in points]
    reached = np.atleast_1d(reach(watched, constants).any(axis=1))
    used = [point for point, does in zip(watched, reached, strict=True) if does]
    if len(used) < len(constants):
        raise ScenarioError(
            f"calibrate: {len(used)} calibration points depend on the {len(constants)} "
            "constants that are to be fitted; fit fewer, or measure more."
        )
    fit = fit_watched(used, constants)
    others = [step for step in steps if not step.is_calibration]
    slopes = np.zeros((0, len(constants)))
    if others:
        predict = predictor([Watched(step) for step in others], constants)
        slopes = jacobian(predict, fit.values, 0.01)
    return StepsFit(fit, [used_step.step for used_step in used], slopes, others)


class Watched:
    """A measured step, recorded once for fast simulation with other constants."""

    def __init__(self, step: MeasuredStep) -> None:
        self.step, self.stopwatch = step, Stopwatch(step.scenario)

    def with_values(self, values: Mapping[str, object]) -> Scenario:
        """Its scenario with other values at some keys, as in YAML."""
        return with_values(self.step.scenario, self.step.raw, values)


Change = Callable[[Watched, Sequence[Constant], Floats], Scenario]
"""Applies values of constants to a point."""


def in_yaml(point: Watched, constants: Sequence[Constant], values: Floats) -> Scenario:
    """Apply values as they would be written, without those of other scenarios."""
    texts = written(constants, values)
    own = {key.split(OF_ONE)[-1]: texts[key] for key in texts if _is_for(key, point.step)}
    return point.with_values(own)


def reach(
    points: Sequence[Watched], constants: Sequence[Constant], change: Change = in_yaml
) -> Bools:
    """Whether each constant affects each point, `(num_points, num_constants)`."""
    typical = np.array([constant.typical for constant in constants])
    return np.abs(jacobian(predictor(points, constants, change), typical, 0.1)) > 1e-9


def fit_watched(
    points: Sequence[Watched],
    constants: Sequence[Constant],
    change: Change = in_yaml,
    start: Floats | None = None,
) -> Fit:
    """Fit constants to points; arguments as for `fit`."""
    seconds = np.array([point.step.seconds for point in points])
    predict = predictor(points, constants, change)
    return fit(predict, seconds, constants, num_starts=1, start=start, batched=True)


def measured_steps(paths: Sequence[Path]) -> list[MeasuredStep]:
    """List every measured step of some scenarios."""
    steps = []
    for scenario in load_measured(paths).values():
        measured = scenario.measured
        assert measured is not None
        points, _ = scenario.measured_scenarios()
        pairs = zip(measured.points, with_common_workloads(points), strict=True)
        for point, made in pairs:
            settings = ", ".join(
                f"{key.split('.')[-1]}={value}" for key, value in point.set.items()
            )
            samples = made.workload.samples_per_step(made.cluster.world_size)
            seconds, role = point.seconds(samples), point.role
            title = f"{scenario.name}: {settings}"
            fits = role == "calibration"
            steps.append(MeasuredStep(title, made, made.resolved(), seconds, fits, measured.noise))
    return steps


def predictor(
    points: Sequence[Watched], constants: Sequence[Constant], change: Change = in_yaml
) -> Callable[[Floats], Floats]:
    """Make the function from the values of constants to the step times of points.

    Several sets of values, one in each row, give as many rows of times.
    """

    def predict(values: Floats) -> Floats:
        sets = np.atleast_2d(values)
        times = np.array(
            [
                point.stopwatch.step_times([change(point, constants, row) for row in sets])
                for point in points
            ]
        )
        return times[:, 0] if values.ndim == 1 else times.T

    return predict


def written(constants: Sequence[Constant], values: Sequence[float] | Floats) -> dict[str, Any]:
    """Values as in YAML, by key."""
    texts: dict[str, Any] = {}
    for constant, value in zip(constants, values, strict=True):
        rounded = float(f"{value:.12g}")
        dimension = constant.dimension
        texts[constant.key] = format_quantity(rounded, dimension) if dimension else rounded
    return texts


def _is_for(key: str, point: MeasuredStep) -> bool:
    name, of_one, _ = key.partition(OF_ONE)
    return not of_one or name == point.scenario.name


def _constant(text: str, points: Sequence[MeasuredStep]) -> Constant:
    """Read ``KEY`` or ``KEY=LOW:HIGH``, possibly after ``SCENARIO:``."""
    key, equals, bounds = text.partition("=")
    own = [point for point in points if _is_for(key, point)]
    if not own:
        names = ", ".join(dict.fromkeys(point.scenario.name for point in points))
        raise ScenarioError(
            f"--fit {key}: no such scenario has calibration points; known: {names}."
        )
    raw = own[0].raw
    if equals:
        low, colon, high = bounds.partition(":")
        if not colon:
            raise ScenarioError(f"--fit {text}: has no bounds; write {key}=LOW:HIGH.")
        (least, dimension), (most, other) = (read(text, end) for end in (low, high))
        if dimension != other or not 0 < least < most:
            raise ScenarioError(
                f"--fit {text}: {low} and {high} are not bounds; give two, 0 < LOW < HIGH."
            )
        return Constant(key, dimension, sqrt(least * most), least, most, np.log(most / least) / 2)
    value = value_at(raw, key.split(OF_ONE)[-1])
    if value is None or isinstance(value, dict | list | bool):
        raise ScenarioError(
            f"--fit {key}: has no value to start from; give its bounds, {key}=LOW:HIGH."
        )
    start, dimension = read(text, value)
    if start <= 0:
        raise ScenarioError(f"--fit {key}: starts from 0; give its bounds, {key}=LOW:HIGH.")
    return Constant(key, dimension, start, start / REACH, start * REACH, 1.5)


def read(where: str, text: object) -> tuple[float, str | None]:
    """Read a value and its dimension; None for a plain number."""
    for dimension in DIMENSIONS:
        try:
            return parse(text, dimension), dimension
        except UnitError:
            continue
    try:
        return float(str(text)), None
    except (TypeError, ValueError):
        raise ScenarioError(
            f"--fit {where}: {text!r} is neither a quantity nor a number."
        ) from None


def _usual(points: Sequence[MeasuredStep]) -> list[Constant]:
    """Default constants: as many as the points allow, for which they have the links."""
    clusters = [point.scenario.cluster for point in points]
    if not all(point.scenario.collectives.cost.kind == "nccl" for point in points):
        raise ScenarioError(
            "calibrate: no constants are given; name some with --fit, or let "
            "collectives.cost be nccl."
        )
    across = any(cluster.num_nodes > 1 for cluster in clusters)
    inside = any(cluster.local_size > 1 for cluster in clusters)
    keys = [key for key in USUAL if (across if BETWEEN_NODES in key else inside)]
    several = sum(cluster.world_size > 1 for cluster in clusters)
    if several < 1:
        raise ScenarioError("calibrate: no calibration point has more than one rank.")
    return [_constant(_bounded(key), points) for key in keys[: max(several // 2, 1)]]


def _bounded(key: str) -> str:
    """Add bounds to a constant that has several values, or none."""
    if ".efficiency." in key:
        return f"{key}=0.01:1.2"
    return f"{key}=1 us:10 ms"


# Baselines ----------------------------------------------------------------------------------------

CLOSE = 1e-6  # relative error of a solved time

POINTS = "workload.compute.points"


def solve_baselines(
    paths: Sequence[Path], ranks: int | None = None, weigh: bool = False
) -> list[Baseline]:
    """Solve the one-device step of each batch size.

    Parameters
    ----------
    paths : sequence of Path
        Scenarios with ``measured:``, and folders with such.
    ranks : int, optional
        Use the points with this number of ranks; by default the fewest of each batch size, 2 or
        more.
    weigh : bool
        Whether to weigh each against the step by the device's figures.

    Raises
    ------
    ScenarioError
        If a scenario is wrong, its compute is not measured, no point has as many ranks, or one
        takes less time than communication only; with ``weigh``, if a device or a model has no
        roofline.
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
        raise ScenarioError(f"calibrate baseline: no measured step is of {wanted}; measure one.")
    return [_solved(step, weigh) for step in chosen]


def _series(step: MeasuredStep) -> tuple[str, int]:
    return step.scenario.name, step.scenario.workload.microbatch or 0


def _solved(step: MeasuredStep, weigh: bool) -> Baseline:
    scenario, compute = step.scenario, step.scenario.workload.compute
    batch = scenario.workload.microbatch
    if not isinstance(compute, FromMeasurements) or batch is None:
        raise ScenarioError(
            f"{step.title}: compute is not measured; give compute: {{kind: measured, ...}}."
        )
    device = scenario.cluster.devices()[0]
    beside = time_beside_compute(scenario.workload, batch, device)
    given = [p.step_time for p in compute.of_device(device.name) if p.microbatch == batch]

    def at(seconds: float) -> Scenario:
        point = {"microbatch": batch, "step_time": format_quantity(seconds, "time")}
        return with_values(scenario, step.raw, {POINTS: [point]})

    least = beside + CLOSE * step.seconds

    def found(seconds: float) -> float:
        # One device updates all parameters; of a sharded update less is in the step.
        most = seconds + beside
        return _root(lambda x: first.step_times([at(x)])[0] - seconds, least, most)

    first = Stopwatch(at(step.seconds))
    time = found(step.seconds)
    if time <= least:
        raise ScenarioError(
            f"{step.title}: only communication takes longer; calibrate the network first."
        )
    stopwatch = Stopwatch(at(time))
    known = machine_calibration(scenario.cluster.machine, scenario.base)
    low, high = step_interval(stopwatch.metrics, at(time), known, stopwatch.step_times)
    ends = [found(step.seconds * step.seconds / end) for end in (high, low)]
    cluster = scenario.cluster
    where = cluster.world_size, cluster.num_nodes
    baseline = Baseline(scenario.name, batch, *where, given[0] if given else time, time, *ends)
    if not weigh:
        return baseline
    predicted = _by_roofline(step, known)
    roofline = predicted._replace(seconds=found(predicted.seconds))
    mean = weighted_mean([Estimate(time, hypot(deviation_of(*ends), step.noise)), roofline])
    return replace(baseline, by_roofline=roofline.seconds, weighted=mean)


class Estimate(NamedTuple):
    """A time [s], and the standard deviation of its logarithm."""

    seconds: float
    spread: float


def weighted_mean(estimates: Sequence[Estimate]) -> float:
    """Mean of the logarithms of independent estimates, by the inverse of their variances [s].

    The best linear unbiased one (Aitken, "On least squares and linear combination of observations",
    1935). An estimate without a spread is taken as it is.
    """
    exact = [estimate.seconds for estimate in estimates if estimate.spread == 0]
    if exact:
        return exact[0]
    weights = np.array([estimate.spread**-2 for estimate in estimates])
    logs = np.log([estimate.seconds for estimate in estimates])
    return float(np.exp(product(weights, logs) / weights.sum()))


def _by_roofline(step: MeasuredStep, known: Sequence[Known]) -> Estimate:
    """A measured step by the device's figures."""
    scenario = with_values(step.scenario, step.raw, {"workload.compute": "roofline"})
    watch = Stopwatch(scenario)
    low, high = step_interval(watch.metrics, scenario, known, watch.step_times)
    return Estimate(float(watch.metrics.step_time_s), deviation_of(low, high))


def _root(excess: Callable[[float], float], low: float, high: float) -> float:
    """Root of an increasing function between two ends; the lower end where it is positive there."""
    from scipy.optimize import brentq

    if excess(low) > 0:
        return low
    return float(brentq(excess, low, high, rtol=CLOSE, xtol=1e-12))
