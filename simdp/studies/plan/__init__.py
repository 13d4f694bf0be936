"""Searches for machine, number of nodes, strategy and settings.

Every point has lower bounds (`bounds`); points that the bounds do not exclude are simulated
(`search`), so that the result equals that of simulating all points.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from simdp.errors import ScenarioError, joined
from simdp.job.targets import SamplesNeeded
from simdp.results.plan import GOALS, InfeasiblePoints, Option, PlanResult
from simdp.scenario import checked
from simdp.scenario.overrides import Raw, as_written, set_key
from simdp.scenario.root import Scenario
from simdp.scenario.shipped import find
from simdp.strategies import STRATEGIES
from simdp.studies.executor import PointExecutor, executor_for
from simdp.studies.plan.bounds import Bounds, NeedOf
from simdp.studies.plan.report import (
    PlanReport,
    check_figures,
    check_nearest_figures,
    order,
    why_alone,
)
from simdp.studies.plan.request import (
    ACCUM,
    BATCH,
    MAX_POINTS,
    MICRO,
    WORLD,
    Infeasible,
    LearningSettings,
    PlanPoint,
    PlanRequest,
    Space,
    checked_choices,
    refuse,
    summed,
    usual_choices,
)
from simdp.studies.plan.search import Player, Search, sampled
from simdp.studies.store import Store
from simdp.version import __version__

__all__ = ["PlanRequest", "plan", "ready"]

STEPS, MOST_STEPS = 2, 8  # steps of a run that sets none, the first being warm-up; and most steps

MILLION = 1e6

Progress = Callable[[str], None]


def plan(
    path: str | os.PathLike[str],
    request: PlanRequest | None = None,
    overrides: Mapping[str, object] | None = None,
    *,
    executor: PointExecutor | None = None,
    store: Store | None = None,
    progress: Progress | None = None,
) -> PlanResult:
    """Find the best settings for training.

    Parameters
    ----------
    path : path-like
        A YAML file, a saved result.json, or the name of a shipped scenario. Its sweep and
        measurements are left out.
    request : PlanRequest, optional
        Goal, limits and choices.
    overrides : mapping of str to value, optional
        Keys that are set at every point, as for `simdp.load_scenario`.
    executor : PointExecutor, optional
        Simulates; the result is the same for any. By default this process.
    store : Store, optional
        Keeps simulated points.
    progress : callable, optional
        Called with a line of text.

    Returns
    -------
    PlanResult
        With ``best`` and ``front``, or with the ``nearest`` where nothing meets the limits.

    Raises
    ------
    ScenarioError
        If options do not go together, or no point is feasible.
    """
    request, file = request or PlanRequest(), find(Path(path))
    say = progress or (lambda words: None)
    checked_choices(request.choices)
    raw = _timing_only(as_written(file, overrides, request.choices), request)
    try:
        scenario = checked(_with_first_choices(raw, request.choices), file.parent)
        refuse(scenario, request)
    except ScenarioError as error:
        lines = [line if line.startswith("--") else f"{file}: {line}" for line in error.problems]
        raise ScenarioError(lines) from None
    space = Space(raw, file.parent, *_choices(scenario, raw, request))
    with executor or executor_for(1) as at_work:
        own = _file_settings(raw, scenario)
        return _searched(request, scenario, own, space, at_work, store, say)


def _timing_only(raw: Raw, request: PlanRequest) -> Raw:
    """The scenario for a plan: timing only, few steps, no sweep or measurements."""
    raw = {key: value for key, value in raw.items() if key not in ("sweep", "measured")}
    workload = raw.get("workload")
    if isinstance(workload, dict):
        steps = workload.get("steps")
        few = min(steps, MOST_STEPS) if isinstance(steps, int) else STEPS
        kept = {k: v for k, v in workload.items() if k not in ("epochs", "inject")}
        raw["workload"] = {**kept, "steps": few}
        if request.goal in GOALS:
            raw["numerics"] = False
    return raw


def _with_first_choices(raw: Raw, choices: Mapping[str, Sequence[object]]) -> Raw:
    """The scenario, with the first choices of keys that it lacks."""
    changed: dict[str, Any] = {**raw, "workload": dict(raw.get("workload") or {})}
    for key, values in choices.items():
        section, _, rest = key.partition(".")
        there = changed.get(section)
        lacks = section not in changed or (
            rest and "." not in rest and isinstance(there, dict) and rest not in there
        )
        if lacks and section in Scenario.model_fields and key not in (ACCUM, MICRO, BATCH):
            set_key(changed, key, values[0])
    return changed


def _choices(
    scenario: Scenario, raw: Raw, request: PlanRequest
) -> tuple[dict[str, list[Any]], int | None]:
    """The choices, and the samples of a step that every point keeps."""
    choices = {key: list(values) for key, values in request.choices.items()}
    choices = choices or usual_choices(scenario, request.goal)
    if BATCH in choices or ACCUM in choices:
        return choices, None
    batch = request.global_batch
    if batch is None:
        batch = int(scenario.workload.samples_per_step(scenario.cluster.world_size))
    varies = MICRO in choices or any(key in choices for key in ("nodes", WORLD, "cluster.machine"))
    if request.global_batch is not None or varies:
        return choices, batch
    return choices, batch if raw["workload"].get("global_batch") else None


def _searched(
    request: PlanRequest,
    scenario: Scenario,
    own: LearningSettings,
    space: Space,
    executor: PointExecutor,
    store: Store | None,
    say: Progress,
) -> PlanResult:
    need_of = _need_of(scenario)
    is_exact = len(space) <= MAX_POINTS
    impossible, bounds = _bounded(space, request, need_of, executor, scenario.seed, say)

    def changes(other: Scenario, batch: int) -> list[str]:
        return own.changes(LearningSettings(other, batch))

    player = Player(bounds, need_of, changes, executor, store)
    margin = _margin(player, request.sure)
    search = Search(bounds, request.goal, request.limits, player.play, margin)
    check_figures(search, request)
    bounds.look(executor, lambda n, count: say(f"bounds of {n:,} of {count:,} points"))
    say("simulating what the bounds leave open")
    search.run()
    report = PlanReport(search, player, request)
    best, front = report.best(), report.front()
    nearest = None if best else search.nearest()
    if not best and nearest is None:
        raise ScenarioError(_why_none(space, bounds, impossible | Counter(player.why.values())))
    if nearest is not None:
        check_nearest_figures(search, request, nearest)
    binding = report.binding(nearest)
    search.count()
    pruned = dict(search.pruned)
    pruned["impossible"] += sum(impossible.values())
    if not is_exact:
        pruned["sampled"] = len(space) - len(bounds.points) - sum(impossible.values())
    if len(best) == 1:
        alone = why_alone(len(space), len(search.options), pruned)
        best = [replace(best[0], why=alone)]
    result = PlanResult(
        version=__version__,
        scenario=scenario.resolved(),
        goal=request.goal,
        limits=request.limits,
        target=None if scenario.target is None else scenario.target.kind,
        choices=space.choices,
        best=tuple(best),
        front=tuple(front),
        nearest=None if nearest is None else report.nearest(nearest),
        binding=binding,
        order=order(best, request.goal),
        num_points=len(space),
        num_simulated=len(search.options),
        pruned=pruned,
        infeasible=_infeasible(search, player, impossible, request),
        sure=request.sure,
        is_exact=is_exact,
        notes=tuple(report.notes(scenario)),
    )
    return _with_files(result)


def _bounded(
    space: Space,
    request: PlanRequest,
    need_of: NeedOf,
    executor: PointExecutor,
    seed: int,
    say: Progress,
) -> tuple[dict[Infeasible, int], Bounds]:
    """Reasons of infeasible points, and the bounds of the others: of all, or of a sample."""
    say(f"{len(space):,} points")
    if len(space) <= MAX_POINTS:
        points, impossible = _every_point(space)
        bounds = Bounds(space, points, need_of)
    else:
        _, impossible, bounds = sampled(space, request, need_of, executor, seed, say)
    if not bounds.is_possible.any():
        raise ScenarioError(_why_none(space, bounds, impossible))
    return impossible, bounds


def _every_point(space: Space) -> tuple[list[PlanPoint], dict[Infeasible, int]]:
    """All feasible points, and the numbers of others by reason."""
    points, impossible = list[PlanPoint](), Counter[Infeasible]()
    for point in space.points():
        if isinstance(point, PlanPoint):
            points.append(point)
        else:
            impossible[point] += 1
    return points, impossible


def _need_of(scenario: Scenario) -> NeedOf:
    """Samples to the target, by global batch; a million without a target."""
    target, there = scenario.target_in_samples, scenario.workload.num_samples(scenario.base)

    def need_of(batch: int) -> SamplesNeeded | str:
        if target is None:
            return SamplesNeeded(MILLION)
        wrong = target.problem_with(batch, there)
        if wrong:
            return f"target.{wrong}"
        return target.need(batch, there) or "target: is only known from a run"

    return need_of


def _file_settings(raw: Mapping[str, object], scenario: Scenario) -> LearningSettings:
    """Learning settings of the file's scenario; with DDP where it names no strategy."""
    batch = int(scenario.workload.samples_per_step(scenario.cluster.world_size))
    if "strategy" not in raw:
        scenario = scenario.model_copy(update={"strategy": STRATEGIES["ddp"].model_validate({})})
    return LearningSettings(scenario, batch)


