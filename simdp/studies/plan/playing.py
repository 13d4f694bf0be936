"""Playing: points as they are simulated, and what that comes to.

Of a step with many micro-steps those between the first and the last do the same. So where nothing
makes them differ, as many as four say how long more of them take: ``T(k) = T(4) + (k - 4)
(T(4) - T(3))``. The same holds for a period of many steps, as of Local SGD: those that exchange
nothing are alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from simdp.arrays import Floats
from simdp.errors import ScenarioError
from simdp.job.target import Need
from simdp.results.money import BUSY, REST, WAITING, lasting
from simdp.results.plan import Option
from simdp.results.result import Result
from simdp.scenario import Scenario
from simdp.studies.answers import interval_of
from simdp.studies.executor import Done, Executor, Failed
from simdp.studies.job import job
from simdp.studies.many import simulate_all
from simdp.studies.plan.bounds import Bounds, NeedOf
from simdp.studies.plan.chances import factors_of, luck_of
from simdp.studies.plan.infeasible import Infeasible
from simdp.studies.plan.space import ACCUM, BATCH, MICRO, Point
from simdp.studies.store import Store

FEW = 3, 4
"""Micro-steps, or steps of a period, that stand for more."""

LONG = 16
"""Steps of a period from which on `FEW` stand for it, where nothing makes them differ."""

RUNS = 100
"""Of a job that fails on the way."""

HOUR = 3600.0

Changes = Callable[[Scenario, int], list[str]]
"""How a scenario of so large a global batch trains otherwise than that of the file."""

FULL = 0.9
"""From this share of its memory on a device counts as full."""

PARTS = BUSY + WAITING + REST


class Simulated(NamedTuple):
    """A point as it was simulated.

    Attributes
    ----------
    metrics : dict
        Of the whole step: its times.
    peak : float
        Of the fullest rank [bytes].
    luck : ndarray
        Times of single runs to the target over their mean.
    whole : Scenario
        With all of its micro-steps, or where these are alike with a few.
    """

    metrics: dict[str, float]
    peak: float
    luck: Floats
    whole: Scenario


class Played(NamedTuple):
    """What stands for a point.

    Attributes
    ----------
    scenarios : list of Scenario
        What is simulated: the point itself, or two shorter ones; none where it cannot be.
    num_alike : int
        Micro-steps, or steps of a period, of the point; 0 where nothing is continued.
    whole : Scenario or None
        As of `Simulated`.
    problem : str
        Why it cannot be simulated.
    """

    scenarios: list[Scenario]
    num_alike: int = 0
    whole: Scenario | None = None
    problem: str = ""


class Player:
    """Simulates points.

    Parameters
    ----------
    bounds : Bounds
        Of all points.
    need_of : callable
        As of `Bounds`.
    changes : callable
        How a scenario of so large a global batch trains otherwise than that of the file.
    executor, store
        As for `simulate_all`.

    Attributes
    ----------
    simulated : dict of int to Simulated
        By the number of the point.
    why : dict of int to Infeasible
        Of points that cannot be simulated.
    intervals : dict of int to (float, float) or None
        The 90 % interval of a step over its time, of points whose interval was looked for; None
        where the machine is not calibrated.
    """

    def __init__(
        self,
        bounds: Bounds,
        need_of: NeedOf,
        changes: Changes,
        executor: Executor,
        store: Store | None,
    ) -> None:
        self.bounds, self._need_of, self._changes = bounds, need_of, changes
        self._executor, self._store = executor, store
        self.simulated: dict[int, Simulated] = {}
        self.why: dict[int, Infeasible] = {}
        self.intervals: dict[int, tuple[float, float] | None] = {}

    def play(self, numbers: Sequence[int]) -> list[Option | None]:
        """Simulate points by their numbers; None of what cannot be."""
        each = [self._standing_for(self.bounds.points[number]) for number in numbers]
        flat = [scenario for one in each for scenario in one.scenarios]
        found = iter(simulate_all(flat, executor=self._executor, store=self._store))
        options: list[Option | None] = []
        for number, one in zip(numbers, each, strict=True):
            options.append(self._option(number, one, [next(found) for _ in one.scenarios]))
        return options

    def find_intervals(self, numbers: Sequence[int]) -> None:
        """Find the intervals of simulated points that are not known yet."""
        wanted = [number for number in numbers if number not in self.intervals]
        scenarios = [self.simulated[number].whole for number in wanted]
        for place, outcome in self._executor.each(step_interval_of, scenarios):
            self.intervals[wanted[place]] = outcome.value if isinstance(outcome, Done) else None

    def factors(self, number: int) -> Floats:
        """All that may multiply the time to the end of a simulated point; see `factors_of`."""
        self.find_intervals([number])
        return factors_of(self.simulated[number].luck, self.intervals[number])

    def _standing_for(self, point: Point) -> Played:
        """What is simulated of a point: itself, or a few of the steps that are alike."""
        space, settings = self.bounds.space, point.settings
        try:
            if point.micro_steps > FEW[-1] and self._repeats(point):
                short = {**settings, MICRO: point.microbatch}
                if BATCH in settings or "global_batch" in space.raw["workload"]:
                    short[BATCH] = None
                few = [space.steady({**short, ACCUM: few}) for few in FEW]
                return Played(few, point.micro_steps, few[-1])
            whole = space.steady(settings)
            count = whole.strategy.steps_together
            if count >= LONG and _has_equal_steps(whole):
                few = [_with_period(whole, few) for few in FEW]
                return Played(few, count, whole)
            return Played([whole], 0, whole)
        except ScenarioError as error:
            return Played([], problem=error.problems[0])

    def _repeats(self, point: Point) -> bool:
        recipe = self.bounds.recipe_of(point)
        return bool(point.microbatch) and recipe is not None and recipe.is_plain

    def _option(
        self, number: int, played: Played, results: Sequence[Result | Failed]
    ) -> Option | None:
        there = [one for one in results if isinstance(one, Result)]
        wrong = next(
            (one.problems[0] for one in results if isinstance(one, Failed)), played.problem
        )
        if wrong or played.whole is None:
            self.why[number] = Infeasible.of_line(wrong)
            return None
        last = there[-1]
        metrics = {key: float(last.metrics[key]) for key in ("step_time_s", *PARTS)}
        if len(there) > 1:
            before = {key: float(there[0].metrics[key]) for key in metrics}
            is_period = played.whole.strategy.steps_together > 1
            metrics = {
                key: _continued(before[key], value, played.num_alike, is_period)
                for key, value in metrics.items()
            }
        peak = float(max(last.metrics["peak_memory_bytes"]))
        return self._told(number, metrics, peak, played.whole)

    def _told(self, number: int, metrics: dict[str, float], peak: float, whole: Scenario) -> Option:
        point, cluster = self.bounds.points[number], whole.cluster
        batch = self.batch_of(point, whole)
        need = self._need_of(batch)
        assert isinstance(need, Need)
        seconds, luck = need.mean / batch * metrics["step_time_s"], luck_of(need)
        spent = lasting(cluster.rates(), metrics, seconds)
        cost, energy, mean_error = spent.cost_usd, spent.energy_kwh, 0.0
        if cluster.failures or whole.checkpoint is not None:
            (runs,) = job(self.bounds.space.scenario(point.settings), runs=RUNS).points
            seconds = runs.finish_s.mean
            cost = None if runs.cost_usd is None else runs.cost_usd.mean
            energy = None if runs.energy_kwh is None else runs.energy_kwh.mean
            luck = np.sort(runs.finishes) / seconds
            mean_error = float(luck.std(ddof=1) / np.sqrt(len(luck)))
        self.simulated[number] = found = Simulated(metrics, peak, luck, whole)
        share = found.peak / float(self.bounds.room[number])
        return Option(
            set={key: value for key, value in point.settings.items() if value is not None},
            step_time_s=metrics["step_time_s"],
            finish_s=seconds,
            cost_usd=cost,
            energy_kwh=energy,
            peak_memory_bytes=found.peak,
            limit=_limit(metrics, share),
            shares={key.removesuffix("_s"): metrics[key] for key in PARTS},
            world_size=point.world_size,
            global_batch=batch,
            memory_share=share,
            mean_error=mean_error,
            gpu_hours=seconds * point.world_size / HOUR,
            changes_training=self._changes(whole, batch),
        )

    def batch_of(self, point: Point, scenario: Scenario) -> int:
        """Samples of a step of all ranks."""
        if point.microbatch:
            return point.world_size * point.microbatch * point.micro_steps
        return int(scenario.workload.samples_per_step(point.world_size))


def _continued(before: float, after: float, count: int, is_period: bool) -> float:
    """The time of so many micro-steps, or the mean one of a period, from those of `FEW` [s]."""
    if not is_period:
        return after + (count - FEW[-1]) * (after - before)
    short, long = before * FEW[0], after * FEW[-1]
    return (long + (count - FEW[-1]) * (long - short)) / count


def _has_equal_steps(scenario: Scenario) -> bool:
    """Whether nothing makes the steps of a period differ that exchange nothing."""
    workload = scenario.workload
    if getattr(scenario.strategy, "period_group_size_dict", None) is not None:
        return False
    odd = workload.samples_per_rank or workload.rebalance or workload.packing or workload.input
    return not (
        odd or scenario.cluster.stragglers or workload.lengths(scenario.seed, scenario.base)
    )


def _with_period(scenario: Scenario, steps: int) -> Scenario:
    """A scenario of one shorter period of Local SGD, after the step that metrics leave out."""
    strategy = scenario.strategy.model_copy(update={"local_steps": steps})
    workload = scenario.workload.model_copy(update={"steps": 1 + steps})
    return scenario.model_copy(update={"strategy": strategy, "workload": workload})


def step_interval_of(scenario: Scenario) -> tuple[float, float] | None:
    """The 90 % interval of a step over its time; None where nobody has measured the machine."""
    ends = interval_of(scenario, 1.0)
    return None if ends is None else (ends[0], ends[1])


def _limit(metrics: Mapping[str, float], memory_share: float) -> str:
    """What takes most of a step, or a full memory."""
    if memory_share >= FULL:
        return "memory"
    of = {
        "compute": sum(metrics[key] for key in BUSY),
        "communication": metrics["exposed_comm_s"],
        "waiting": metrics["wait_s"],
        "other": metrics["other_s"],
    }
    return max(of, key=lambda name: of[name])
