"""Cross-validation: leaves out models, node counts, collectives or clusters, and refits."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import exp, hypot, log, sqrt
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from pydantic import TypeAdapter

from simdp.arrays import Bools, Floats, grouped
from simdp.cluster.hardware import read_machine
from simdp.collectives.costs.nccl import NcclCost
from simdp.engine.recorded_script import Stopwatch
from simdp.errors import ScenarioError
from simdp.results.validation import (
    CollectiveComparison,
    HeldOutPoint,
    LeftOut,
    NotCompared,
    StepComparison,
)
from simdp.scenario.placement import wiring_of
from simdp.scenario.root import Scenario
from simdp.studies.calibrate.fit import NOISE, Constant
from simdp.studies.calibrate.steps import (
    REACH,
    Change,
    MeasuredStep,
    Watched,
    fit_watched,
    predictor,
    read,
)
from simdp.studies.executor import executor_for
from simdp.studies.intervals import (
    BY_DATA_SHEET,
    COST,
    DEVICE,
    OWN,
    Known,
    as_kind,
    by_data_sheet,
    deviation_of,
    exposed_part,
    interval_of_pairs,
    is_between,
    machine_calibration,
    name_of,
    pairs_of,
    precision_of,
    step_novelty,
    step_novelty_spread,
    widened,
)
from simdp.studies.store import ResultCache, Store, done_in_order, key_of_all
from simdp.studies.validate import Progress, clock_of, joined, key_of_item, time_table, worthwhile
from simdp.studies.validate.folds import (
    By,
    FoldData,
    Item,
    Numbers,
    Refitted,
    bare_cost,
    by_key,
    fitting_tables,
    folds_of,
    items_of,
    refit_tables,
    refitted,
)
from simdp.studies.validate.jobs import (
    MAX_POINTS,
    add_linear,
    load_valid,
    not_compared,
    same_work,
    time_step,
)
from simdp.studies.variants import value_at, with_numbers, with_values

# Constants at a point -----------------------------------------------------------------------------

WIDE: dict[str | None, tuple[float, float]] = {
    "time": (1e-6, 1e-2),
    "bandwidth": (1e8, 1e12),
    None: (1e-3, 10.0),
}
"""Bounds of constants without published values, by dimension [SI]."""

MOST = 4.0  # upper bound of a share

LATENCY = 1000.0
"""Factor of the bounds of a latency around the published value: TCP's is hundreds of times it."""

SHARE = 1.5  # spread of a share of a bandwidth around the published value

GRID = 9
"""Values per constant in the search for a start: a limit that nothing reaches has no gradient."""

JITTER, JITTERS = 0.01, 0.6
"""Scatter of the ranks of GPU clusters about their mean, and its own spread: 0.004 to 0.03."""

MOVES = 1e-9  # least change of a time's logarithm for a constant to count


