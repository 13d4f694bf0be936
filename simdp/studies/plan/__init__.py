"""Plan: which machine, how many nodes, which strategy and which settings, found by search.

Every point has bounds that no simulation can be below (`bounds`); what they leave open is simulated
(`search`), so that the answer is that of simulating everything.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import simdp
from simdp.errors import ScenarioError
from simdp.results.plan import GOALS, Option, Plan
from simdp.scenario import Scenario, checked
from simdp.scenario.overrides import as_written, set_key
from simdp.scenario.shipped import find
from simdp.studies.executor import Executor, executor_for
from simdp.studies.plan.asked import (
    MAX_POINTS,
    Asked,
    checked_choices,
    refuse,
    usual_choices,
)
from simdp.studies.plan.bounds import Bounds
from simdp.studies.plan.playing import Player
from simdp.studies.plan.sampling import sampled
from simdp.studies.plan.search import Search
from simdp.studies.plan.space import ACCUM, BATCH, MICRO, WORLD, Point, Space
from simdp.studies.plan.told import Made, refuse_untold, refuse_untold_nearest
from simdp.studies.plan.words import order
from simdp.studies.store import Store

__all__ = ["Asked", "plan", "ready"]

STEPS, MOST_STEPS = 2, 8
"""Steps of a run that does not say how long it is, the first being warm-up; and at most."""

MILLION = 1e6

SHOWN = 20
"""Points that are asked why they cannot be."""

Progress = Callable[[str], None]


def plan(
    path: str | os.PathLike[str],
    asked: Asked | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    executor: Executor | None = None,
    store: Store | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Find out with which settings to train.

    Parameters
    ----------
    path : path-like
        A YAML file, a saved result.json, or the name of a scenario that simdp brings. Its sweep and
        what was measured are left out.
    asked : Asked, optional
        What for, within which limits, and what to choose from.
    overrides : mapping of str to value, optional
        Keys that are set at every point, as for `simdp.load_scenario`.
    executor : Executor, optional
        Who simulates; the answer is the same for any. Left out, this process.
    store : Store, optional
        Where simulated points are kept.
    progress : callable, optional
        Told in words how far it is.

    Returns
    -------
    Plan
        With ``best`` and ``front``, or with the ``nearest`` where nothing meets the limits.

    Raises
    ------
    ScenarioError
        If what is asked for does not go together, or no point can be at all.
    """
    asked, file = asked or Asked(), find(Path(path))
    say = progress or (lambda words: None)
    checked_choices(asked.choices)
    raw = _plain(as_written(file, overrides, asked.choices), asked)
    try:
        scenario = checked(_first(raw, asked.choices), file.parent)
        refuse(scenario, asked)
    except ScenarioError as error:
        raise ScenarioError([_led(file, line) for line in error.problems]) from None
    space = Space(raw, file.parent, *_chosen(scenario, raw, asked))
    with executor or executor_for(1) as at_work:
        return _found(asked, scenario, space, at_work, store, say)


def _led(file: Path, line: str) -> str:
    return line if line.startswith("--") else f"{file}: {line}"


def _plain(raw: dict[str, Any], asked: Asked) -> dict[str, Any]:
    """The scenario without what a plan does not look at: times alone, of few steps."""
    raw = {key: value for key, value in raw.items() if key not in ("sweep", "measured")}
    workload = raw.get("workload")
    if isinstance(workload, dict):
        steps = workload.get("steps")
        few = min(steps, MOST_STEPS) if isinstance(steps, int) else STEPS
        raw["workload"] = {k: v for k, v in workload.items() if k not in ("epochs", "inject")}
        raw["workload"]["steps"] = few
        if asked.goal in GOALS:
            raw["numerics"] = False
    return raw


