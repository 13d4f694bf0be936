"""Sweep: simulate every point of a scenario, in this process or in several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import simdp
from simdp.engine import threads
from simdp.engine.clocks.clock import Fabric
from simdp.engine.clocks.vector import FINE_RANKS
from simdp.engine.simulate import simulate
from simdp.results.metrics import scaling_efficiency
from simdp.results.result import Result, Study
from simdp.scenario import Scenario
from simdp.studies.answers import complete
from simdp.studies.points import Points

Progress = Callable[[int, int], None]

Job = tuple[Scenario, bool | None, Fabric, Points | None]
"""A point, whether its trace is kept, the clock that was asked for, and where it is kept."""

MAX_TRACES = 4
"""Points whose traces a sweep keeps, all of them or the last one's: so many a picture lays side by
side. Those of other world sizes it does not."""


def sweep(
    scenario: Scenario,
    *,
    processes: int = 1,
    fabric: Fabric = "auto",
    progress: Progress | None = None,
    kept: Points | None = None,
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
    kept : Points, optional
        Where each point of a sweep is written when it is done, and taken from if it is there.
    fabric, **part
        As for `simulate`; of a part ``stop_after``, ``resume`` and ``keep_state``, not for a sweep.

    Returns
    -------
    Study
        The points in the order of the grid; of a sweep without weights, and without traces but
        the last one's, or those of up to `MAX_TRACES` points of one world size. A single run also
        has the metrics of `simdp.studies.answers`.

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
    sizes = {point.cluster.world_size for _, point in points}
    few = last < MAX_TRACES and len(sizes) == 1 and max(sizes) <= FINE_RANKS
    # Others than the last one's are made when they are looked at, where there are no numbers.
    traces = [True if number == last else None if few else False for number in range(len(points))]
    jobs = [(point, keep, fabric, kept) for (_, point), keep in zip(points, traces, strict=True)]
    if not scenario.sweep:
        results = [_alone(scenario, fabric, progress, part)]
    else:
        results = _each(jobs, processes, progress)
    for result, (chosen, _) in zip(results, points, strict=True):
        result.set = chosen
    _remark(scenario, results)
    _compare(scenario, results)
    return Study(simdp.__version__, scenario.resolved(), results)


def _each(jobs: list[Job], processes: int, progress: Progress | None) -> list[Result]:
    """Take every point that is there, and play the others."""
    if processes == 1:
        return [_taken(*job) or _play(*job, number, progress) for number, job in enumerate(jobs)]
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    context = multiprocessing.get_context("spawn")  # each process counts its BLAS threads anew
    share = max(1, threads.available() // processes)
    there = [_taken(*job) for job in jobs]
    waiting = [job for job, found in zip(jobs, there, strict=True) if found is None]
    with ProcessPoolExecutor(
        processes, mp_context=context, initializer=threads.limit, initargs=(share,)
    ) as pool:
        played = pool.map(_play, *zip(*waiting, strict=True)) if waiting else iter(())
        return [next(played) if found is None else found for found in there]


def _taken(
    point: Scenario, keep_trace: bool | None, fabric: Fabric, kept: Points | None
) -> Result | None:
    """A point that is done already."""
    return kept.load(point, fabric, keep_trace is not False) if kept is not None else None


def _play(
    point: Scenario,
    keep_trace: bool | None,
    fabric: Fabric,
    kept: Points | None,
    number: int = 0,
    progress: Progress | None = None,
) -> Result:
    step = (lambda done: progress(number, done)) if progress else None
    result = simulate(point, fabric=fabric, progress=step, keep_trace=keep_trace)
    result.replicas = None
    if keep_trace is False:
        result.trace = None
    if kept is not None:
        kept.save(point, result, fabric)  # here, so that a process that is stopped loses none
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