class PointConstants:
    """Applies refitted constants to a point.

    Parameters
    ----------
    tables : Refitted or None
        Fit to the remaining tables of the cluster.
    knows_cost : bool
        Whether the constants of collectives may keep their values where steps were not fitted.
    unmeasured : bool
        Whether the whole cluster counts as unmeasured; else constants of other sites stay.

    Attributes
    ----------
    keys : list of str
        Constants to refit: those of the machine's that the point has.
    prior : list of Known
        Their uncertainty without measurements of the cluster.
    """

    def __init__(
        self,
        item: Item,
        scenario: Scenario,
        tables: Refitted | None,
        knows_cost: bool,
        unmeasured: bool = False,
    ) -> None:
        own = item.measured.calibration
        calibrated = [] if own is None else [Known(OWN, own)]
        calibrated += machine_calibration(scenario.cluster.machine, scenario.base)
        self.own = calibrated[: own is not None]
        taken = set[str]() if unmeasured else _of_other_sites(scenario, calibrated)
        self.keys = [key for key in _fitted_keys(scenario, calibrated) if key not in taken]
        made = scenario if own is None else scenario.model_copy(update={"measured": item.measured})
        bare, prior = bare_cost(item._replace(made=made))
        self.prior = prior + [known.only(taken) for known in calibrated[len(self.own) :]]
        self.bare, self._entry = bare.resolved(), scenario.resolved()
        self._ties = _ties(scenario, self.keys)
        if not knows_cost or tables is not None:
            collectives = scenario.collectives.model_copy(update={"cost": bare.collectives.cost})
            scenario = scenario.model_copy(update={"collectives": collectives})
            self._ties = {}
        start = {key: self._published(key) for key in self.keys}
        scenario = with_values(scenario, self._entry, start, item.place) if start else scenario
        self.base = scenario if tables is None else with_numbers(scenario, tables.values_by_key())

    def _published(self, key: str) -> Any:
        value = value_at(self.bare, key)
        return JITTER if value is None and _is_jitter(key) else value

    def dimension(self, key: str) -> str | None:
        """Dimension of a constant; None for a plain number."""
        return read(key, value_at(self._entry, key))[1]

    def take(self, values: Mapping[str, float]) -> Scenario:
        """The point with constants [SI]; keys that it overrides stay."""
        taken = {key: value for key, value in values.items() if key in self.keys}
        for key, ratio in self._ties.items():
            taken[key] = ratio * self._simple_share(key.split(".")[3], taken)
        return with_numbers(self.base, taken) if taken else self.base

    def _simple_share(self, place: str, values: Mapping[str, float]) -> float:
        """Share of a bandwidth that Simple gets with some values."""
        cost = self.base.collectives.cost
        assert isinstance(cost, NcclCost)
        usual = getattr(cost.efficiency, place).simple
        share = values.get(f"{COST}efficiency.{place}.simple", usual)
        flow = values.get(f"{COST}flow_bandwidth", cost.flow_bandwidth)
        return _simple_share(self.base, place, share, flow)


def _of_other_sites(scenario: Scenario, calibrated: Sequence[Known]) -> set[str]:
    """Keys of constants that were fitted to machines of other sites."""
    base, own = scenario.base, scenario.cluster.machine
    site = own and (read_machine(own, base).site or own)
    return {
        key
        for _, calibration, _ in calibrated
        for key, machine in calibration.taken.items()
        if (read_machine(machine, base).site or machine) != site
    }


def _fitted_keys(scenario: Scenario, calibrated: Sequence[Known]) -> list[str]:
    """Keys of fitted constants with the values of a scenario."""
    keys = dict[str, None]()
    for place, calibration, _ in calibrated:
        for key, ends in calibration.intervals.items():
            value = value_at(scenario, key)
            if key.startswith("workload.") or not isinstance(value, int | float):
                continue
            low, high = (read(key, end)[0] for end in ends)
            if place == OWN or calibrated[0].place == OWN or is_between(low, value, high):
                keys[key] = None
    return list(keys)


def _ties(scenario: Scenario, keys: Sequence[str]) -> dict[str, float]:
    """Shares of LL and LL128 that are not fitted, relative to Simple's."""
    entry, ratios = scenario.collectives.cost, dict[str, float]()
    if not isinstance(entry, NcclCost):
        return ratios
    for place in ("intra", "inter") if scenario.cluster.num_nodes > 1 else ("intra",):
        given = getattr(entry.efficiency, place)
        for name in ("ll", "ll128"):
            key = f"{COST}efficiency.{place}.{name}"
            if key not in keys and getattr(given, name) is not None:
                simple = _simple_share(scenario, place, given.simple, entry.flow_bandwidth)
                ratios[key] = getattr(given, name) / simple
    return {key: ratio for key, ratio in ratios.items() if ratio <= 1}


def _simple_share(scenario: Scenario, place: str, share: float | None, flow: float | None) -> float:
    """Share of a bandwidth that Simple gets, limited by flows."""
    cost = scenario.collectives.cost
    assert isinstance(cost, NcclCost)
    if share is None:
        share = cost.share(place, "simple", wiring_of(scenario.cluster))
    if place == "intra" or flow is None:
        return share
    return min(share, flow * cost.flows_per_pair / wiring_of(scenario.cluster).inter_bandwidth)


# Fits to steps ------------------------------------------------------------------------------------