def _first(raw: dict[str, Any], choices: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """The scenario as it stands, with the first values of what it does not say itself."""
    found: dict[str, Any] = {**raw, "workload": dict(raw.get("workload") or {})}
    for key, values in choices.items():
        section, _, rest = key.partition(".")
        there = found.get(section)
        lacks = section not in found or (
            rest and "." not in rest and isinstance(there, dict) and rest not in there
        )
        if lacks and section in Scenario.model_fields and key not in (ACCUM, MICRO, BATCH):
            set_key(found, key, values[0])
    return found


def _chosen(
    scenario: Scenario, raw: dict[str, Any], asked: Asked
) -> tuple[dict[str, list[Any]], int | None]:
    """What to choose from, and the samples of a step that every point keeps."""
    choices = {key: list(values) for key, values in asked.choices.items()}
    choices = choices or usual_choices(scenario, asked.goal)
    if BATCH in choices or ACCUM in choices:
        return choices, None
    batch = asked.global_batch
    if batch is None:
        batch = int(scenario.workload.samples_per_step(scenario.cluster.world_size))
    varies = MICRO in choices or any(key in choices for key in ("nodes", WORLD, "cluster.machine"))
    if asked.global_batch is not None or varies:
        return choices, batch
    return choices, batch if raw["workload"].get("global_batch") else None


def _found(
    asked: Asked,
    scenario: Scenario,
    space: Space,
    executor: Executor,
    store: Store | None,
    say: Progress,
) -> Plan:
    samples = _samples_of(scenario)
    say(f"{len(space):,} points")
    is_exact = len(space) <= MAX_POINTS
    if is_exact:
        points, impossible = _every_point(space)
        bounds = Bounds(space, points, samples)
    else:
        points, impossible, bounds = sampled(space, asked, samples, executor, scenario.seed, say)
    if not bounds.is_possible.any():
        raise ScenarioError([_nothing(space, points, impossible)])
    player = Player(bounds, samples, executor, store)
    search = Search(bounds, asked.goal, asked.limits, player.play)
    refuse_untold(search, asked)
    bounds.look(executor, lambda n, count: say(f"bounds of {n:,} of {count:,} points"))
    say("simulating what the bounds leave open")
    search.run()
    made = Made(search, player, executor, asked)
    best, front = made.best(), made.front()
    nearest = None if best else search.nearest()
    if not best and nearest is None:
        raise ScenarioError([_nothing(space, points, impossible)])
    if nearest is not None:
        refuse_untold_nearest(search, asked, nearest)
    binding = made.binding(nearest)
    search.count()
    pruned = dict(search.pruned)
    pruned["impossible"] += sum(impossible.values())
    if not is_exact:
        pruned["sampled"] = len(space) - len(points) - sum(impossible.values())
    told = Plan(
        version=simdp.__version__,
        scenario=scenario.resolved(),
        goal=asked.goal,
        limits=asked.limits,
        target=None if scenario.target is None else scenario.target.kind,
        choices=space.choices,
        best=tuple(best),
        front=tuple(front),
        nearest=None if nearest is None else made.told(nearest, made.misses_in_words(nearest)),
        binding=binding,
        order=order(best, asked.goal),
        num_points=len(space),
        num_simulated=len(search.options),
        pruned=pruned,
        is_exact=is_exact,
        notes=tuple(made.notes(scenario)),
    )
    return _with_files(told)


def _every_point(space: Space) -> tuple[list[Point], dict[str, int]]:
    """All points, and why others cannot be, with how many of these there are."""
    points, impossible = list[Point](), dict[str, int]()
    for point in space.points():
        if isinstance(point, Point):
            points.append(point)
        else:
            impossible[point] = impossible.get(point, 0) + 1
    return points, impossible


def _samples_of(scenario: Scenario) -> Callable[[int], float | None]:
    """What the target takes, by global batch; a million samples without one."""
    target, there = scenario.target, scenario.workload.num_samples(scenario.base)

    def samples(batch: int) -> float | None:
        if target is None:
            return MILLION
        if target.problem_with(batch, there):
            return None
        need = target.need(batch, there)
        return None if need is None else need.mean

    return samples


def _nothing(space: Space, points: Sequence[Point], impossible: Mapping[str, int]) -> str:
    """Say why no point can be: the reason of most of the first ones."""
    reasons = dict(impossible)
    for point in points[:SHOWN]:
        try:
            space.scenario(point.settings)
        except ScenarioError as error:
            reasons[error.problems[0]] = reasons.get(error.problems[0], 0) + 1
    often = max(reasons, key=lambda why: reasons[why], default="no target is told for its batch.")
    return f"--choose: none of {len(space):,} points can be; {often}"


def ready(
    path: str | os.PathLike[str],
    found: Plan,
    overrides: Mapping[str, Any] | None = None,
    folder: Path | None = None,
) -> dict[str, dict[str, Any]]:
    """Write out what plays each option of a plan.

    Parameters
    ----------
    path, overrides
        As `plan` was given.
    found : Plan
        What it found.
    folder : Path, optional
        Where the scenarios will lie: their paths start from there.

    Returns
    -------
    dict of str to dict
        Scenarios as plain data with every default spelled out, by the names of their files.
    """
    file = find(Path(path))
    raw = _plain(as_written(file, overrides, found.choices), Asked(found.goal))
    space = Space(raw, file.parent, found.choices, None)
    scenarios = {}
    for option in found.options:
        settings = dict(option.set)
        if MICRO in settings and "global_batch" in raw["workload"]:
            settings[BATCH] = None
        assert option.file is not None
        scenarios[option.file] = space.scenario(settings).resolved(folder)
    return scenarios


def _with_files(found: Plan) -> Plan:
    """Give every option a file."""
    names = {
        repr(option.set): f"option-{number:02d}.yaml"
        for number, option in enumerate(found.options, 1)
    }

    def named(option: Option) -> Option:
        return replace(option, file=names[repr(option.set)])

    return replace(
        found,
        best=tuple(map(named, found.best)),
        front=tuple(map(named, found.front)),
        nearest=None if found.nearest is None else named(found.nearest),
    )
