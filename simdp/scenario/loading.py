"""Loads a scenario and reports all of its problems at once."""

from __future__ import annotations

import copy
import json
import os
import re
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from simdp.errors import ScenarioError, shown
from simdp.keys import format_settings
from simdp.scenario.checks import (
    algorithm_problems,
    failure_problems,
    fault_problems,
    follows,
    group_problems,
    joint_problems,
    noise_problems,
    recovery_problems,
    remove_invalid,
    shared_network_problems,
    size_problems,
    sure,
    target_problems,
)
from simdp.scenario.measured import built, contradictions, world_size
from simdp.scenario.overrides import (
    Raw,
    as_written,
    grid,
    may_name,
    move_paths,
    sweep_problems,
    with_current_sweep,
    with_machine,
)
from simdp.scenario.placement import degraded_problems, neighbour_problems, straggler_problems
from simdp.scenario.root import Scenario, build, validated
from simdp.scenario.shipped import find
from simdp.spec import problems
from simdp.steps.ops import Update
from simdp.steps.program import ProcessGroups, Program, flat
from simdp.strategies.base import Strategy
from simdp.workload import Workload, workload_problems

Calls = tuple[list[str], list[ProcessGroups]]

CALLED: deque[tuple[tuple[Any, ...], Calls]] = deque(maxlen=64)
"""Collectives of the last jobs, with their inputs."""


def load_scenario(
    path: str | os.PathLike[str], overrides: Mapping[str, Any] | None = None
) -> Scenario:
    """Read and check a scenario.

    Parameters
    ----------
    path : path-like
        A YAML file, or a saved ``result.json`` with its scenario; or the name of a shipped scenario
        such as ``8gpu_ring``, if no such file exists.
    overrides : mapping of str to value, optional
        Dotted keys, for example ``{"cluster.world_size": 4}``, set before validation. Setting a
        ``kind`` drops the options of the old kind, and any override drops ``measured``, which
        belongs to the scenario of the file.

    Returns
    -------
    Scenario
        Frozen and valid, at every point of its sweep.

    Raises
    ------
    ScenarioError
        With every problem found, one line each.
    """
    file = find(Path(path))
    raw = as_written(file, overrides)
    try:
        return checked(raw, file.parent)
    except ScenarioError as error:
        raise ScenarioError([f"{file}: {line}" for line in error.problems]) from None


LISTS = ("points", "collectives", "memory")
"""Lists of ``measured``."""

MEASURED_PART = re.compile(rf"(?<![\w.])(measured(?:\.|: ))?({'|'.join(LISTS)})\.(\d+)(?!\d)(.*)")
"""An entry of a list of ``measured`` in a problem, and the rest of the line."""


def load_valid_points(path: Path) -> tuple[Scenario, dict[str, list[int]], dict[str, str]]:
    """Read a scenario without the points, tables and peaks of ``measured`` that are wrong.

    Parameters
    ----------
    path : Path
        As for `load_scenario`.

    Returns
    -------
    (Scenario, dict of str to list of int, dict of str to str)
        The scenario; for each list of ``measured`` the numbers of its entries in the file; and the
        first problem of each entry that is left out, such as ``"points.3"``.

    Raises
    ------
    ScenarioError
        If something else is wrong, or no entry remains; with every problem.
    """
    file = find(Path(path))
    raw, left_out, lines = as_written(file, None), dict[str, str](), list[str]()
    measured = raw.get("measured")
    lists = dict(measured) if isinstance(measured, dict) else {}
    names = [name for name in LISTS if isinstance(lists.get(name), list)]
    numbers = {name: list(range(len(lists[name]))) for name in names}

    def in_file(match: re.Match[str]) -> str:
        lead, name, number, rest = match.groups()
        kept = numbers.get(name, [])
        shown = kept[int(number)] if int(number) < len(kept) else number
        return f"{lead or ''}{name}.{shown}{MEASURED_PART.sub(in_file, rest)}"

    while True:
        try:
            return checked(raw, file.parent), numbers, left_out
        except ScenarioError as error:
            matches = [MEASURED_PART.match(line) for line in error.problems]
            lines += [MEASURED_PART.sub(in_file, line) for line in error.problems]
        bad: dict[str, set[int]] = {name: set() for name in names}
        for line, match in zip(lines[-len(matches) :], matches, strict=True):
            if match is None or not match[1] or int(match[3]) >= len(numbers.get(match[2], ())):
                raise ScenarioError([f"{file}: {line}" for line in lines])
            bad[match[2]].add(int(match[3]))
            place = f"{match[2]}.{numbers[match[2]][int(match[3])]}"
            left_out.setdefault(place, line[match.end(1) :].removeprefix(place).lstrip(".: "))
        for name, wrong in bad.items():
            lists[name] = [entry for i, entry in enumerate(lists[name]) if i not in wrong]
            numbers[name] = [entry for i, entry in enumerate(numbers[name]) if i not in wrong]
        if not any(numbers.values()):
            raise ScenarioError([f"{file}: {line}" for line in lines])
        raw = {**raw, "measured": lists}


