"""Sweep: simulate every point of a scenario, in this process or in several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import simdp
from simdp.engine import threads
from simdp.engine.clocks.clock import Fabric
from simdp.engine.simulate import simulate
from simdp.results.metrics import scaling_efficiency
from simdp.results.result import Result, Study
from simdp.scenario import Scenario
from simdp.studies.answers import complete

Progress = Callable[[int, int], None]


def sweep(
    scenario: Scenario,
    *,
    processes: int = 1,
    fabric: Fabric = "auto",
    progress: Progress | None = None,
    **part: Any,
) -> Study:
    """Simulate every point of a scenario's sweep; one point if it has none.

    Parameters
    ----------
    scenario : Scenario
        With or without a sweep.
    processes : int
        How many processes share the points; the results are the same for any number.
    progress : callable, optional
        Called with the number of a point, from 0, and of its finished steps; in one process only.
    fabric, **part
        As for `simulate`; of a part ``stop_after``, ``resume`` and ``keep_state``, not for a sweep.

    Returns
    -------
    Study
        The points in the order of the grid; of a sweep without weights, and traces but the last.
        A single run also has the metrics of `simdp.studies.answers`.

    Raises
    ------
    ValueError
        If ``processes < 1``, or a sweep is to stop or to go on.
    """
    if part and scenario.sweep:
        raise ValueError(
            f"{next(iter(part))}: a sweep has many runs; stop and resume them one by one"
        )
    if processes < 1:
        raise ValueError(f"processes must be >= 1, got {processes}")
    points = scenario.points()
    last = len(points) - 1
    jobs = [(point, number == last, fabric) for number, (_, point) in enumerate(points)]
    if not scenario.sweep:
        results = [_alone(scenario, fabric, progress, part)]
    elif processes == 1:
        results = [_play(*job, number, progress) for number, job in enumerate(jobs)]
    else:
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor

        context = multiprocessing.get_context("spawn")  # each process counts its BLAS threads anew
        share = max(1, threads.available() // processes)
        with ProcessPoolExecutor(
            processes, mp_context=context, initializer=threads.limit, initargs=(share,)
        ) as pool:
            results = list(pool.map(_play, *zip(*jobs, strict=True)))
    for result, (chosen, _) in zip(results, points, strict=True):
        result.set = chosen
    _remark(scenario, results)
    _compare(scenario, results)
    return Study(simdp.__version__, scenario.resolved(), results)


def _play(
    point: Scenario,
    keep_trace: bool,
    fabric: Fabric,
    number: int = 0,
    progress: Progress | None = None,
) -> Result:
    step = (lambda done: progress(number, done)) if progress else None
    result = simulate(point, fabric=fabric, progress=step, keep_trace=keep_trace)
    result.replicas = None
    if not keep_trace:
        result.trace = None
    return result


def _alone(
    scenario: Scenario, fabric: Fabric, progress: Progress | None, part: dict[str, Any]
) -> Result:
    step = (lambda done: progress(0, done)) if progress else None
    result = simulate(scenario, fabric=fabric, progress=step, keep_trace=True, **part)
    if not part:
        complete(scenario, result)
    return result


def _remark(scenario: Scenario, results: list[Result]) -> None:
    """Say of every point where the scenario's own measurements stand behind its constants."""
    there = scenario.measured.points if scenario.measured else []
    if any(point.role == "calibration" for point in there):
        for result in results:
            result.remarks["calibration"] = "by what the scenario itself says was measured"


def _compare(scenario: Scenario, results: list[Result]) -> None:
    """Fill in the scaling efficiency, among points that differ in nothing but the world size."""
    if "cluster.world_size" not in scenario.sweep:
        return
    groups: dict[str, list[Result]] = {}
    for result in results:
        rest = {k: v for k, v in result.set.items() if k != "cluster.world_size"}
        groups.setdefault(repr(rest), []).append(result)
    for group in groups.values():
        values = scaling_efficiency([(result.world_size, result.metrics) for result in group])
        for result, value in zip(group, values, strict=True):
            result.metrics["scaling_efficiency"] = value
