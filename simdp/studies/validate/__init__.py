"""Compares predictions with measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path

from pydantic import TypeAdapter

from simdp.collectives import Algorithm
from simdp.engine import threads
from simdp.engine.collective import Bench
from simdp.errors import ScenarioError
from simdp.results.validation import (
    CollectiveComparison,
    Excluded,
    MemoryComparison,
    NotCompared,
    StepComparison,
    Validation,
)
from simdp.scenario.measured import MeasuredCollective
from simdp.scenario.placement import wiring_of
from simdp.scenario.root import Scenario
from simdp.studies.executor import executor_for
from simdp.studies.intervals import (
    Known,
    collective_interval,
    collective_novelty,
    pairs_of,
    with_pool,
)
from simdp.studies.store import ResultCache, Store, done_in_order, key_of, key_of_all
from simdp.studies.validate.folds import Item
from simdp.studies.validate.jobs import (
    Intervals,
    ValidationGroup,
    ValidScenarios,
    add_linear,
    cluster_name,
    compare_memory,
    jobs_of,
    load_valid,
    not_compared,
    ring_collective_time,
    same_work,
    time_step,
)
from simdp.version import __version__

Clock = Callable[[int], float]


def clock_of(scenario: Scenario, collective: str) -> Clock:
    """Return the function from a collective's size [bytes] to its time [s] in a scenario.

    A ScenarioError if ``collectives.cost`` does not support it.
    """
    cost = scenario.collectives.cost
    if cost.timed:
        wiring = wiring_of(scenario.cluster)
        wrong = cost.problem_with(collective, wiring)
        if wrong is not None:
            raise ScenarioError(f"collectives.cost: {wrong}")
        return lambda nbytes: cost.seconds(collective, nbytes, wiring)
    algorithm = getattr(scenario.collectives, collective, None)
    if not isinstance(algorithm, Algorithm):
        raise ScenarioError(
            f"collectives.cost: {cost.kind} has no algorithm for {collective}; use nccl or table."
        )
    bench = Bench(scenario.cluster)
    return lambda nbytes: bench.time(algorithm, nbytes).seconds


def time_table(
    name: str,
    measured: MeasuredCollective,
    scenario: Scenario,
    known: Sequence[Known],
    number: int,
    pairs: Sequence[tuple[Scenario, Scenario]] | None = None,
) -> list[CollectiveComparison]:
    """Simulate every size of a table, and compare with the measurements.

    ``pairs`` are the scenario with either end of each interval, by default from ``known``. A
    ScenarioError if it cannot be simulated.
    """
    collective, wiring = measured.collective, wiring_of(scenario.cluster)
    clock, known = clock_of(scenario, collective), with_pool(known, scenario)
    pairs = pairs_of(scenario, known) if pairs is None else pairs
    ends = [(clock_of(low, collective), clock_of(high, collective)) for low, high in pairs]
    new = collective_novelty(known, collective, wiring.num_nodes)
    whose = cluster_name(name, scenario), measured.set, wiring.world_size
    rows = []
    for (nbytes, seconds), role in zip(measured.times, measured.roles(), strict=True):
        time = clock(nbytes)
        both = [(a(nbytes), b(nbytes)) for a, b in ends]
        rows.append(
            CollectiveComparison(
                name,
                *whose,
                role,
                seconds,
                time,
                *collective_interval(time, both, known, new, nbytes),
                note=measured.note,
                collective=collective,
                table=number,
                nbytes=nbytes,
                new=new,
                ring=ring_collective_time(collective, nbytes, wiring),
                joined=wiring.joined,
            )
        )
    return rows


# Running a validation -----------------------------------------------------------------------------

WORTH_A_PROCESS = 150  # runs that take about as long as starting a process


def worthwhile(num_jobs: int, num_runs: int) -> int:
    """Number of processes that pay off for some jobs with at most ``num_runs`` runs."""
    return max(1, min(threads.available(), 1 + num_runs // WORTH_A_PROCESS, num_jobs))


def key_of_job(job: ValidationGroup) -> str:
    """Hash a job's inputs."""
    made = [*job.steps, *([] if job.table is None else [job.table]), *job.memory]
    known = [[source.place, source.calibration.model_dump(mode="json")] for source in job.known]
    measured = job.measured.model_dump(mode="json")
    return key_of_all(
        [key_of(source) for source in made],
        "validate",
        job.file,
        job.name,
        job.first,
        measured,
        known,
        job.only_predicted,
    )


def key_of_item(item: Item) -> str:
    """Hash the inputs of a point or a table."""
    measured = item.measured.model_dump(mode="json")
    return key_of(item.made, item.file, item.name, item.number, item.is_table, measured)


Progress = Callable[[int, int], None]
Comparisons = tuple[
    list[StepComparison], list[CollectiveComparison], list[MemoryComparison], list[NotCompared]
]