def of(given: object) -> Scenario:
    """Return the given scenario, or load one from a path or by name.

    Raises
    ------
    TypeError
        If it is none of these.
    ScenarioError
        As `load_scenario`.
    """
    if isinstance(given, Scenario):
        return given
    if isinstance(given, str | os.PathLike):
        return load_scenario(given)
    raise TypeError(
        f"scenario must be a Scenario, a path or the name of a shipped scenario, got "
        f"{shown(given)} of type {type(given).__name__}; use simdp.load_scenario(path)"
    )


def checked(raw: Raw, base: Path, largest: int = 1) -> Scenario:
    """Validate a scenario as plain data, with every point of its sweep.

    Stragglers and faults have no effect on ranks that only a run of ``largest`` ranks has.

    Raises
    ------
    ScenarioError
        With every problem found.
    """
    raw = with_current_sweep(move_paths(raw, base.resolve(), base.resolve()))
    if wrong := sweep_problems(raw):
        raise ScenarioError(wrong)
    in_file = raw
    if not may_name(raw.get("sweep") or ()):
        raw = with_machine(raw, base)
    points = list(grid(raw, base)) if raw.get("sweep") else [({}, raw)]
    largest = max([largest, *(world_size(point) for _, point in points)])
    looked_at = [_checked_point(point, base, largest) for _, point in points]
    problems_of_points = [wrong for wrong, _ in looked_at]
    lines = [
        line for line in problems_of_points[0] if all(line in other for other in problems_of_points)
    ]
    for (chosen, _), wrong in zip(points, problems_of_points, strict=True):
        lines += [f"with {format_settings(chosen)}: {line}" for line in wrong if line not in lines]
    if not raw.get("sweep") and not lines:  # the only point is the scenario itself
        (_, scenario), *_ = looked_at
        if scenario is not None:
            return _with_measured(scenario, in_file, base)
    try:
        scenario = build(raw, base)
    except ScenarioError as error:
        if lines or not raw.get("sweep"):
            raise ScenarioError(lines or error.problems) from None
        # A key that only the sweep gives: the last point replaces the file's own value.
        scenario = build({**points[-1][1], "sweep": raw["sweep"]}, base)
    if lines:
        raise ScenarioError(lines)
    if may_name(scenario.sweep):
        scenario._written = in_file
    return _with_measured(scenario, in_file, base)


def _with_measured(scenario: Scenario, in_file: Raw, base: Path) -> Scenario:
    """Build the scenarios of the measured points; ``in_file`` is the file's content."""
    measured = scenario.measured
    if measured is None:
        return scenario
    lines, made = built(measured, in_file, base, lambda raw, n: _checked_point(raw, base, n))
    if not lines:
        points = made[: len(measured.points)]
        samples = [p.workload.samples_per_step(p.cluster.world_size) for p in points]
        lines = contradictions(measured, _simulation_keys(points, samples), samples)
    if lines:
        raise ScenarioError(lines)
    scenario._measured = made
    return scenario


def _simulation_keys(points: Sequence[Scenario], samples: Sequence[float]) -> list[str]:
    """Return a key of each point's simulation, formatted only if two points may be equal."""
    sizes = [(point.cluster.world_size, of) for point, of in zip(points, samples, strict=True)]
    count = Counter(sizes)
    return [
        json.dumps(point.resolved()) if count[size] > 1 else str(size)
        for point, size in zip(points, sizes, strict=True)
    ]


# What cannot be right, all of it at once -------------------------------------------------------


def _checked_point(raw: Raw, base: Path, largest: int) -> tuple[list[str], Scenario | None]:
    """Return all problems of one point, and the scenario if there are none.

    Invalid keys are removed and the rest is checked again, until it is valid or nothing more can be
    removed. Checks that depend on removed keys are skipped.
    """
    lines: list[str] = []
    mended, doubts = copy.deepcopy(raw), list[tuple[str, ...]]()
    scenario = None
    while scenario is None:
        try:
            scenario = validated(mended, base)
        except ValidationError as error:
            invalid = problems(error, mended)
            fresh = [p.line for p in invalid if not follows(p.place, doubts)]
            lines += [line for line in fresh if line not in lines]
            taken_out = [place for p in invalid if (place := remove_invalid(mended, p)) is not None]
            unknown = [(*p.place, p.unknown) for p in invalid]  # not reported as missing
            doubts += [place for place in taken_out if place not in unknown]
            if not taken_out:
                return lines + _file_problems(_workload(mended, base), base, doubts), None
    lines = unsuited(scenario, largest, lines, doubts)
    return lines, None if lines or doubts else scenario