def refit_steps(
    points: Sequence[tuple[Watched, PointConstants]], tables: Refitted | None, noise: float
) -> Refitted:
    """Fit constants to the remaining steps with role calibration; those without effect are dropped.

    ``tables`` is a fit of the same constants to tables; ``noise`` that of the cluster's
    measurements.
    """
    constants = [
        _constant(key, next(intake for _, intake in points if key in intake.keys), tables)
        for key in dict.fromkeys(key for _, intake in points for key in intake.keys)
    ]
    intakes = {id(watched): intake for watched, intake in points}

    def take(point: Watched, constants: Sequence[Constant], values: Floats) -> Scenario:
        return intakes[id(point)].take(by_key(constants, values))

    watched = [point for point, _ in points]
    moved = _affected(watched, constants, take)
    by_constant, by_point = np.atleast_1d(moved.any(axis=0)), np.atleast_1d(moved.any(axis=1))
    constants = [point for point, does in zip(constants, by_constant, strict=True) if does]
    used = [point for point, does in zip(watched, by_point, strict=True) if does]
    if not constants:
        return Refitted((), np.zeros(0), np.zeros((0, 0)), noise, {})
    start = _start(used, constants, take)
    return refitted(fit_watched(used, constants, take, start), noise, {})


def _is_jitter(key: str) -> bool:
    """Whether a constant is the scatter of ranks."""
    return key.startswith("cluster.stragglers.") and key.endswith(".sigma")


def _grid(constant: Constant) -> Floats:
    return np.geomspace(constant.low, constant.high, GRID + 2)[1:-1]


