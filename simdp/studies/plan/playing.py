"""Playing: points as they are simulated, and what that comes to.

Of a step with many micro-steps those between the first and the last do the same. So where nothing
makes them differ, as many as four say how long more of them take: ``T(k) = T(4) + (k - 4)
(T(4) - T(3))``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from simdp.errors import ScenarioError
from simdp.results.money import BUSY, REST, WAITING, lasting
from simdp.results.plan import Option
from simdp.results.result import Result
from simdp.scenario import Scenario
from simdp.studies.answers import interval_of
from simdp.studies.executor import Executor, Failed
from simdp.studies.job import job
from simdp.studies.many import simulate_all
from simdp.studies.plan.bounds import Bounds
from simdp.studies.plan.space import ACCUM, BATCH, MICRO, Point
from simdp.studies.store import Store

FEW = 3, 4
"""Micro-steps that stand for more."""

RUNS = 25
"""Of a job that fails on the way."""

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
    short : Scenario
        What was played of it.
    """

    metrics: dict[str, float]
    peak: float
    short: Scenario


class Player:
    """Simulates points.

    Parameters
    ----------
    bounds : Bounds
        Of all points.
    samples : dict of int to float
        What the target takes, by global batch.
    executor, store
        As for `simulate_all`.

    Attributes
    ----------
    simulated : dict of int to Simulated
        By the number of the point.
    """

    def __init__(
        self, bounds: Bounds, samples: Any, executor: Executor, store: Store | None
    ) -> None:
        self.bounds, self._samples = bounds, samples
        self._executor, self._store = executor, store
        self.simulated: dict[int, Simulated] = {}

    def play(self, numbers: Sequence[int]) -> list[Option | None]:
        """Simulate points by their numbers; None of what cannot be."""
        each: list[list[Scenario]] = []
        for number in numbers:
            each.append(self._scenarios(self.bounds.points[number]))
        flat = [scenario for several in each for scenario in several]
        found = iter(simulate_all(flat, executor=self._executor, store=self._store))
        options: list[Option | None] = []
        for number, several in zip(numbers, each, strict=True):
            results = [next(found) for _ in several]
            options.append(self._option(number, several, results))
        return options

    def _scenarios(self, point: Point) -> list[Scenario]:
        """What is played of a point: itself, or a few micro-steps; nothing if it cannot be."""
        space, settings = self.bounds.space, point.settings
        try:
            if point.micro_steps <= FEW[-1] or not self._repeats(point):
                return [space.scenario(settings)]
            short = {**settings, MICRO: point.microbatch}
            if BATCH in settings or "global_batch" in space.raw["workload"]:
                short[BATCH] = None
            return [space.scenario({**short, ACCUM: few}) for few in FEW]
        except ScenarioError:
            return []

    def _repeats(self, point: Point) -> bool:
        recipe = self.bounds.recipe_of(point)
        return bool(point.microbatch) and recipe is not None and recipe.is_plain

    def _option(
        self, number: int, scenarios: Sequence[Scenario], results: Sequence[Result | Failed]
    ) -> Option | None:
        there = [one for one in results if isinstance(one, Result)]
        if not there or len(there) < len(results):
            return None
        point, last = self.bounds.points[number], there[-1]
        keys = ("step_time_s", *PARTS)
        metrics = {key: float(last.metrics[key]) for key in keys}
        if len(there) > 1:
            more = point.micro_steps - FEW[-1]
            metrics = {
                key: value + more * (value - float(there[0].metrics[key]))
                for key, value in metrics.items()
            }
        peak = float(max(last.metrics["peak_memory_bytes"]))
        self.simulated[number] = Simulated(metrics, peak, scenarios[-1])
        return self._told(number, point, self.simulated[number])

    def _told(self, number: int, point: Point, found: Simulated) -> Option:
        metrics, cluster = found.metrics, found.short.cluster
        batch = self.batch_of(point, found.short)
        seconds = self._samples(batch) / batch * metrics["step_time_s"]
        spent = lasting(cluster.rates(), metrics, seconds)
        cost, energy = spent.cost_usd, spent.energy_kwh
        if cluster.failures or found.short.checkpoint is not None:
            (whole,) = job(self.bounds.space.scenario(point.settings), runs=RUNS).points
            seconds = whole.finish_s.mean
            cost = None if whole.cost_usd is None else whole.cost_usd.mean
            energy = None if whole.energy_kwh is None else whole.energy_kwh.mean
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
        )

    def batch_of(self, point: Point, scenario: Scenario) -> int:
        """Samples of a step of all ranks."""
        if point.microbatch:
            return point.world_size * point.microbatch * point.micro_steps
        return int(scenario.workload.samples_per_step(point.world_size))


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
