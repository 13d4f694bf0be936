"""Simulates every point of a scenario's sweep, in one or many processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypedDict, Unpack

from simdp.arrays import grouped
from simdp.engine.clocks.clock import Fabric
from simdp.engine.clocks.vector import FINE_RANKS
from simdp.engine.compute.call_times import compute_parts
from simdp.engine.outcome import peak_flops
from simdp.engine.simulate import simulate, trace_of_run
from simdp.engine.state import State
from simdp.errors import ScenarioError
from simdp.keys import format_settings
from simdp.results.comparison import best_of
from simdp.results.metrics import scaling_efficiency
from simdp.results.result import FailedPoint, Result, Study
from simdp.results.trace import TraceToCome
from simdp.scenario.loading import of as scenario_of
from simdp.scenario.remarks import remarks
from simdp.scenario.root import Scenario
from simdp.studies.answers import MAX_RANKS, complete, lost_to, step_time_with
from simdp.studies.executor import Failed, executor_for
from simdp.studies.many import shared_first, simulate_all
from simdp.studies.store import Store
from simdp.version import __version__

Progress = Callable[[int, int], None]

Point = tuple[dict[str, Any], Scenario]

MAX_TRACES = 4
"""Most points of a sweep whose traces are all kept, as many as a picture shows; else only the last
one's is."""

MAX_INTERVALS = 64
"""Most points of a sweep whose intervals may need further runs. In larger sweeps only points of the
vectorised clock have an interval, which takes a fraction of their time."""


class _RunPart(TypedDict, total=False):
    """Arguments of `simulate` for a part of a run."""

    stop_after: int | None
    resume: State | None
    keep_state: bool


def sweep(
    scenario: Scenario | str | os.PathLike[str],
    *,
    workers: int = 1,
    scheduler: str | None = None,
    fabric: Fabric = "auto",
    progress: Progress | None = None,
    store: Store | None = None,
    **part: Unpack[_RunPart],
) -> Study:
    """Simulate every point of a scenario's sweep; one point if it has none.

    Parameters
    ----------
    scenario : Scenario, or path-like
        With or without a sweep; a path or a name is read as by `simdp.simulate`.
    workers : int
        Processes that share the points; the results are the same for any number.
    scheduler : str, optional
        Address of a Dask scheduler, to use its workers instead.
    progress : callable, optional
        Called with the number of finished points and of all; for a single run, of steps.
    store : Store, optional
        Stores finished points of a sweep and provides those of earlier calls.
    fabric, **part
        As for `simulate`; ``stop_after``, ``resume`` and ``keep_state`` only without a sweep.

    Returns
    -------
    Study
        The points in the order of the grid; those of a sweep without weights, and without traces
        but the last one's, or those of up to `MAX_TRACES` points of one world size. A single run
        also has the metrics of `simdp.studies.answers`. Points that fail are in ``failed``.

    Raises
    ------
    ValueError
        If ``workers < 1``, or a sweep is to stop or resume.
    ScenarioError
        If no scheduler answers, or all points fail.
    """
    scenario = scenario_of(scenario)
    if part and scenario.sweep:
        several_runs = "a sweep has many runs; stop and resume them one by one"
        raise ValueError(f"{next(iter(part))}: {several_runs}")
    study = Study(__version__, scenario.resolved())
    with executor_for(workers, scheduler) as executor:
        if scenario.sweep:
            points = scenario.points()
            alone, keep = [point for _, point in points], _traces(points)
            several: dict[str, Any] = {"executor": executor, "store": store, "progress": progress}
            several["interval"] = "any" if len(alone) <= MAX_INTERVALS else "cheap"
            _fill(study, points, simulate_all(alone, fabric=fabric, keep_trace=keep, **several))
        else:
            study.points = [_alone(scenario, fabric, progress, part)]
    _compare(scenario, study.points)
    if scenario.sweep:
        _charge_stragglers(study, points)
        _remark(scenario, study, points)
    return study


def _charge_stragglers(study: Study, points: Sequence[Point]) -> None:
    """Fill in the cost of each straggler at the best point of a sweep and at the last one."""
    best = best_of([point.metrics for point in study.points])
    for number in dict.fromkeys([best or 0, len(study.points) - 1]):
        result = study.points[number]
        scenario = next(swept for chosen, swept in points if chosen == result.set)
        small = scenario.cluster.world_size <= MAX_RANKS
        if scenario.cluster.stragglers and small and not scenario.strategy.has_server:
            even = step_time_with(scenario, [])
            result.lost = lost_to(scenario, result.metrics, even)


def _remark(scenario: Scenario, study: Study, points: Sequence[Point]) -> None:
    """Remark on the calibration of points, which do not have the scenario's measurements."""
    for result in study.points if scenario.measured is not None else ():
        point = next(swept for chosen, swept in points if chosen == result.set)
        with_measured = point.model_copy(update={"measured": scenario.measured})
        result.remarks["calibration"] = remarks(with_measured)["calibration"]


def _traces(points: Sequence[Point]) -> list[bool | None]:
    """Whether each point's trace is kept (True), made on demand (None) or left out (False)."""
    last = len(points) - 1
    sizes = {point.cluster.world_size for _, point in points}
    few = last < MAX_TRACES and len(sizes) == 1 and max(sizes) <= FINE_RANKS
    return [True if number == last else None if few else False for number in range(len(points))]


def _fill(study: Study, points: Sequence[Point], outcomes: Sequence[Result | Failed]) -> None:
    """Fill in the points of a study; the last result always has a trace."""
    failures = []
    for number, ((chosen, _), outcome) in enumerate(zip(points, outcomes, strict=True)):
        if isinstance(outcome, Failed):
            failures.append(outcome)
            study.failed.append(FailedPoint(number, chosen, outcome.problems, outcome.exit_status))
        else:
            outcome.set = chosen
            study.points.append(outcome)
            last = points[number][1]
    if not study.points:
        raise _why_all_failed(study.failed, failures)
    if study.points[-1].trace is None:
        study.points[-1].trace = TraceToCome(partial(trace_of_run, last))


def _why_all_failed(points: Sequence[FailedPoint], failures: Sequence[Failed]) -> Exception:
    """Combine the problems of all points, shared ones once; an unexpected error is unchanged."""
    error = failures[0].error
    if len(failures) == 1 or not isinstance(error, ScenarioError):
        return error
    labelled = [(format_settings(point.set), point.problems) for point in points]
    return ScenarioError(shared_first(labelled))


def _alone(scenario: Scenario, fabric: Fabric, progress: Progress | None, part: _RunPart) -> Result:
    step = None
    if progress is not None:
        total = scenario.workload.num_steps(scenario.cluster.world_size, scenario.base)
        step = partial(_report, progress, total)
    result = simulate(scenario, fabric=fabric, progress=step, keep_trace=True, **part)
    compute = result.metrics.compute_s
    result.compute_parts = compute_parts(scenario, compute, peak_flops(scenario))
    if part.get("stop_after") is None:
        complete(scenario, result)
    return result


def _report(progress: Progress, total: int, done: int) -> None:
    progress(done, total)


def _compare(scenario: Scenario, results: list[Result]) -> None:
    """Fill in the scaling efficiency, among points that differ in the world size only."""
    if "cluster.world_size" not in scenario.sweep:
        return
    rests = [{k: v for k, v in point.set.items() if k != "cluster.world_size"} for point in results]
    for group in grouped(zip(map(repr, rests), results, strict=True)).values():
        values = scaling_efficiency([(result.world_size, result.metrics) for result in group])
        for result, value in zip(group, values, strict=True):
            result.metrics = replace(result.metrics, scaling_efficiency=value)
