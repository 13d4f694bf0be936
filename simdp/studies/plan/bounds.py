"""Bounds: the least time, money, energy and memory of every point, before any is simulated.

They come in two goes: what devices compute (a roofline per kernel, as every simulation has it)
costs nothing, and holds until a point is looked at. Then `simdp.studies.plan.sheets` adds what the
ranks must exchange, and `simdp.engine.phases` what they keep, for all points of the same operations
at once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from simdp.arrays import Floats
from simdp.cluster import Cluster
from simdp.errors import ScenarioError
from simdp.job.target import Need
from simdp.results.money import JOULES
from simdp.scenario import Scenario
from simdp.scenario.feasibility import joint_problems
from simdp.scenario.overrides import Raw
from simdp.scenario.root import build
from simdp.studies.executor import Done, Executor
from simdp.studies.plan.infeasible import BATCH_OPTION, Infeasible
from simdp.studies.plan.memory import lines_of
from simdp.studies.plan.parts import Place, Recipe, named
from simdp.studies.plan.sheets import (
    BYTES,
    HOOKS,
    HOST_BYTES,
    KERNELS,
    LAUNCHES,
    MICRO_STEPS,
    NUM_BESIDE,
    Asks,
    Prices,
    Sheet,
)
from simdp.studies.plan.space import ACCUM, BATCH, MICRO, Point, Space, network_part, recipe_part

Progress = Callable[[int, int], None]

SAFETY = 1 - 1e-9
"""What is left of a bound for sums that are taken in another order."""


class Look(NamedTuple):
    """A scenario to be read: as its steps are, and as its memory is followed.

    Attributes
    ----------
    steps, memory : dict
        Plain data.
    base : Path
        Folder that relative paths start from.
    microbatch, room : int, float
        The smallest of all points that it stands for, and the most memory [bytes].
    """

    steps: Raw
    memory: Raw
    base: Path
    microbatch: int
    room: float


Read = tuple[Sheet | None, list[tuple[float, float]]]
"""What a scenario's operations ask for, and the lines of its memory."""


def looked_at(asked: Look) -> Read:
    """Read a scenario's operations, and follow its memory, wherever this is called.

    Returns
    -------
    sheet : Sheet or None
        None where operations depend on times, or no point has room for them.
    lines : list of (float, float)
        Bytes with one sample in a micro-batch, and what each further one adds.
    """
    scenario = build(asked.steps, asked.base)
    found = lines_of(asked.memory, asked.base)
    lines = [(float(line), line.per_sample) for line in found]
    least = max((one + more * (asked.microbatch - 1) for one, more in lines), default=0.0)
    is_known = not scenario.program.facts.foreseen and SAFETY * least <= asked.room
    return Sheet(scenario) if is_known else None, lines


NeedOf = Callable[[int], Need | str]
"""Of a global batch the samples that the target takes, or why it cannot have that batch."""

NO_BATCH = "the ranks cannot share the batch"


