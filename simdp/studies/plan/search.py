"""Searches for the best points.

A point is skipped only where its bounds miss a limit, or where a simulated point is no worse in
time, cost and memory than its bounds: it is then neither on the front nor, by its bound, among the
best. So the front is that of all points, except for points that equal one of the front.

NSGA-II (Deb et al., "A fast and elitist multiobjective genetic algorithm: NSGA-II", 2002) chooses
one generation at a time, from the bounds in the order of the points: the result does not depend on
the executor. The chosen points are then searched like a small space.

With many micro-steps, those between the first and the last are equal. So where nothing makes them
differ, four give the time of more: ``T(k) = T(4) + (k - 4) (T(4) - T(3))``. The same holds for a
period of many steps, as of Local SGD: steps without an exchange are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf, isfinite
from typing import Any, NamedTuple, Protocol

import numpy as np

from simdp.arrays import Bools, Floats, Ints
from simdp.engine.interpreters.footprints import fits_host, offloaded_nbytes
from simdp.errors import ScenarioError
from simdp.job.targets import SamplesNeeded
from simdp.reports.figures import host_need
from simdp.results.metrics import PARTS, Metrics, lasting, limit_of
from simdp.results.plan import GOALS, WAYS, Option
from simdp.results.result import Result
from simdp.scenario.root import Scenario
from simdp.studies.answers import interval_of
from simdp.studies.executor import CompletedItem, Failed, PointExecutor
from simdp.studies.job import job
from simdp.studies.many import simulate_all
from simdp.studies.plan.bounds import Bounds, NeedOf
from simdp.studies.plan.request import (
    ACCUM,
    BATCH,
    LIMITED,
    MAX_POINTS,
    MICRO,
    Infeasible,
    PlanPoint,
    PlanRequest,
    Space,
    factors_of,
    luck_of,
)
from simdp.studies.store import Store

NUM_BEST = 5  # the best, and its alternatives

POINTS_AT_ONCE = 16
"""Points to simulate before the next choice; independent of the number of workers, so that the
result is, too."""

LIMITS = {**LIMITED, "memory": "peak_memory_bytes"}
"""Limits, and the field of an option that each applies to."""

UNKNOWN = {"price": "cost_usd", "power": "energy_kwh"}
"""Figures of devices that may be unknown, and the field of an option that each goes into."""

FIELDS = {
    "finish_s": "finish",
    "cost_usd": "cost",
    "energy_kwh": "energy",
    "peak_memory_bytes": "memory",
}
"""Fields of an option, and of `Bounds`."""

SAME = 1 + 1e-12  # tolerance of limits for rounding


class SearchedPoint(NamedTuple):
    """A simulated point: its number among those of the bounds, and its option."""

    number: int
    option: Option


Play = Callable[[Sequence[int]], list[Option | None]]
"""Simulates points by their numbers; None for impossible ones."""


class Search:
    """Searches for the best points.

    ``limits`` are by the keys of `LIMITS`; that on memory applies in addition to the devices'.
    ``margin`` is a factor by point number, at least 1, on time, cost and energy before they are
    compared with the limits. ``options`` has all simulated points, ``pruned`` the numbers of others
    by reason.
    """

    def __init__(
        self,
        bounds: Bounds,
        goal: str,
        limits: Mapping[str, float],
        play: Play,
        margin: Callable[[int], float] | None = None,
    ) -> None:
        self.bounds, self.goal, self.limits, self._play = bounds, goal, dict(limits), play
        self._margin = margin
        self.options: dict[int, Option] = {}
        self.failed: set[int] = set()
        self.pruned: dict[str, int] = {}

    # Bounds --------------------------------------------------------------------------------------

    def least(self, field: str) -> Floats:
        """Bounds of a field of `Option`."""
        bound: Floats = getattr(self.bounds, FIELDS[field])
        return bound

    def allowed(self, name: str) -> Floats:
        """Limit of each point."""
        limit = self.limits.get(name, inf)
        if name == "memory":
            room: Floats = np.minimum(self.bounds.room, limit)
            return room
        return np.full(len(self.bounds.points), limit)

    def misses(self, number: int, option: Option, without: str | None = None) -> dict[str, float]:
        """Missed limits of a simulated point: value over limit; ``without`` is ignored."""
        excess = {}
        for name, field in LIMITS.items():
            value, allowed = option.value(field), float(self.allowed(name)[number])
            if name == without or allowed == inf:
                continue
            if value is not None and self._margin is not None and name in LIMITED:
                value *= self._margin(number)
            if value is None or value > allowed * SAME:
                excess[name] = inf if value is None else value / allowed
        return excess

    def _may_meet(self, without: str | None = None) -> Bools:
        """Points that by their bounds may meet every limit."""
        may_meet = self.bounds.is_possible.copy()
        for name, field in LIMITS.items():
            if name != without:
                may_meet &= self.least(field) <= self.allowed(name) * SAME
        may_meet &= np.isfinite(self.least(GOALS[self.goal]))
        if self.failed:
            may_meet[list(self.failed)] = False
        return may_meet

    # Searching -----------------------------------------------------------------------------------

    def run(self) -> None:
        """Simulate all points that may be on the front or among the best."""
        while True:
            left = self._may_meet() & self._is_needed()
            left[list(self.options)] = False
            numbers = np.flatnonzero(left)
            if not len(numbers):
                break
            self._simulate(self._next(numbers))

    def meeting(self, without: str | None = None) -> list[SearchedPoint]:
        """Simulated points that meet all limits, the best first."""
        field = GOALS[self.goal]
        points = [
            SearchedPoint(number, option)
            for number, option in self.options.items()
            if not self.misses(number, option, without) and option.value(field) is not None
        ]
        return sorted(points, key=lambda point: (point.option.value(field) or 0.0, point.number))

    def front(self) -> list[SearchedPoint]:
        """Points that none dominates, the fastest first."""
        points = self.meeting()
        values = np.array([_objectives(point.option) for point in points]).reshape(-1, 3)
        kept = []
        for number, point in enumerate(points):
            no_worse = (values <= values[number]).all(axis=1)
            better = no_worse & (values < values[number]).any(axis=1)
            equal = no_worse & ~better
            if not better.any() and int(np.flatnonzero(equal)[0]) == number:
                kept.append(point)
        return sorted(kept, key=lambda point: (_objectives(point.option), point.number))

    def without(self, name: str) -> SearchedPoint | None:
        """The best point without one limit; None if there is none."""
        field = GOALS[self.goal]
        while True:
            points = self.meeting(name)
            least = self.least(field)
            left = self._may_meet(name)
            left[list(self.options)] = False
            if points:
                best = points[0].option.value(field)
                assert best is not None
                left &= least < best
            numbers = np.flatnonzero(left)
            if not len(numbers):
                return points[0] if points else None
            order = np.lexsort((numbers, least[numbers]))
            self._simulate(numbers[order[: POINTS_AT_ONCE // 4]])

    def nearest(self) -> SearchedPoint | None:
        """The point with the smallest largest miss."""
        miss = np.zeros(len(self.bounds.points))
        for name, field in LIMITS.items():
            allowed = self.allowed(name)
            known = np.isfinite(allowed)
            miss[known] = np.maximum(miss[known], self.least(field)[known] / allowed[known])
        miss[~self.bounds.is_possible] = inf
        while True:
            candidates = [
                (max(self.misses(number, option).values(), default=1.0), number)
                for number, option in self.options.items()
            ]
            best = min(candidates, default=(inf, -1))
            left = miss < best[0]
            left[[*self.options, *self.failed]] = False
            numbers = np.flatnonzero(left)
            if not len(numbers):
                return None if best[0] == inf else SearchedPoint(best[1], self.options[best[1]])
            order = np.lexsort((numbers, miss[numbers]))
            self._simulate(numbers[order[: POINTS_AT_ONCE // 4]])

    def _simulate(self, numbers: Ints) -> None:
        for number, option in zip(numbers.tolist(), self._play(numbers.tolist()), strict=True):
            if option is None:
                self.failed.add(number)
            else:
                self.options[number] = option

    def _is_needed(self) -> Bools:
        """Points that by their bounds may be among the best or on the front."""
        points = self.meeting()
        field = GOALS[self.goal]
        if len(points) >= NUM_BEST:
            last = points[NUM_BEST - 1].option.value(field)
            assert last is not None
            needed: Bools = self.least(field) < last
        else:
            needed = np.ones(len(self.bounds.points), dtype=np.bool_)
        return needed | ~self._is_worse([point.option for point in points])

    def _is_worse(self, options: Sequence[Option]) -> Bools:
        """Points with bounds no better than a simulated point in time, cost and memory."""
        fields = ("finish_s", "cost_usd", "peak_memory_bytes")
        time, cost, memory = map(self.least, fields)
        is_worse = np.zeros(len(time), dtype=np.bool_)
        for option in options:
            t, c, m = _objectives(option)
            is_worse |= (time >= t) & (cost >= c) & (memory >= m)
        return is_worse

    def _next(self, numbers: Ints) -> Ints:
        """The next points to simulate: the best by the goal's bound, without dominated ones."""
        least = self.least(GOALS[self.goal])[numbers]
        ways = np.stack(
            [self.least(f)[numbers] for f in ("finish_s", "cost_usd", "peak_memory_bytes")], axis=1
        )
        order = np.lexsort((numbers, ways[:, 2], ways[:, 1], least))
        chosen: list[int] = []
        for place in order.tolist():
            mine = ways[place]
            if any((ways[other] <= mine).all() for other in chosen):
                continue
            chosen.append(place)
            if len(chosen) == POINTS_AT_ONCE:
                break
        return numbers[chosen]

    def count(self) -> None:
        """Count the points that were not simulated, by reason."""
        rest = np.ones(len(self.bounds.points), dtype=np.bool_)
        rest[list(self.options)] = False
        impossible = ~self.bounds.is_possible
        impossible[list(self.failed)] = True
        self.pruned["impossible"] = int((rest & impossible).sum())
        rest &= ~impossible
        needed = {GOALS[self.goal], *(LIMITS[name] for name in self.limits)}
        for name, field in UNKNOWN.items():
            lacking = rest & ~np.isfinite(self.least(field))
            if field in needed and lacking.any():
                self.pruned[name] = int(lacking.sum())
                rest &= ~lacking
        for name in ("memory", "deadline", "budget", "energy"):
            over = rest & (self.least(LIMITS[name]) > self.allowed(name) * SAME)
            self.pruned[name] = int(over.sum())
            rest &= ~over
        self.pruned["worse"] = int(rest.sum())


