"""Sampling: points of a space that is too large to look at each, dealt by Optuna.

NSGA-II (Deb et al., "A fast and elitist multiobjective genetic algorithm: NSGA-II", 2002) asks for
a generation at a time, and is told the bounds of its points in the same order: which ones come next
does not depend on who works them out, or how fast. What it has asked for is then searched as a
small space is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, isfinite
from typing import Any, NamedTuple

from simdp.errors import ScenarioError
from simdp.results.plan import GOALS, WAYS
from simdp.studies.executor import Executor
from simdp.studies.plan.asked import MAX_POINTS, Asked
from simdp.studies.plan.bounds import Bounds, NeedOf
from simdp.studies.plan.infeasible import Infeasible
from simdp.studies.plan.search import FIELDS, LIMITS
from simdp.studies.plan.space import Point, Space

GENERATION = 64
"""Points that are asked for at once."""

GENERATIONS = 32
"""After which it has enough: 2,048 points, or fewer where it asks for some again."""

HUGE = 1e300
"""What stands for no figure at all."""


class Sampled(NamedTuple):
    """What was looked at of a large space.

    Attributes
    ----------
    points : list of Point
        Those that may be, by their numbers.
    impossible : dict of Infeasible to int
        Why others cannot be, and how many.
    bounds : Bounds
        Of these points; what was found for them is known to it.
    """

    points: list[Point]
    impossible: dict[Infeasible, int]
    bounds: Bounds


def sampled(
    space: Space,
    asked: Asked,
    need_of: NeedOf,
    executor: Executor,
    seed: int,
    progress: Callable[[str], None],
) -> Sampled:
    """Choose points of a space by their bounds.

    Parameters
    ----------
    space : Space
        Of more than `MAX_POINTS`.
    asked : Asked
        What for, and within which limits.
    need_of, executor
        As for `Bounds`, and for its ``look``.
    seed : int
        Same seed, same points.
    progress : callable
        Told in words how far it is.

    Raises
    ------
    ScenarioError
        If Optuna is not installed.
    """
    study = _study(space, seed)
    found = _Found(space, asked, need_of, executor)
    for number in range(GENERATIONS):
        trials = [study.ask() for _ in range(GENERATION)]
        values = found.values([_chosen(trial, space) for trial in trials])
        for trial, value in zip(trials, values, strict=True):
            _tell(study, trial, value)
        progress(f"bounds of {len(found.seen):,} points, generation {number + 1} of {GENERATIONS}")
    points = sorted(found.points.values(), key=lambda point: point.number)
    return Sampled(points, found.impossible, Bounds(space, points, need_of, found.bounds))


def _study(space: Space, seed: int) -> Any:
    """Optuna's study of a space."""
    try:
        import optuna
    except ImportError:
        raise ScenarioError(
            [
                f"--choose: makes {len(space):,} points; of more than {MAX_POINTS:,} a sample is "
                "looked at, which needs optuna; pip install 'simdp[plan]', or give fewer values."
            ]
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.NSGAIISampler(population_size=GENERATION, seed=seed)
    return optuna.create_study(directions=["minimize"] * (len(WAYS) + 1), sampler=sampler)


def _chosen(trial: Any, space: Space) -> tuple[int, dict[str, Any]]:
    """A point's number in the grid, and what it sets."""
    number, chosen = 0, dict[str, Any]()
    for key, values in space.choices.items():
        place = trial.suggest_int(key, 0, len(values) - 1)
        number, chosen[key] = number * len(values) + place, values[place]
    return number, chosen


class _Value(NamedTuple):
    """What Optuna is told of a point: its figures, and by how much it misses the limits."""

    ways: list[float]
    over: dict[str, float]


class _Found:
    """Finds bounds, and keeps them for points that are asked for again."""

    def __init__(self, space: Space, asked: Asked, need_of: NeedOf, executor: Executor) -> None:
        self._space, self._asked = space, asked
        self._need_of, self._executor = need_of, executor
        self.seen: dict[int, _Value | None] = {}
        self.points: dict[int, Point] = {}
        self.impossible: dict[Infeasible, int] = {}
        self.bounds: Bounds | None = None

    def values(self, asked: Sequence[tuple[int, dict[str, Any]]]) -> list[_Value | None]:
        """What to tell of points; None of those that cannot be."""
        fresh = list[Point]()
        for number, chosen in asked:
            if number in self.seen:
                continue
            self.seen[number] = None
            point = self._space.point(number, chosen)
            if isinstance(point, Point):
                fresh.append(point)
            else:
                self.impossible[point] = self.impossible.get(point, 0) + 1
        if fresh:
            self._look(fresh)
        return [self.seen[number] for number, _ in asked]

    def _look(self, points: Sequence[Point]) -> None:
        bounds = Bounds(self._space, points, self._need_of, self.bounds)
        bounds.look(self._executor)
        self.bounds = bounds
        for place, point in enumerate(points):
            self.points[point.number] = point
            if not bounds.is_possible[place]:
                continue
            least = {field: float(getattr(bounds, name)[place]) for field, name in FIELDS.items()}
            fields = (GOALS[self._asked.goal], *WAYS)
            ways = [least[field] if isfinite(least[field]) else HUGE for field in fields]
            room = min(float(bounds.room[place]), self._asked.memory or inf)
            limits = {**self._asked.limits, "memory": room}
            over = {
                name: min(least[LIMITS[name]] / limit - 1, HUGE) for name, limit in limits.items()
            }
            self.seen[point.number] = _Value(ways, over)


def _tell(study: Any, trial: Any, value: _Value | None) -> None:
    """Tell the study what came of a trial."""
    from optuna.trial import TrialState

    if value is None:
        study.tell(trial, state=TrialState.FAIL)
        return
    for name, over in value.over.items():
        trial.set_constraint(name, over)
    study.tell(trial, value.ways)