def _affected(points: Sequence[Watched], constants: Sequence[Constant], take: Change) -> Bools:
    """Whether each constant affects each point, `(num_points, num_constants)`."""
    affected = np.zeros((len(points), len(constants)), dtype=bool)
    if not points or not constants:
        return affected
    predict = predictor(points, constants, take)
    typical = np.array([constant.typical for constant in constants])
    for index, constant in enumerate(constants):
        times = np.log(predict(_varied(typical, index, _grid(constant)[:: GRID // 2])))
        affected[:, index] = np.ptp(times, axis=0) > MOVES
    return affected


def _varied(values: Floats, index: int, column: Floats) -> Floats:
    """Sets of values in which one constant varies, `(num_sets, num_constants)`."""
    sets: Floats = np.tile(values, (len(column), 1))
    sets[:, index] = column
    return sets


def _start(points: Sequence[Watched], constants: Sequence[Constant], take: Change) -> Floats:
    """Coordinate search on a grid for a start of the fit, in the order of the constants."""
    predict = predictor(points, constants, take)
    target = np.log([point.step.seconds for point in points])
    best = np.array([constant.typical for constant in constants])

    typical, spread = best, np.array([constant.spread for constant in constants])
    for _ in range(2):
        for index, constant in enumerate(constants):
            sets = np.vstack([best, _varied(best, index, _grid(constant))])
            misses = (np.log(predict(sets)) - target) / NOISE
            far = np.log(sets / typical) / spread
            costs = np.sum(np.hypot(1, misses) - 1, axis=1) + np.sum(far**2, axis=1) / 2
            best = sets[int(np.argmin(costs))]
    return best


def _constant(key: str, intake: PointConstants, tables: Refitted | None) -> Constant:
    """Typical value, bounds and spread of a constant before a fit to steps."""
    if tables is not None:
        for index, constant in enumerate(tables.constants):
            if constant.key == key:
                deviation = sqrt(float(tables.covariance[index, index]))
                value = float(tables.values[index])
                return replace(constant, typical=value, spread=deviation)
    if _is_jitter(key):
        return Constant(key, None, JITTER, 1e-4, 1.0, JITTERS)
    written = value_at(intake.bare, key)
    value, dimension = 0.0 if written is None else read(key, written)[0], intake.dimension(key)
    if value > 0 and key.startswith(DEVICE):
        high = min(value * REACH, 1.0)
        return Constant(key, dimension, value, value / REACH, high, BY_DATA_SHEET)
    if value <= 0 or not key.startswith(COST):
        low, high = WIDE[dimension]
        return Constant(key, dimension, sqrt(low * high), low, high, log(high / low) / 2)
    reach, spread = (LATENCY, log(REACH)) if dimension == "time" else (REACH, SHARE)
    low, high = value / reach, value * reach
    for _, calibration, _ in intake.prior:
        if key in calibration.intervals:
            spread = deviation_of(*(read(key, end)[0] for end in calibration.intervals[key]))
            low, high = value / exp(6 * spread), value * exp(6 * spread)
    return Constant(key, dimension, value, low, high if dimension else min(high, MOST), spread)


MAX_WATCHED = 192  # most points that a process caches, since folds of a cluster share them

WATCHED: OrderedDict[tuple[str, bool, int], Watched] = OrderedDict()
"""Cache of points; without effect on results."""

TABLES: deque[tuple[list[Item], float, Refitted | None]] = deque(maxlen=4)
STEPS: deque[tuple[list[Item], tuple[Any, ...], Refitted | None, Refitted]] = deque(maxlen=4)
"""The last fits to tables and to steps, with their items and settings: folds of points that no
constant is fitted to leave the same ones."""

Rows = tuple[
    list[tuple[StepComparison, HeldOutPoint] | None],
    list[list[tuple[CollectiveComparison, HeldOutPoint]] | None],
    list[NotCompared],
]
"""Steps and tables in the order of a fold, None where they cannot be simulated; and the reasons."""


class FoldJob(NamedTuple):
    """Points and tables of one fold; or some outside all folds, with ``by`` None.

    ``fold.remaining`` is empty outside all folds, and where a whole cluster is left out.
    """

    fold: FoldData
    by: By | None
    noise: float

    @property
    def size(self) -> int:
        """Number of points and tables."""
        return len(self.fold.left_out)

    @property
    def num_runs(self) -> int:
        """Approximate number of runs."""
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
    """Predict every point of scenarios with constants that were fitted without its fold.

    Parameters
    ----------
    paths, workers, scheduler, progress, store
        As for `simdp.studies.validate.validate`.
    by : {"model", "kind", "precision", "nodes", "scale", "collective", "cluster"}
        Kind of the folds; see `simdp.studies.validate.folds.folds_of`.

    Raises
    ------
    ScenarioError
        As of `simdp.studies.validate.validate`; or there are no folds.
    """
    loaded = load_valid(paths)
    scenarios, wrong = loaded.scenarios, loaded.wrong
    items = items_of(scenarios)
    jobs = list(_jobs(items, by))
    heaviest = sorted(range(len(jobs)), key=lambda i: -jobs[i].num_runs)
    steps, rows = dict[Any, tuple[StepComparison, HeldOutPoint] | None](), dict[Any, Any]()
    done, total = 0, len(items)
    runs = sum(job.num_runs for job in jobs)
    workers = workers or worthwhile(len(jobs), runs)
    adapter = TypeAdapter[Rows](Rows)
    keep = None if store is None else ResultCache(store, _keys(items), adapter)
    with executor_for(workers, scheduler) as executor:
        results = done_in_order(predict, [jobs[i] for i in heaviest], executor=executor, keep=keep)
        failed = dict[int, list[NotCompared]]()
        for place, (some_steps, some_tables, failed[place]) in zip(heaviest, results, strict=True):
            left_out = jobs[place].fold.left_out
            steps |= zip([i.key for i in left_out if not i.is_table], some_steps, strict=True)
            rows |= zip([i.key for i in left_out if i.is_table], some_tables, strict=True)
            done += jobs[place].size
            if progress is not None:
                progress(done, total)
    wrong += [loaded.in_file(problem) for place in sorted(failed) for problem in failed[place]]
    compared = [item for item in items if not item.is_table and steps[item.key] is not None]
    points = [step for item in compared if (step := steps[item.key]) is not None]
    sizes = [row for item in items if item.is_table for row in rows[item.key] or ()]
    if not points and not sizes:
        raise ScenarioError([problem.line for problem in wrong])
    whole = joined(
        list(scenarios.values()),
        add_linear([point for point, _ in points], [same_work(item.made) for item in compared]),
        [row for row, _ in sizes],
    )
    whole = replace(whole, not_compared=tuple(wrong))
    return LeftOut(by, whole, tuple(at for _, at in points), tuple(at for _, at in sizes))


def _keys(items: Sequence[Item]) -> Callable[[FoldJob], str]:
    """Make the function that hashes a job's inputs."""
    keys = {item.key: key_of_item(item) for item in items}

    def key(job: FoldJob) -> str:
        fold = job.fold
        parts = [[keys[item.key] for item in part] for part in (fold.left_out, fold.remaining)]
        return key_of_all(parts[0], parts[1], "leave out", job.fold.name, job.by, job.noise)

    return key


def _jobs(items: Sequence[Item], by: By) -> Iterator[FoldJob]:
    """Yield a job for each fold, and jobs for items outside all folds."""
    folds = folds_of(items, by)
    noise: dict[str, float] = {}
    for item in items:
        noise[item.machine] = max(noise.get(item.machine, 0.0), item.measured.noise)
    for fold in folds:
        yield FoldJob(fold, by, max(noise[item.machine] for item in fold.left_out))
    inside = {item.key for fold in folds for item in fold.left_out}
    rest = [item for item in items if item.key not in inside]
    for i in range(0, len(rest), MAX_POINTS):
        yield FoldJob(FoldData("", rest[i : i + MAX_POINTS], []), None, 0.0)


def _fitting(remaining: Sequence[Item]) -> list[Item]:
    return [i for i in remaining if not i.is_table and i.point.role == "calibration"]


# Prediction of a fold -----------------------------------------------------------------------------


def predict(job: FoldJob) -> Rows:
    """Fit to the remaining items, and predict the others; those that cannot be are listed."""
    failed = list[NotCompared]()
    try:
        without = _FoldFit(job)
    except ScenarioError as error:
        failed += [_failure(item, error) for item in job.fold.left_out]
        nothing = [item.is_table for item in job.fold.left_out]
        return [None] * nothing.count(False), [None] * nothing.count(True), failed

    def found(item: Item, how: Callable[[Item], S]) -> S | None:
        try:
            return how(item)
        except ScenarioError as error:
            failed.append(_failure(item, error))
            return None

    steps = [found(item, without.step) for item in job.fold.left_out if not item.is_table]
    tables = [found(item, without.table) for item in job.fold.left_out if item.is_table]
    return steps, tables, failed


S = TypeVar("S")


def _failure(item: Item, error: ScenarioError) -> NotCompared:
    return not_compared(item.file, item.part, error)


def _is_timed(item: Item) -> bool:
    try:
        if item.is_table:
            clock_of(item.made, item.table.collective)
        else:
            _ = _watched(item).stopwatch.metrics
    except ScenarioError:
        return False
    return True


class _FoldFit:
    """Constants of a cluster, fitted without a fold."""

    def __init__(self, job: FoldJob) -> None:
        self.job, fold = job, job.fold
        self.name = None if job.by is None else fold.name
        self.tables: Refitted | None = None
        self.steps: Refitted | None = None
        if job.by is None:
            return
        self.tables = _fitted_tables(fold.remaining, job.noise)
        had_tables = any(fitting_tables([item]) for item in fold.left_out)
        self.knows_cost = job.by != "cluster" and not had_tables
        if any(not item.is_table for item in fold.left_out):
            self.steps = self._fitted_steps()

    def _fitted_steps(self) -> Refitted:
        """Fit to the remaining steps; folds with the same ones share it."""
        items = [item for item in _fitting(self.job.fold.remaining) if _is_timed(item)]
        of = self.job.by, self.job.noise, self.knows_cost
        for others, settings, tables, refit in STEPS:
            if settings == of and tables is self.tables and _equal(items, others):
                return refit
        points = []
        for item in items:
            watched = _watched(item)
            points.append((watched, self.intake(item, watched.step.scenario)))
        refit = refit_steps(points, self.tables, self.job.noise)
        STEPS.append((items, of, self.tables, refit))
        return refit

    def intake(self, item: Item, scenario: Scenario) -> PointConstants:
        by_cluster = self.job.by == "cluster"
        return PointConstants(item, scenario, self.tables, self.knows_cost, by_cluster)

    def step(self, item: Item) -> tuple[StepComparison, HeldOutPoint]:
        known = _known(item)
        if self.name is None:
            comparison = time_step(item.name, item.point, item.made, known)
            return _named(item, comparison), HeldOutPoint(None, False, comparison.simulated)
        watched = _watched(item)
        scenario, watch = watched.step.scenario, watched.stopwatch
        comparison = time_step(item.name, item.point, scenario, (), watch)
        place = HeldOutPoint(self.name, not item.is_fitted, comparison.simulated)
        intake = self.intake(item, scenario)
        if intake.keys or not self.knows_cost:
            comparison = self._predicted(comparison, intake, watch)
        else:
            again = time_step(item.name, item.point, scenario, known, watch)
            comparison = replace(comparison, low=again.low, high=again.high)
        role = item.point.role if item.is_fitted else "predicted"
        return _named(item, replace(comparison, role=role)), place

    def _predicted(
        self, comparison: StepComparison, intake: PointConstants, watch: Stopwatch
    ) -> StepComparison:
        steps = self.steps
        assert steps is not None
        values = steps.values_by_key()
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
        new = self.novelty(scenario)
        spread = step_novelty_spread(new, exposed_part(watch.metrics, scenario))
        spread = hypot(spread, by_data_sheet(watch.metrics, scenario, known))
        low, high = widened(time, inside, spread)
        return replace(comparison, simulated=time, low=low, high=high, new=new)

    def novelty(self, scenario: Scenario) -> tuple[str, ...]:
        """List the properties of a step that no remaining step has."""
        if self.job.by == "cluster":
            return ("cluster",)
        fitted = _fitting(self.job.fold.remaining)
        steps = grouped((name_of(item.made), item.made.cluster.num_nodes) for item in fitted)
        cluster = scenario.cluster
        new = step_novelty(steps, name_of(scenario), cluster.num_nodes, cluster.world_size)
        families = {item.made.workload.graph.family for item in fitted}
        new = new if fitted else ("model", *new)
        new_names = as_kind(new, scenario.workload.graph.family, families)
        precisions = {precision_of(item.made) for item in fitted}
        if precisions and precision_of(scenario) not in precisions:
            new_names.append("precision")
        return tuple(new_names)

    def table(self, item: Item) -> list[tuple[CollectiveComparison, HeldOutPoint]]:
        made, known, pairs = item.made, _known(item), None
        args = item.name, item.table
        fitted = time_table(*args, made, (), item.number)
        if self.name is None:
            rows = time_table(*args, made, known, item.number)
            return [(_named(item, row), HeldOutPoint(None, False, row.simulated)) for row in rows]
        if isinstance(made.collectives.cost, NcclCost):
            made, known = bare_cost(item)
            if self.tables is not None:
                bare, own = made, list(item.table.set)

                def take(values: Numbers) -> Scenario:
                    free = {k: v for k, v in values.items() if not _is_set(k, own)}
                    return with_numbers(bare, free)

                made, known = take(self.tables.values_by_key()), [self.tables.known()]
                pairs = [(take(low), take(high)) for low, high in self.tables.ends()]
        rows = time_table(*args, made, known, item.number, pairs)
        named = [_named(item, replace(row, role="predicted")) for row in rows]
        held_out = [HeldOutPoint(self.name, True, row.simulated) for row in fitted]
        return list(zip(named, held_out, strict=True))


def _fitted_tables(remaining: Sequence[Item], noise: float) -> Refitted | None:
    """Fit to the remaining tables; folds with the same ones share it."""
    items = [item for item in fitting_tables(remaining) if _is_timed(item)]
    for others, known, refit in TABLES:
        if known == noise and _equal(items, others):
            return refit
    refit = refit_tables(items, noise)
    TABLES.append((items, noise, refit))
    return refit


def _equal(some: Sequence[Item], others: Sequence[Item]) -> bool:
    """Whether items are the same measurements of the same scenarios."""
    if [item.key for item in some] != [item.key for item in others]:
        return False
    pairs = zip(some, others, strict=True)
    return all(a.made == b.made and a.measured == b.measured for a, b in pairs)


def _is_set(key: str, own: Sequence[str]) -> bool:
    return any(key == own_key or key.startswith(f"{own_key}.") for own_key in own)


def _known(item: Item) -> list[Known]:
    own = item.measured.calibration
    known = machine_calibration(item.made.cluster.machine, item.made.base)
    return known if own is None else [Known(OWN, own), *known]


Row = TypeVar("Row", StepComparison, CollectiveComparison)


def _named(item: Item, row: Row) -> Row:
    named = item.measured.cluster
    return row if named is None else replace(row, cluster=named)


def _watched(item: Item) -> Watched:
    """A point with its stopwatch, cached for other folds."""
    made, known = item.made, WATCHED.pop(item.key, None)
    seconds = item.point.seconds(made.workload.samples_per_step(made.cluster.world_size))
    if known is None or known.step.scenario != made:
        known = Watched(MeasuredStep(item.place, made, made.resolved(), seconds, True))
    known.step = known.step._replace(seconds=seconds)
    WATCHED[item.key] = known
    while len(WATCHED) > MAX_WATCHED:
        WATCHED.popitem(last=False)
    return known