def _margin(player: Player, sure: float | None) -> Callable[[int], float] | None:
    """Factor on the mean time of a point for meeting limits with a probability."""
    if sure is None:
        return None

    @cache
    def margin(number: int) -> float:
        return max(float(np.quantile(player.factors(number), sure)), 1.0)

    return margin


LIMIT_OPTIONS = {
    "memory": "workload.recompute, strategy: fsdp, or a smaller workload.microbatch",
    "deadline": "--deadline",
    "budget": "--budget",
    "energy": "--energy",
}
"""Options to change where points miss a limit."""


def _infeasible(
    search: Search, player: Player, impossible: Mapping[Infeasible, int], request: PlanRequest
) -> list[InfeasiblePoints]:
    """Reasons of points that cannot be chosen, with counts and options to change."""
    counts, points = Counter(impossible), search.bounds.points
    counts.update(search.bounds.why.values())
    counts.update(player.why[number] for number in search.failed)
    rows = summed(counts, Counter(p.world_size * p.microbatch for p in points if p.microbatch))
    for name, option in LIMIT_OPTIONS.items():
        if count := search.pruned.get(name):
            reason = f"misses the {name}"
            if name == "memory":
                reason = "needs more memory than a rank has"
                option = option if request.memory is None else "--max-memory"
            rows.append(InfeasiblePoints(reason, count, option))
    return sorted(rows, key=lambda row: -row.count)


