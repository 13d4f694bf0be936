"""Validate: hold simulated times against measured ones, for whole folders of scenarios."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import simdp
from simdp.errors import ScenarioError
from simdp.results.validation import CollectiveComparison, Excluded, StepComparison, Validation
from simdp.scenario import Scenario
from simdp.studies.executor import executor_for
from simdp.studies.kept import Keep, done_in_order
from simdp.studies.store import Store
from simdp.studies.validate.collectives import time_table
from simdp.studies.validate.files import cluster_name, load_measured
from simdp.studies.validate.jobs import Intervals, Job, jobs_of
from simdp.studies.validate.naive import add_linear, same_work
from simdp.studies.validate.steps import time_step
from simdp.studies.validate.work import key_of_job, worthwhile

Progress = Callable[[int, int], None]
Comparisons = tuple[list[StepComparison], list[CollectiveComparison]]

__all__ = ["Progress", "compare", "joined", "validate"]


def validate(
    paths: Sequence[Path],
    *,
    workers: int | None = None,
    scheduler: str | None = None,
    progress: Progress | None = None,
    store: Store | None = None,
    intervals: Intervals = "all",
) -> Validation:
    """Run every point of scenarios that say what a real machine did.

    Parameters
    ----------
    paths : sequence of Path
        Scenarios, and folders with scenarios in them.
    workers : int, optional
        How many processes share the points; the results are the same for any number. Left out, as
        many as there are cores, if there is enough to do.
    scheduler : str, optional
        Address of a Dask scheduler whose workers share them instead.
    progress : callable, optional
        Called with the numbers of points and tables that are done, and of all.
    store : Store, optional
        Where points are written when they are done, and taken from if they are there.
    intervals : {"all", "predicted", "none"}
        Of which points: of others they are empty, which takes a fifth of their time.

    Raises
    ------
    ScenarioError
        If a scenario is wrong, or says nothing that was measured.
    """
    scenarios = load_measured(paths)
    jobs = jobs_of(scenarios)
    if intervals != "all":
        jobs = [job.with_intervals(intervals) for job in jobs]
    points, rows = list[StepComparison](), list[CollectiveComparison]()
    done, total = 0, sum(job.size for job in jobs)
    workers = workers or worthwhile(len(jobs), sum(job.num_runs for job in jobs))
    keep = None if store is None else Keep[Job, Comparisons](store, key_of_job, Comparisons)
    with executor_for(workers, scheduler) as executor:
        results = done_in_order(compare, jobs, executor=executor, keep=keep)
        for job, (steps, table) in zip(jobs, results, strict=True):
            points += steps
            rows += table
            done += job.size
            if progress is not None:
                progress(done, total)
    work = [same_work(point) for one in scenarios.values() for point in one.measured_scenarios()[0]]
    return joined(list(scenarios.values()), add_linear(points, work), rows)


def joined(
    scenarios: Sequence[Scenario],
    points: Sequence[StepComparison],
    rows: Sequence[CollectiveComparison],
) -> Validation:
    """Put what was found of some scenarios together."""
    noise: dict[str, float] = {}
    sources: dict[str, str] = {}
    excluded: list[Excluded] = []
    for scenario in scenarios:
        measured = scenario.measured
        assert measured is not None
        sources[scenario.name] = measured.source
        for point in chain(*scenario.measured_scenarios()):
            cluster = measured.cluster or cluster_name(scenario.name, point)
            noise[cluster] = max(noise.get(cluster, 0.0), measured.noise)
        cluster = measured.cluster or cluster_name(scenario.name, scenario)
        excluded += [
            Excluded(scenario.name, cluster, one.set, one.reason) for one in measured.excluded
        ]
    return Validation(
        simdp.__version__, tuple(points), tuple(rows), noise, sources, tuple(excluded)
    )


def compare(job: Job) -> Comparisons:
    """Simulate a job's points, and hold them against what was measured.

    Raises
    ------
    ScenarioError
        If one cannot be simulated.
    """
    steps, rows = list[StepComparison](), list[CollectiveComparison]()
    place = ""
    try:
        for number, point in enumerate(job.steps, job.first):
            place = f"points.{number}"
            measured = job.measured.points[number]
            steps.append(time_step(job.name, measured, point, job.known_of(measured)))
        if job.table is not None:
            place = f"collectives.{job.first}"
            table = job.measured.collectives[job.first]
            rows += time_table(job.name, table, job.table, job.known, job.first)
    except ScenarioError as error:
        where = f"{job.file}: measured.{place}"
        raise ScenarioError([f"{where}: {line}" for line in error.problems]) from None
    named = job.measured.cluster
    if named is not None:
        steps = [replace(step, cluster=named) for step in steps]
        rows = [replace(row, cluster=named) for row in rows]
    return steps, rows