def unsuited(
    scenario: Scenario,
    largest: int | None = None,
    lines: Sequence[str] = (),
    doubts: Sequence[tuple[str, ...]] = (),
) -> list[str]:
    """Return the problems of a scenario with valid keys.

    Parameters
    ----------
    scenario : Scenario
        One point.
    largest : int, optional
        As for `checked`; default: the scenario's ``world_size``.
    lines, doubts : sequence of str, of tuple of str
        Problems of its keys, and the keys removed for them.
    """
    lines, doubts, base = list(lines), list(doubts), scenario.base
    files = _file_problems(scenario.workload, base, doubts)
    if files and scenario.workload.model.unread:  # without its file it has no layers
        doubts.append(("workload", "model"))
    lines += files + _settling_problems(scenario)
    cluster, workload, strategy = scenario.cluster, scenario.workload, scenario.strategy
    largest = cluster.world_size if largest is None else largest
    if sure(doubts, ("cluster", "stragglers"), ("cluster", "world_size")):
        lines += straggler_problems(cluster, largest)
        if sure(doubts, ("collectives",), ("strategy",)):
            cost, has_server = scenario.collectives.cost, strategy.has_server
            lines += degraded_problems(cluster, cost, has_server, bool(scenario.neighbours))
    if sure(doubts, ("cluster", "failures"), ("cluster", "world_size")):
        lines += failure_problems(cluster, largest)
    if sure(doubts, ("workload", "inject"), ("cluster", "world_size")):
        lines += fault_problems(workload, largest)
    lines += joint_problems(cluster, workload, strategy, partial(sure, doubts))
    lines += neighbour_problems(cluster, [job.world_size for job in scenario.neighbours])
    numerics = scenario.numerics
    lines = lines or size_problems(cluster, workload, strategy, base, numerics)
    lines = lines or target_problems(scenario.target, cluster, workload, base, numerics)
    lines = lines or noise_problems(cluster, workload, strategy, base, numerics)
    if not lines and not doubts:
        lines = _job_problems(scenario, bool(scenario.neighbours)) + recovery_problems(scenario)
        for number in range(len(scenario.neighbours)):
            job = scenario.neighbour(number)
            lines += [f"neighbours.{number}.{line}" for line in _whole_job_problems(job)]
    return lines


def _job_problems(scenario: Scenario, among_jobs: bool) -> list[str]:
    """Refuse algorithms that do not support a valid job."""
    try:
        called, groups = _called(scenario)
    except ScenarioError as error:
        return error.problems
    loners = shared_network_problems(scenario.collectives, scenario.strategy) if among_jobs else []
    if loners:
        return loners
    cluster, collectives = scenario.cluster, scenario.collectives
    lines = algorithm_problems(cluster, collectives, called, among_jobs)
    return lines + group_problems(cluster, collectives, groups)


def _called(scenario: Scenario) -> Calls:
    """Return the collectives of a job, and their groups.

    Measured points usually differ in batch size only. If all steps are full, that changes neither
    the collectives nor their sizes.
    """
    cluster, workload = scenario.cluster, scenario.workload
    batch = {"microbatch": None, "compute": None}
    inputs = None
    if not workload.dataset.has_samples and workload.microbatch is not None:
        size = cluster.world_size, cluster.local_size, cluster.overheads
        inputs = size, scenario.strategy, workload.model_copy(update=batch)
        for cached, calls in CALLED:
            if cached == inputs:
                return calls
    _refuse_other_updates(scenario.strategy, workload, scenario.program)
    calls = [name for name, _ in scenario.calls()], scenario.program.groups
    if inputs is not None:
        CALLED.append((inputs, calls))
    return calls


def _whole_job_problems(job: Scenario) -> list[str]:
    """Return all problems of a neighbour with valid keys."""
    cluster, workload, strategy = job.cluster, job.workload, job.strategy
    lines = [f"workload.{line}" for line in workload_problems(workload, job.base)]
    lines += _settling_problems(job)
    lines += joint_problems(cluster, workload, strategy, lambda *places: True)
    lines = lines or size_problems(cluster, workload, strategy, job.base, False)
    return lines or _job_problems(job, True)


def _workload(raw: Raw, base: Path) -> Workload | None:
    """Return the workload of an invalid scenario, if that part is valid."""
    try:
        return Workload.model_validate(raw.get("workload"), context={"base": base})
    except ValidationError:
        return None


def _file_problems(
    workload: Workload | None, base: Path, doubts: list[tuple[str, ...]]
) -> list[str]:
    """Check the files of a valid workload, even if other parts are invalid."""
    keys = ("model", "dataset", "loss", "weights", "shuffle")
    if workload is None or not sure(doubts, *(("workload", key) for key in keys)):
        return []
    return [f"workload.{line}" for line in workload_problems(workload, base)]


def _refuse_other_updates(strategy: Strategy, workload: Workload, program: Program) -> None:
    """Raise if a training step of synchronous ranks has none or several updates."""
    if workload.mode == "inference" or strategy.has_server:
        return
    for plan in program.plans:
        number = sum(isinstance(op, Update) for op in flat(plan))
        if number != 1:
            raise ScenarioError(
                [
                    f"strategy.kind: a training step of {strategy.kind} yields {number} updates, "
                    "and each has one; let its train_step end with yield Update()."
                ]
            )


def _settling_problems(scenario: Scenario) -> list[str]:
    """Check the files of algorithms and strategies."""
    lines = []
    for key, lead in (("collectives", ""), ("strategy", "strategy.")):
        try:
            getattr(scenario, key).settled(scenario.base)
        except ScenarioError as error:
            lines += [f"{lead}{line}" for line in error.problems]
    return lines