def _objectives(option: Option) -> tuple[float, float, float]:
    """Time, cost (infinite if unknown) and memory."""
    cost = inf if option.cost_usd is None else option.cost_usd
    return option.finish_s, cost, option.peak_memory_bytes


# Sampling large spaces ----------------------------------------------------------------------------

GENERATION = 64  # points per generation
GENERATIONS = 32  # number of generations: 2,048 points, or fewer where some repeat
HUGE = 1e300  # replaces figures that are not finite


class Sampled(NamedTuple):
    """A sample of a large space: valid points by number, counts of infeasible ones, and bounds."""

    points: list[PlanPoint]
    impossible: dict[Infeasible, int]
    bounds: Bounds


def sampled(
    space: Space,
    request: PlanRequest,
    need_of: NeedOf,
    executor: PointExecutor,
    seed: int,
    progress: Callable[[str], None],
) -> Sampled:
    """Choose points of a space of more than `MAX_POINTS` by their bounds.

    Same seed, same points. ``progress`` is called with a line of text. A ScenarioError if Optuna is
    not installed.
    """
    study = _study(space, seed)
    cache = _BoundsCache(space, request, need_of, executor)
    for number in range(GENERATIONS):
        trials = [study.ask() for _ in range(GENERATION)]
        values = cache.values([_chosen(trial, space) for trial in trials])
        for trial, value in zip(trials, values, strict=True):
            _report_trial(study, trial, value)
        progress(f"bounds of {len(cache.seen):,} points, generation {number + 1} of {GENERATIONS}")
    points = sorted(cache.points.values(), key=lambda point: point.number)
    return Sampled(points, cache.impossible, Bounds(space, points, need_of, cache.bounds))


