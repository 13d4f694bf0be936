"""Leave out: what was measured, predicted by constants that were fitted without it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from simdp.collectives.costs.nccl import NcclCost
from simdp.errors import ScenarioError
from simdp.results.left_out import LeftOut, Place
from simdp.results.validation import CollectiveComparison, StepComparison
from simdp.scenario import Scenario
from simdp.studies.calibrate.steps import MeasuredStep, Watched
from simdp.studies.executor import executor_for
from simdp.studies.kept import Keep, done_in_order
from simdp.studies.store import Store, key_of_all
from simdp.studies.validate import Progress, joined
from simdp.studies.validate.collectives import time_table
from simdp.studies.validate.files import load_measured
from simdp.studies.validate.folds import By, Fold, Item, folds_of, items_of
from simdp.studies.validate.intervals import (
    OWN,
    Known,
    interval_of_pairs,
    machine_calibration,
    pairs_of,
)
from simdp.studies.validate.jobs import MAX_POINTS
from simdp.studies.validate.naive import add_linear, same_work
from simdp.studies.validate.new_steps import exposed_part, further, name_of, what_is_new
from simdp.studies.validate.novelty import widened
from simdp.studies.validate.refit import (
    Numbers,
    Refitted,
    bare_cost,
    fitting_tables,
    refit_tables,
)
from simdp.studies.validate.refit_steps import Intake, refit_steps
from simdp.studies.validate.steps import time_step
from simdp.studies.validate.work import key_of_item, worthwhile
from simdp.studies.variants import with_numbers

MAX_WATCHED = 192
"""Points that a process keeps, since several folds of a cluster are fitted to them."""

WATCHED: OrderedDict[tuple[str, bool, int], Watched] = OrderedDict()
"""These points; no part of any result."""

Rows = tuple[list[tuple[StepComparison, Place]], list[tuple[CollectiveComparison, Place]]]


class FoldJob(NamedTuple):
    """Points and tables of one fold; or some that are in none.

    Attributes
    ----------
    fold : Fold
        Its ``remaining`` is empty where a whole cluster is left out, and where nothing is.
    by : str or None
        None where nothing is left out.
    noise : float
        Of the cluster's measurements.
    """

    fold: Fold
    by: By | None
    noise: float

    @property
    def size(self) -> int:
        """Number of points and tables."""
        return len(self.fold.left_out)

    @property
    def num_runs(self) -> int:
        """About how many runs it takes."""
        steps = [item for item in self.fold.left_out if not item.is_table]
        return 3 * len(steps) + len(_fitting(self.fold.remaining))


def leave_out(
    paths: Sequence[Path],
    by: By,
    *,
    workers: int | None = None,
    scheduler: str | None = None,
    progress: Progress | None = None,
    store: Store | None = None,
) -> LeftOut:
    """Predict every point of scenarios by constants that were fitted without what it belongs to.

    Parameters
    ----------
    paths, workers, scheduler, progress, store
        As for `simdp.studies.validate.validate`.
    by : {"model", "nodes", "collective", "cluster"}
        What is left out together; see `simdp.studies.validate.folds.folds_of`.

    Raises
    ------
    ScenarioError
        If a scenario is wrong, or nothing can be left out.
    """
    scenarios = load_measured(paths)
    items = items_of(scenarios)
    jobs = list(_jobs(items, by))
    heaviest = sorted(range(len(jobs)), key=lambda i: -jobs[i].num_runs)
    steps, rows = dict[Any, tuple[StepComparison, Place]](), dict[Any, Any]()
    done, total = 0, len(items)
    runs = sum(job.num_runs for job in jobs)
    workers = workers or worthwhile(len(jobs), runs)
    keep = None if store is None else Keep[FoldJob, Rows](store, _keys(items), Rows)
    with executor_for(workers, scheduler) as executor:
        sorted_jobs = [jobs[i] for i in heaviest]
        results = done_in_order(predict, sorted_jobs, executor=executor, keep=keep)
        for place, (some_steps, some_tables) in zip(heaviest, results, strict=True):
            left_out = jobs[place].fold.left_out
            steps |= zip([i.key for i in left_out if not i.is_table], some_steps, strict=True)
            rows |= zip([i.key for i in left_out if i.is_table], some_tables, strict=True)
            done += jobs[place].size
            if progress is not None:
                progress(done, total)
    points = [steps[item.key] for item in items if not item.is_table]
    sizes = [row for item in items if item.is_table for row in rows[item.key]]
    work = [same_work(item.made) for item in items if not item.is_table]
    whole = joined(
        list(scenarios.values()),
        add_linear([point for point, _ in points], work),
        [row for row, _ in sizes],
    )
    return LeftOut(by, whole, tuple(at for _, at in points), tuple(at for _, at in sizes))


def _keys(items: Sequence[Item]) -> Callable[[FoldJob], str]:
    """How a fold is named by all that it depends on."""
    keys = {item.key: key_of_item(item) for item in items}

    def key(job: FoldJob) -> str:
        each = [
            [keys[item.key] for item in part] for part in (job.fold.left_out, job.fold.remaining)
        ]
        return key_of_all(each[0], each[1], "leave out", job.fold.name, job.by, job.noise)

    return key


def _jobs(items: Sequence[Item], by: By) -> Iterator[FoldJob]:
    """One for each fold, and some for what is in none."""
    folds = folds_of(items, by)
    noise: dict[str, float] = {}
    for item in items:
        noise[item.machine] = max(noise.get(item.machine, 0.0), item.measured.noise)
    for fold in folds:
        yield FoldJob(fold, by, max(noise[item.machine] for item in fold.left_out))
    inside = {item.key for fold in folds for item in fold.left_out}
    rest = [item for item in items if item.key not in inside]
    for i in range(0, len(rest), MAX_POINTS):
        yield FoldJob(Fold("", rest[i : i + MAX_POINTS], []), None, 0.0)


def _fitting(remaining: Sequence[Item]) -> list[Item]:
    """Steps that constants may be fitted to."""
    return [i for i in remaining if not i.is_table and i.point.role == "calibration"]


# One fold ----------------------------------------------------------------------------------------


def predict(job: FoldJob) -> Rows:
    """Fit to what remains, and predict what was left out.

    Raises
    ------
    ScenarioError
        If a point cannot be simulated.
    """
    without = _Without(job)
    steps = [_told(item, without.step) for item in job.fold.left_out if not item.is_table]
    tables = [_told(item, without.table) for item in job.fold.left_out if item.is_table]
    return steps, tables


def _told(item: Item, how: Any) -> Any:
    try:
        return how(item)
    except ScenarioError as error:
        raise ScenarioError([f"{item.place}: {line}" for line in error.problems]) from None


class _Without:
    """The constants of a cluster without a fold."""

    def __init__(self, job: FoldJob) -> None:
        self.job, fold = job, job.fold
        self.name = None if job.by is None else fold.name
        self.tables: Refitted | None = None
        self.steps: Refitted | None = None
        if job.by is None:
            return
        self.tables = refit_tables(fold.remaining, job.noise)
        had_tables = any(_is_timed_table(item) for item in fold.left_out)
        self.knows_cost = job.by != "cluster" and not had_tables
        points = []
        for item in _fitting(fold.remaining):
            watched = _watched(item)
            points.append((watched, self.intake(item, watched.step.scenario)))
        if any(not item.is_table for item in fold.left_out):
            self.steps = refit_steps(points, self.tables, job.noise)

    def intake(self, item: Item, scenario: Scenario) -> Intake:
        by_cluster = self.job.by == "cluster"
        return Intake(item, scenario, self.tables, self.knows_cost, by_cluster)

    def step(self, item: Item) -> tuple[StepComparison, Place]:
        """Predict a step."""
        known = _known(item)
        if self.name is None:
            found = time_step(item.name, item.point, item.made, known)
            return _named(item, found), Place(None, False, found.simulated)
        watched = _watched(item)
        scenario, watch = watched.step.scenario, watched.stopwatch
        found = time_step(item.name, item.point, scenario, (), watch)
        place = Place(self.name, not item.is_told, found.simulated)
        intake = self.intake(item, scenario)
        if intake.keys or not self.knows_cost:
            found = self._predicted(found, intake, watch)
        else:
            again = time_step(item.name, item.point, scenario, known, watch)
            found = replace(found, low=again.low, high=again.high)
        role = item.point.role if item.is_told else "predicted"
        return _named(item, replace(found, role=role)), place

    def _predicted(self, found: StepComparison, intake: Intake, watch: Any) -> StepComparison:
        steps = self.steps
        assert steps is not None
        values = steps.told()
        scenario = intake.take(values)
        pairs = [
            (intake.take(low), intake.take(high))
            for low, high in steps.ends()
            if any(key in intake.keys for key in low)
        ]
        prior = [known.without(values) for known in (*intake.own, *intake.prior)]
        pairs += pairs_of(scenario, prior)
        (time,) = watch.step_times([scenario])
        known = [*intake.own, steps.known()]
        inside = interval_of_pairs(time, pairs, known, watch.step_times)
        new = self.news(scenario)
        low, high = widened(time, inside, further(new, exposed_part(watch.metrics, scenario)))
        return replace(found, simulated=time, low=low, high=high, new=new)

    def news(self, scenario: Scenario) -> tuple[str, ...]:
        """What a step has that none had which remains."""
        if self.job.by == "cluster":
            return ("cluster",)
        steps = dict[str, list[int]]()
        for item in _fitting(self.job.fold.remaining):
            nodes = steps.setdefault(name_of(item.made), [])
            nodes.append(item.made.cluster.num_nodes)
        cluster = scenario.cluster
        return what_is_new(steps, name_of(scenario), cluster.num_nodes, cluster.world_size)

    def table(self, item: Item) -> list[tuple[CollectiveComparison, Place]]:
        """Predict a table."""
        made, known, pairs = item.made, _known(item), None
        args = item.name, item.table
        fitted = time_table(*args, made, (), item.number)
        if self.name is None:
            rows = time_table(*args, made, known, item.number)
            return [(_named(item, row), Place(None, False, row.simulated)) for row in rows]
        if isinstance(made.collectives.cost, NcclCost):
            made, known = bare_cost(item)
            if self.tables is not None:
                bare, own = made, list(item.table.set)

                def take(values: Numbers) -> Scenario:
                    free = {k: v for k, v in values.items() if not _is_set(k, own)}
                    return with_numbers(bare, free)

                made, known = take(self.tables.told()), [self.tables.known()]
                pairs = [(take(low), take(high)) for low, high in self.tables.ends()]
        rows = time_table(*args, made, known, item.number, pairs)
        return [
            (_named(item, replace(row, role="predicted")), Place(self.name, True, one.simulated))
            for row, one in zip(rows, fitted, strict=True)
        ]


def _is_set(key: str, own: Sequence[str]) -> bool:
    """Whether a table sets a key itself."""
    return any(key == one or key.startswith(f"{one}.") for one in own)


def _is_timed_table(item: Item) -> bool:
    return bool(fitting_tables([item]))


def _known(item: Item) -> list[Known]:
    own = item.measured.calibration
    known = machine_calibration(item.made.cluster.machine, item.made.base)
    return known if own is None else [Known(OWN, own), *known]


def _named(item: Item, found: Any) -> Any:
    named = item.measured.cluster
    return found if named is None else replace(found, cluster=named)


def _watched(item: Item) -> Watched:
    """A point with its stopwatch, which other folds may have needed before."""
    made, known = item.made, WATCHED.pop(item.key, None)
    seconds = item.point.seconds(made.workload.samples_per_step(made.cluster.world_size))
    if known is None or known.step.scenario != made:
        known = Watched(MeasuredStep(item.place, made, made.resolved(), seconds, True))
    known.step = known.step._replace(seconds=seconds)
    WATCHED[item.key] = known
    while len(WATCHED) > MAX_WATCHED:
        WATCHED.popitem(last=False)
    return known