def _why_none(space: Space, bounds: Bounds, impossible: Mapping[Infeasible, int]) -> str:
    """Name the most frequent reason why no point is feasible."""
    counts = Counter(impossible)
    counts.update(bounds.why.values())
    most, *_ = summed(counts)
    lead = f"--choose: none of {len(space):,} points can be simulated; {most.reason}"
    return joined([lead, *[f"try {most.option}."] * bool(most.option)])


def ready(
    path: str | os.PathLike[str],
    planned: PlanResult,
    overrides: Mapping[str, object] | None = None,
    folder: Path | None = None,
) -> dict[str, dict[str, Any]]:
    """Write the scenario of each option of a plan.

    Parameters
    ----------
    path, overrides
        As for `plan`.
    planned : PlanResult
        From `plan`.
    folder : Path, optional
        Folder of the scenarios, which their paths start from.

    Returns
    -------
    dict of str to dict
        Resolved scenarios as plain data, by file name.
    """
    file = find(Path(path))
    raw = _timing_only(as_written(file, overrides, planned.choices), PlanRequest(planned.goal))
    space = Space(raw, file.parent, planned.choices, None)
    scenarios = {}
    for option in planned.options:
        settings = dict(option.set)
        if MICRO in settings and "global_batch" in raw["workload"]:
            settings[BATCH] = None
        assert option.file is not None
        scenarios[option.file] = space.steady(settings).resolved(folder)
    return scenarios


def _with_files(planned: PlanResult) -> PlanResult:
    names = {
        repr(option.set): f"option-{number:02d}.yaml"
        for number, option in enumerate(planned.options, 1)
    }

    def named(option: Option) -> Option:
        return replace(option, file=names[repr(option.set)])

    return replace(
        planned,
        best=tuple(map(named, planned.best)),
        front=tuple(map(named, planned.front)),
        nearest=None if planned.nearest is None else named(planned.nearest),
    )