class Bounds:
    """What every point takes at least.

    Parameters
    ----------
    space : Space
        All points.
    points : sequence of Point
        Those that may be.
    need : callable
        Of a global batch the samples that the target takes; or why it cannot have that batch.
    like : Bounds, optional
        Of other points of the same space; what they share is not worked out again.

    Attributes
    ----------
    is_possible : ndarray, shape `(num_points,)`, bool
        Whether nothing is known that speaks against a point.
    finish, cost, energy, memory : ndarray, shape `(num_points,)`
        The least: [s], [USD], [kWh], [bytes]; infinite where nobody says what devices cost or draw.
    room : ndarray, shape `(num_points,)`
        Of the devices [bytes].
    level : ndarray, shape `(num_points,)`, int64
        0 where only compute is known, else 1.
    why : dict of int to Infeasible
        Of points that are not possible.
    """

    def __init__(
        self,
        space: Space,
        points: Sequence[Point],
        need: NeedOf,
        like: Bounds | None = None,
    ) -> None:
        self.space, self.points = space, points
        self._places: dict[str, Place | None] = {} if like is None else like._places
        self._recipes: dict[str, Recipe | None] = {} if like is None else like._recipes
        self._odd: dict[tuple[int, int, int], str | None] = {} if like is None else like._odd
        self._read: dict[Hashable, Read | str] = {} if like is None else like._read
        self._wrong: dict[str, str] = {} if like is None else like._wrong
        count = len(points)
        self.is_possible = np.ones(count, dtype=np.bool_)
        self.step, self.busy, self.memory = (np.zeros(count) for _ in range(3))
        self.room, self.level = np.full(count, inf), np.zeros(count, dtype=np.int64)
        self.why = dict[int, Infeasible]()
        self._steps = np.zeros(count)
        self._rates, self._shrinks = np.zeros((count, 5)), np.zeros(count, dtype=np.bool_)
        self._groups: dict[Hashable, list[int]] = {}
        self._group_of: list[Hashable] = [None] * count
        for number, point in enumerate(points):
            self._place(number, point, need)
        self._compute_alone()
        self._spread()

    def _place(self, number: int, point: Point, need_of: NeedOf) -> None:
        """Find what a point shares with others."""
        place, recipe = self.place_of(point), self.recipe_of(point)
        batch = point.world_size * point.microbatch * point.micro_steps
        batch = batch or point.settings.get(BATCH) or self.space.global_batch or 0
        if not batch and recipe is not None:
            batch = self._own_batch(point)
        wrong: str | None = None
        if place is None or recipe is None:
            part = network_part if place is None else recipe_part
            wrong = self._wrong[named(part(point.settings))]
        else:
            wrong = self._oddity(point, place, recipe)
        need = need_of(batch) if batch else None
        if place is None or recipe is None or wrong is not None or not isinstance(need, Need):
            self.is_possible[number] = False
            if wrong is not None:
                self.why[number] = Infeasible.of_line(wrong)
            else:
                said = need if isinstance(need, str) else NO_BATCH
                self.why[number] = Infeasible(said, BATCH_OPTION)
            return
        self.room[number], self._steps[number] = place.memory, need.mean / batch
        known = place.rates[:5]
        self._rates[number] = [inf if one is None else one for one in known]
        overheads = place.scenario.cluster.overheads
        is_hybrid = hasattr(recipe.scenario.strategy, "shard_size")  # others know of no nodes
        self._shrinks[number] = recipe.scenario.recovery is not None
        key = (
            named(recipe_part(point.settings)),
            point.world_size,
            place.scenario.cluster.local_size if is_hybrid else 0,
            overheads.copies,
            min(point.micro_steps, 2),
        )
        self._group_of[number] = key
        self._groups.setdefault(key, []).append(number)

    def _own_batch(self, point: Point) -> int:
        """Samples of a step as the scenario itself deals them; 0 if it cannot be."""
        try:
            return int(self._built(point.settings).workload.samples_per_step(point.world_size))
        except ScenarioError:
            return 0

    def _oddity(self, point: Point, place: Place, recipe: Recipe) -> str | None:
        """Why the parts of a point do not suit each other; None where they do."""
        key = id(place), id(recipe), min(point.micro_steps, 2)
        if key not in self._odd:
            parts = recipe.scenario
            batch = {"microbatch": max(point.microbatch, 1), "grad_accum": point.micro_steps}
            workload = parts.workload.model_copy(update=batch)
            found = joint_problems(
                place.scenario.cluster, workload, parts.strategy, lambda *_: True
            )
            self._odd[key] = found[0] if found else None
        return self._odd[key]

    def place_of(self, point: Point) -> Place | None:
        """The cluster of a point; None where there can be none."""
        settings = network_part(point.settings)
        key = named(settings)
        if key not in self._places:
            try:
                self._places[key] = Place.of(self._built(settings | self._some_batch))
            except ScenarioError as error:
                self._places[key], self._wrong[key] = None, error.problems[0]
        return self._places[key]

    def recipe_of(self, point: Point) -> Recipe | None:
        """What the ranks of a point do; None where that cannot be."""
        settings = recipe_part(point.settings)
        key = named(settings)
        if key not in self._recipes:
            network = network_part(point.settings)
            try:
                self._recipes[key] = Recipe(self._built(network | settings | self._some_batch))
            except ScenarioError as error:
                self._recipes[key], self._wrong[key] = None, error.problems[0]
        return self._recipes[key]

    @property
    def _some_batch(self) -> dict[str, Any]:
        found: dict[str, Any] = {MICRO: 1, ACCUM: 1}
        return found | ({BATCH: None} if "global_batch" in self.space.raw["workload"] else {})

    def _built(self, settings: dict[str, Any]) -> Scenario:
        return build(self.space.raw_of(settings), self.space.base)

    def _compute_alone(self) -> None:
        """What every point computes: forward and backward of all micro-steps, once each."""
        totals: dict[tuple[str, int, str], float] = {}
        for number in np.flatnonzero(self.is_possible).tolist():
            point = self.points[number]
            place, recipe = self.place_of(point), self.recipe_of(point)
            assert place is not None
            assert recipe is not None
            if not recipe.is_plain or not point.microbatch:
                self.level[number] = 1  # of which nothing else is known
                continue
            found = inf
            for device in place.devices:
                key = named(recipe_part(point.settings)), point.microbatch, repr(device)
                if key not in totals:
                    seconds = recipe.seconds(point.microbatch, [device])
                    totals[key] = sum(float(one.sum()) for one in seconds.values())
                found = min(found, totals[key])
            loss = 1.0 if recipe.scenario.workload.loss.kind != "none" else 0.0
            found = point.micro_steps * found * place.factor * SAFETY * loss
            self.step[number] = self.busy[number] = found

    def look(self, executor: Executor, progress: Progress | None = None) -> None:
        """Look at all points that are left more closely, those of the same operations at once.

        Parameters
        ----------
        executor : Executor
            Who reads operations.
        progress : callable, optional
            Called with how many points are done, and how many there are.
        """
        open_ = self.is_possible & (self.level == 0)
        groups = {
            key: left
            for key, group in self._groups.items()
            if (left := [number for number in group if open_[number]])
        }
        unread = [key for key in groups if key not in self._read]
        done = sum(len(group) for key, group in groups.items() if key in self._read)
        asked = [self._asked(groups[key]) for key in unread]
        for place, outcome in executor.each(looked_at, asked):
            key = unread[place]
            if isinstance(outcome, Done):
                self._read[key] = outcome.value
            else:  # that cannot be, or nothing is known of it
                error = outcome.error
                cannot = error.problems[0] if isinstance(error, ScenarioError) else None
                self._read[key] = cannot or (None, [])
            done += len(groups[key])
            if progress is not None:
                progress(done, int(open_.sum()))
        for key, group in groups.items():
            found = self._read[key]
            self.level[group] = 1
            if isinstance(found, str):
                self.is_possible[group] = False
                self.why.update(dict.fromkeys(group, Infeasible.of_line(found)))
            else:
                self._take(group, found)
        self._spread()

    def _asked(self, group: Sequence[int]) -> Look:
        point = self.points[group[0]]
        count = 1 if point.micro_steps == 1 else MICRO_STEPS
        raws = [
            self.space.raw_of({**point.settings, **self._some_batch, ACCUM: accum})
            for accum in (count, min(count, 2))
        ]
        smallest = min(self.points[number].microbatch for number in group)
        room = float(self.room[group].max())
        return Look(raws[0], raws[1], self.space.base, smallest, room)

    def _take(self, group: Sequence[int], found: Read) -> None:
        """Charge what was found for all points of a group."""
        sheet, lines = found
        if sheet is not None:
            step, busy = self._least(sheet, group)
            self.step[group] = np.maximum(self.step[group], step)
            self.busy[group] = np.maximum(self.busy[group], busy)
        sizes = np.array([self.points[number].microbatch for number in group], dtype=float)
        if lines:
            one, more = np.array(lines).T
            most = (one[:, None] + more[:, None] * (sizes - 1)).max(axis=0)
            self.memory[group] = SAFETY * most

    def _least(self, sheet: Sheet, numbers: Sequence[int]) -> tuple[Floats, Floats]:
        """Charge a sheet for points."""
        points = [self.points[number] for number in numbers]
        places = [place for place in map(self.place_of, points) if place is not None]
        recipe = self.recipe_of(points[0])
        assert recipe is not None
        factors = np.array([place.factor for place in places])
        calls: dict[str, list[Floats]] = {}
        for point, place in zip(points, places, strict=True):
            for name, found in recipe.seconds(point.microbatch, place.devices).items():
                calls.setdefault(name, []).append(found.min(axis=1))
        clusters = [place.scenario.cluster for place in places]
        which: dict[int, int] = {}
        at = np.array([which.setdefault(id(place), len(which)) for place in places])
        different = list({id(place): place for place in places}.values())

        def collective(asks: Asks) -> Floats:
            told = [
                place.network.least(asks.collective, asks.nbytes, asks.group, sheet.groups)
                for place in different
            ]
            found: Floats = np.array(told)[at]
            return found

        prices = Prices(
            {name: np.array(columns).T * factors for name, columns in calls.items()},
            _beside(places) * np.where(SLOWED_BESIDE, factors, 1.0),
            np.array([c.overheads.before_collective(c.world_size) for c in clusters]),
            _first(recipe.scenario, clusters) * factors,
            collective,
        )
        step, busy = sheet.least(prices, np.array([float(one.micro_steps) for one in points]))
        return SAFETY * step, SAFETY * busy

    def _spread(self) -> None:
        """Work out times to the target, money and energy."""
        price, node = self._rates[:, 0], self._rates[:, 4]
        self.finish = self._steps * self.step
        self.cost = np.where(np.isinf(price), inf, np.nan_to_num(price, posinf=0) * self.finish)
        known = np.isfinite(self._rates[:, 1:4]).all(axis=1)
        levels = np.nan_to_num(self._rates[:, 1:4], posinf=0.0)
        least = levels.min(axis=1)
        joules = (least + node) * self.finish
        joules = joules + (levels[:, 0] - least) * self._steps * self.busy
        self.energy = np.where(known, joules / JOULES, inf)
        for found in (self.cost, self.energy):  # whoever has left costs and draws nothing
            found[self._shrinks & np.isfinite(found)] = 0.0


SLOWED_BESIDE = np.zeros((NUM_BESIDE, 1), dtype=np.bool_)
SLOWED_BESIDE[[HOOKS, LAUNCHES]] = True
"""What the host does, which stragglers slow down as well."""


def _beside(places: Sequence[Place]) -> Floats:
    """Seconds of what is no call, of each place, shape `(NUM_BESIDE, num_places)`."""
    found = np.zeros((NUM_BESIDE, len(places)))
    for number, place in enumerate(places):
        cluster = place.scenario.cluster
        found[BYTES, number] = 1 / max(device.memory_rate for device in place.devices)
        found[HOOKS, number] = cluster.overheads.hook
        found[LAUNCHES, number] = cluster.overheads.launch
        found[HOST_BYTES, number] = cluster.host.copying(1.0)
        found[KERNELS, number] = min(device.launch for device in place.devices)
    return found


def _first(scenario: Scenario, clusters: Sequence[Cluster]) -> Floats:
    host = scenario.workload.host
    found: Floats = np.array([host.before_step(cluster.local_size) for cluster in clusters])
    return found