class _Trial(Protocol):
    """One point that Optuna asks for."""

    def suggest_int(self, name: str, low: int, high: int) -> int: ...

    def set_constraint(self, key: str, constraint: float) -> None: ...


class _OptunaStudy(Protocol):
    """Optuna's study of a space."""

    def ask(self) -> _Trial: ...

    def tell(
        self, trial: _Trial, values: Sequence[float] | None = None, *, state: object = None
    ) -> object: ...


def _study(space: Space, seed: int) -> _OptunaStudy:
    try:
        import optuna
    except ImportError:
        raise ScenarioError(
            f"--choose: makes {len(space):,} points; more than {MAX_POINTS:,} are sampled, "
            "which needs optuna; pip install 'simdp[plan]', or give fewer values."
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.NSGAIISampler(population_size=GENERATION, seed=seed)
    directions = ["minimize"] * (len(WAYS) + 1)
    study: _OptunaStudy = optuna.create_study(directions=directions, sampler=sampler)
    return study


def _chosen(trial: _Trial, space: Space) -> tuple[int, dict[str, Any]]:
    number, chosen = 0, dict[str, Any]()
    for key, values in space.choices.items():
        place = trial.suggest_int(key, 0, len(values) - 1)
        number, chosen[key] = number * len(values) + place, values[place]
    return number, chosen


class _TrialValue(NamedTuple):
    """A point's figures and relative misses of limits, for Optuna."""

    ways: list[float]
    over: dict[str, float]


class _BoundsCache:
    """Computes bounds, and caches them for points that repeat."""

    def __init__(
        self, space: Space, request: PlanRequest, need_of: NeedOf, executor: PointExecutor
    ) -> None:
        self._space, self._request = space, request
        self._need_of, self._executor = need_of, executor
        self.seen: dict[int, _TrialValue | None] = {}
        self.points: dict[int, PlanPoint] = {}
        self.impossible: dict[Infeasible, int] = {}
        self.bounds: Bounds | None = None

    def values(self, trials: Sequence[tuple[int, dict[str, object]]]) -> list[_TrialValue | None]:
        fresh = list[PlanPoint]()
        for number, chosen in trials:
            if number in self.seen:
                continue
            self.seen[number] = None
            point = self._space.point(number, chosen)
            if isinstance(point, PlanPoint):
                fresh.append(point)
            else:
                self.impossible[point] = self.impossible.get(point, 0) + 1
        if fresh:
            self._look(fresh)
        return [self.seen[number] for number, _ in trials]

    def _look(self, points: Sequence[PlanPoint]) -> None:
        bounds = Bounds(self._space, points, self._need_of, self.bounds)
        bounds.look(self._executor)
        self.bounds = bounds
        for place, point in enumerate(points):
            self.points[point.number] = point
            if not bounds.is_possible[place]:
                continue
            least = {field: float(getattr(bounds, name)[place]) for field, name in FIELDS.items()}
            fields = (GOALS[self._request.goal], *WAYS)
            ways = [least[field] if isfinite(least[field]) else HUGE for field in fields]
            room = min(float(bounds.room[place]), self._request.memory or inf)
            limits = {**self._request.limits, "memory": room}
            over = {
                name: min(least[LIMITS[name]] / limit - 1, HUGE) for name, limit in limits.items()
            }
            self.seen[point.number] = _TrialValue(ways, over)


def _report_trial(study: _OptunaStudy, trial: _Trial, value: _TrialValue | None) -> None:
    from optuna.trial import TrialState

    if value is None:
        study.tell(trial, state=TrialState.FAIL)
        return
    for name, over in value.over.items():
        trial.set_constraint(name, over)
    study.tell(trial, value.ways)


# Simulation of points -----------------------------------------------------------------------------

FEW = 3, 4  # numbers of micro-steps, or of steps of a period, to extrapolate from
LONG = 16  # least steps of a period for extrapolation, where nothing makes them differ
RUNS = 100  # runs of a job with failures

HOUR = 3600.0

Changes = Callable[[Scenario, int], list[str]]
"""Lists a scenario's changes to the file's training, at a global batch."""


class Simulated(NamedTuple):
    """A simulated point: times of the whole step, and memory of the fullest rank [bytes].

    ``luck`` are times of single runs to the target over their mean; ``whole`` may have few
    micro-steps where all are equal.
    """

    metrics: Metrics
    peak: float
    luck: Floats
    whole: Scenario


class SimulatedPoint(NamedTuple):
    """Scenarios to simulate for a point: itself, or two shorter ones; none if it is invalid.

    ``num_alike`` are the micro-steps, or steps of a period, to extrapolate to; 0 without
    extrapolation.
    """

    scenarios: list[Scenario]
    num_alike: int = 0
    whole: Scenario | None = None
    problem: str = ""


class Player:
    """Simulates points.

    ``changes`` lists a scenario's changes to the file's training, at a global batch.

    Attributes
    ----------
    simulated : dict of int to Simulated
        By point number.
    why : dict of int to Infeasible
        Of points that cannot be simulated.
    intervals : dict of int to (float, float) or None
        90 % interval of a step relative to its time; None where the machine is not calibrated.
    """

    def __init__(
        self,
        bounds: Bounds,
        need_of: NeedOf,
        changes: Changes,
        executor: PointExecutor,
        store: Store | None,
    ) -> None:
        self.bounds, self._need_of, self._changes = bounds, need_of, changes
        self._executor, self._store = executor, store
        self.simulated: dict[int, Simulated] = {}
        self.why: dict[int, Infeasible] = {}
        self.intervals: dict[int, tuple[float, float] | None] = {}

    def play(self, numbers: Sequence[int]) -> list[Option | None]:
        """Simulate points by their numbers; None for invalid ones."""
        groups = [self._standing_for(self.bounds.points[number]) for number in numbers]
        flat = [scenario for group in groups for scenario in group.scenarios]
        results = iter(simulate_all(flat, executor=self._executor, store=self._store))
        return [
            self._option(number, group, [next(results) for _ in group.scenarios])
            for number, group in zip(numbers, groups, strict=True)
        ]

    def find_intervals(self, numbers: Sequence[int]) -> None:
        """Compute the missing intervals of simulated points."""
        wanted = [number for number in numbers if number not in self.intervals]
        scenarios = [self.simulated[number].whole for number in wanted]
        for place, outcome in self._executor.each(step_interval_of, scenarios):
            ends = outcome.value if isinstance(outcome, CompletedItem) else None
            self.intervals[wanted[place]] = ends

    def factors(self, number: int) -> Floats:
        """Possible factors on the time to the target of a simulated point; see `factors_of`."""
        self.find_intervals([number])
        return factors_of(self.simulated[number].luck, self.intervals[number])

    def _standing_for(self, point: PlanPoint) -> SimulatedPoint:
        """Choose the scenarios of a point: itself, or two with few steps to extrapolate from."""
        space, settings = self.bounds.space, point.settings
        try:
            if point.micro_steps > FEW[-1] and self._repeats(point):
                short = {**settings, MICRO: point.microbatch}
                if BATCH in settings or "global_batch" in space.raw["workload"]:
                    short[BATCH] = None
                few = [space.steady({**short, ACCUM: few}) for few in FEW]
                return SimulatedPoint(few, point.micro_steps, few[-1])
            whole = space.steady(settings)
            count = whole.strategy.steps_together
            if count >= LONG and _has_equal_steps(whole):
                few = [_with_period(whole, few) for few in FEW]
                return SimulatedPoint(few, count, whole)
            return SimulatedPoint([whole], 0, whole)
        except ScenarioError as error:
            return SimulatedPoint([], problem=error.problems[0])

    def _repeats(self, point: PlanPoint) -> bool:
        recipe = self.bounds.recipe_of(point)
        return bool(point.microbatch) and recipe is not None and recipe.is_plain

    def _option(
        self, number: int, played: SimulatedPoint, results: Sequence[Result | Failed]
    ) -> Option | None:
        there = [result for result in results if isinstance(result, Result)]
        wrong = next((r.problems[0] for r in results if isinstance(r, Failed)), played.problem)
        if played.whole is not None and not fits_host(played.whole):
            needed, has = offloaded_nbytes(played.whole), played.whole.cluster.host_memory
            self.why[number] = Infeasible(host_need(needed, has), "cluster.host_memory")
            return None
        if wrong or played.whole is None:
            self.why[number] = Infeasible.of_line(wrong)
            return None
        last = there[-1]
        metrics = last.metrics
        if len(there) > 1:
            is_period = played.whole.strategy.steps_together > 1
            longer: dict[str, Any] = {
                key: _continued(before, metrics[key], played.num_alike, is_period)
                for key, before in there[0].metrics.items()
                if key in ("step_time_s", *PARTS)
            }
            metrics = replace(metrics, **longer)
        peak = float(max(last.metrics.peak_memory_bytes))
        return self._simulated_option(number, metrics, peak, played.whole)

    def _simulated_option(
        self, number: int, metrics: Metrics, peak: float, whole: Scenario
    ) -> Option:
        point, cluster = self.bounds.points[number], whole.cluster
        batch = self.batch_of(point, whole)
        need = self._need_of(batch)
        assert isinstance(need, SamplesNeeded)
        seconds, luck = need.mean / batch * metrics.step_time_s, luck_of(need)
        spent = lasting(cluster.rates(), metrics, seconds)
        cost, energy, mean_error = spent.cost_usd, spent.energy_kwh, 0.0
        if cluster.failures or whole.checkpoint is not None:
            (runs,) = job(self.bounds.space.scenario(point.settings), runs=RUNS).points
            seconds = runs.finish_s.mean
            cost = None if runs.cost_usd is None else runs.cost_usd.mean
            energy = None if runs.energy_kwh is None else runs.energy_kwh.mean
            luck = np.sort(runs.finishes) / seconds
            mean_error = float(luck.std(ddof=1) / np.sqrt(len(luck)))
        self.simulated[number] = simulated = Simulated(metrics, peak, luck, whole)
        share = simulated.peak / float(self.bounds.room[number])
        return Option(
            set={key: value for key, value in point.settings.items() if value is not None},
            step_time_s=metrics.step_time_s,
            finish_s=seconds,
            cost_usd=cost,
            energy_kwh=energy,
            peak_memory_bytes=simulated.peak,
            limit=limit_of(metrics, share),
            shares={key.removesuffix("_s"): metrics[key] for key in PARTS},
            world_size=point.world_size,
            global_batch=batch,
            memory_share=share,
            mean_error=mean_error,
            gpu_hours=seconds * point.world_size / HOUR,
            changes_training=self._changes(whole, batch),
        )

    def batch_of(self, point: PlanPoint, scenario: Scenario) -> int:
        """Samples of a step of all ranks."""
        if point.microbatch:
            return point.world_size * point.microbatch * point.micro_steps
        return int(scenario.workload.samples_per_step(point.world_size))


def _continued(before: float, after: float, count: int, is_period: bool) -> float:
    """Extrapolate `FEW` to ``count`` micro-steps, or to the mean step of a period [s]."""
    if not is_period:
        return after + (count - FEW[-1]) * (after - before)
    short, long = before * FEW[0], after * FEW[-1]
    return (long + (count - FEW[-1]) * (long - short)) / count


def _has_equal_steps(scenario: Scenario) -> bool:
    """Whether all steps of a period without an exchange are equal."""
    workload = scenario.workload
    if scenario.strategy.has_several_periods:
        return False
    odd = workload.samples_per_rank or workload.rebalance or workload.packing or workload.input
    return not (
        odd or scenario.cluster.stragglers or workload.lengths(scenario.seed, scenario.base)
    )


def _with_period(scenario: Scenario, steps: int) -> Scenario:
    """A scenario of one shorter period, after the step that metrics leave out."""
    strategy = scenario.strategy.with_period(steps)
    workload = scenario.workload.model_copy(update={"steps": 1 + steps})
    return scenario.model_copy(update={"strategy": strategy, "workload": workload})


def step_interval_of(scenario: Scenario) -> tuple[float, float] | None:
    """The 90 % interval of a step relative to its time; None for uncalibrated machines."""
    ends = interval_of(scenario, 1.0)
    return None if ends is None else (ends[0], ends[1])