def validate(
    paths: Sequence[Path],
    *,
    workers: int | None = None,
    scheduler: str | None = None,
    progress: Progress | None = None,
    store: Store | None = None,
    intervals: Intervals = "all",
) -> Validation:
    """Simulate every measured point of some scenarios, and compare.

    Wrong points, and wrong files of a folder, are listed in ``not_compared``.

    Parameters
    ----------
    paths : sequence of Path
        Scenarios, and folders with scenarios.
    workers : int, optional
        Processes that share the points; the results are the same for any number. By default as many
        as there are cores, if that pays off.
    scheduler : str, optional
        Address of a Dask scheduler, to use its workers instead.
    progress : callable, optional
        Called with the number of finished points and tables, and of all.
    store : Store, optional
        Stores finished points and provides those of earlier calls.
    intervals : {"all", "predicted", "none"}
        Points that get intervals; others take a fifth of the time.

    Raises
    ------
    ScenarioError
        If a scenario that is named is wrong or has no measurements, or nothing can be compared.
    """
    loaded = load_valid(paths)
    jobs = jobs_of(loaded.scenarios)
    if intervals != "all":
        jobs = [job.with_intervals(intervals) for job in jobs]
    workers = workers or worthwhile(len(jobs), sum(job.num_runs for job in jobs))
    adapter = TypeAdapter[Comparisons](Comparisons)
    keep = None if store is None else ResultCache(store, key_of_job, adapter)
    with executor_for(workers, scheduler) as executor:
        results = done_in_order(compare, jobs, executor=executor, keep=keep)
        return _gathered(loaded, jobs, results, progress)


def _gathered(
    loaded: ValidScenarios,
    jobs: Sequence[ValidationGroup],
    results: Iterable[Comparisons],
    progress: Progress | None,
) -> Validation:
    """Combine the comparisons of all jobs; a ScenarioError if there are none."""
    points, rows = list[StepComparison](), list[CollectiveComparison]()
    memory, wrong, work = list[MemoryComparison](), loaded.wrong, list[str]()
    steps_of = {str(file): made.measured_scenarios()[0] for file, made in loaded.scenarios.items()}
    done, total = 0, sum(job.size for job in jobs)
    for job, (steps, table, peaks, failed) in zip(jobs, results, strict=True):
        points += steps
        rows += table
        memory += peaks
        wrong += map(loaded.in_file, failed)
        places = {problem.point for problem in failed}
        work += [
            same_work(steps_of[job.file][number])
            for number in range(job.first, job.first + len(job.steps))
            if f"points.{number}" not in places
        ]
        done += job.size
        if progress is not None:
            progress(done, total)
    if not points and not rows and not memory:
        raise ScenarioError([problem.line for problem in wrong])
    validation = joined(list(loaded.scenarios.values()), add_linear(points, work), rows)
    return replace(validation, memory=tuple(memory), not_compared=tuple(wrong))


def joined(
    scenarios: Sequence[Scenario],
    points: Sequence[StepComparison],
    rows: Sequence[CollectiveComparison],
) -> Validation:
    """Combine the comparisons of some scenarios, with noise, sources and excluded points."""
    noise: dict[str, float] = {}
    sources: dict[str, str] = {}
    excluded: list[Excluded] = []
    for scenario in scenarios:
        measured = scenario.measured
        assert measured is not None
        sources[scenario.name] = measured.source
        for point in chain(*scenario.measured_scenarios(), scenario.memory_scenarios()):
            cluster = measured.cluster or cluster_name(scenario.name, point)
            noise[cluster] = max(noise.get(cluster, 0.0), measured.noise)
        cluster = measured.cluster or cluster_name(scenario.name, scenario)
        excluded += [
            Excluded(scenario.name, cluster, left_out.set, left_out.reason)
            for left_out in measured.excluded
        ]
    return Validation(__version__, tuple(points), tuple(rows), noise, sources, tuple(excluded))


def compare(job: ValidationGroup) -> Comparisons:
    """Simulate a job's points, and compare; those that cannot be simulated are listed."""
    steps, rows = list[StepComparison](), list[CollectiveComparison]()
    memory, failed = list[MemoryComparison](), list[NotCompared]()

    @contextmanager
    def at(place: str) -> Iterator[None]:
        try:
            yield
        except ScenarioError as error:
            failed.append(not_compared(job.file, place, error))

    for number, point in enumerate(job.steps, job.first):
        with at(f"points.{number}"):
            measured = job.measured.points[number]
            steps.append(time_step(job.name, measured, point, job.known_of(measured)))
    if job.table is not None:
        with at(f"collectives.{job.first}"):
            table = job.measured.collectives[job.first]
            rows += time_table(job.name, table, job.table, job.known, job.first)
    for number, point in enumerate(job.memory):
        with at(f"memory.{number}"):
            memory.append(compare_memory(job.name, job.measured.memory[number], point))
    named = job.measured.cluster
    if named is not None:
        steps = [replace(step, cluster=named) for step in steps]
        rows = [replace(row, cluster=named) for row in rows]
        memory = [replace(peak, cluster=named) for peak in memory]
    return steps, rows, memory, failed


__all__ = ["Progress", "compare", "joined", "validate"]
