"""Scenario, the root of every YAML file, with its overrides and sweeps."""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PrivateAttr, ValidationError, ValidationInfo, field_validator

from simdp.cluster import Cluster
from simdp.collectives import Collectives
from simdp.doubts import follows, sure, take_out
from simdp.errors import ScenarioError
from simdp.feasibility import (
    algorithm_problems,
    fault_problems,
    group_problems,
    joint_problems,
    loner_problems,
    size_problems,
    straggler_problems,
)
from simdp.machines import may_name, with_machine
from simdp.measured import Measured, built, contradictions, world_size
from simdp.neighbours import Neighbour, neighbour_problems
from simdp.overrides import Raw, as_written, grid, move_paths, sweep_problems
from simdp.spec import Bool, Int, Spec, problem, problems
from simdp.strategies import AnyStrategy
from simdp.strategies.base import ProcessGroups
from simdp.workload import Workload
from simdp.workload.checks import workload_problems

_AS_THE_MODEL: Any = object()
"""Stands for a key that is not written, since ``numerics: null`` is an error."""


class Scenario(Spec):
    """One experiment.

    Attributes
    ----------
    name : str
        The file's stem by default.
    seed : int
        Of every random stream.
    cluster, workload, strategy, collectives
        What exists, what is learned, how, and by which collective algorithms.
    neighbours : list of Neighbour
        Other jobs on nodes of their own, which share the network between nodes.
    placement : {"packed", "interleaved"}
        Which nodes each job gets: one job after the other, or a node to each in turn.
    numerics : bool
        False simulates time only, without arrays; the default where the model has no numbers, or
        no data set.
    sweep : dict of str to list
        Dotted keys and their values; several make a grid whose last key runs fastest.
    measured : Measured or None
        What a real machine did.
    """

    name: str = "scenario"
    seed: Int = Field(0, ge=0, lt=2**63)
    cluster: Cluster
    workload: Workload
    strategy: AnyStrategy = Field("ddp", validate_default=True)
    collectives: Collectives = Collectives()
    neighbours: list[Neighbour] = Field(default_factory=list)
    placement: Literal["packed", "interleaved"] = "packed"
    numerics: Bool = Field(_AS_THE_MODEL, validate_default=True)
    sweep: dict[str, list[Any]] = Field(default_factory=dict)
    measured: Measured | None = None

    _base: Path = PrivateAttr(default=Path())
    _written: Raw = PrivateAttr(default_factory=dict)
    _measured: list[Scenario] = PrivateAttr(default_factory=list)

    @field_validator("name")
    @classmethod
    def _names_a_folder(cls, value: str) -> str:
        if not re.fullmatch(r"\w[\w.+-]*", value):
            raise problem(f"{value!r} cannot name a folder; use letters, digits, '_', '-' and '.'.")
        return value

    @field_validator("numerics", mode="before")
    @classmethod
    def _where_there_are_numbers(cls, value: Any, info: ValidationInfo) -> Any:
        workload: Workload | None = info.data.get("workload")
        timed = workload is not None and workload.model.timed
        no_data = workload is not None and workload.dataset.kind == "none"
        if value is True and no_data and not timed:
            raise problem(
                "there is no data set to learn from; add a dataset, or write numerics: false."
            )
        if value is True and workload is not None and timed:
            raise problem(
                f"the model {workload.model.kind} has times but no numbers; leave this out, or "
                "write numerics: false."
            )
        return not (timed or no_data) if value is _AS_THE_MODEL else value

    @property
    def base(self) -> Path:
        """The folder that relative paths start from: the scenario file's."""
        return self._base

    def calls(self) -> list[tuple[str, int]]:
        """Collectives that a run calls: keys of ``collectives``, and roots."""
        workload, n = self.workload, self.cluster.world_size
        called = self.strategy.uses(n, workload, workload.dataset.length(self.base))
        if workload.graph.is_synchronised:
            called += [("all_gather", 0), ("all_reduce", 0)]
        return list(dict.fromkeys(called))

    def process_groups(self) -> list[ProcessGroups]:
        """Those of the strategy that have collectives of their own."""
        n, local_size = self.cluster.world_size, self.cluster.local_size
        return self.strategy.process_groups(self.workload, local_size, n)

    def measured_scenarios(self) -> tuple[list[Scenario], list[Scenario]]:
        """Scenarios of the points and of the tables of ``measured``, in their order."""
        num_points = len(self.measured.points) if self.measured else 0
        return self._measured[:num_points], self._measured[num_points:]

    def neighbour(self, number: int) -> Scenario:
        """One of the neighbours as a scenario of its own, on nodes like these."""
        job = self.neighbours[number]
        workload, collectives = job.workload, job.collectives
        with suppress(ScenarioError):  # a file is at fault, which their own checks report
            workload = workload.settled(self._base)
        with suppress(ScenarioError):
            collectives = collectives.settled(self._base)
        size = {"world_size": job.world_size, "stragglers": []}
        return self.model_copy(
            update={
                "cluster": self.cluster.model_copy(update=size),
                "workload": workload,
                "strategy": job.strategy,
                "collectives": collectives,
                "neighbours": [],
                "numerics": False,
            }
        )

    def resolved(self, folder: Path | None = None) -> Raw:
        """Write the scenario as plain data that loads again: defaults and units spelled out.

        Parameters
        ----------
        folder : Path, optional
            Where it will lie: its paths start from there. Left out, from where they do now.
        """
        raw: Raw = self.model_dump(mode="json", exclude_none=True)
        if self.cluster.machine is not None:  # what it brings would fill a key that says null
            raw["cluster"] |= _nulls(self.cluster)
            raw["collectives"]["cost"] |= _nulls(self.collectives.cost)
        if may_name(self.sweep):  # what one of them brings would win over the others
            raw = copy.deepcopy(self._written)
        return raw if folder is None else move_paths(raw, self._base.resolve(), folder.resolve())

    def points(self) -> list[tuple[Raw, Scenario]]:
        """Every point of the sweep: what it sets, and its scenario; one point without a sweep.

        Returns
        -------
        list of (dict, Scenario)
            In the order of the grid. A straggler or fault whose rank a point lacks is idle there.
        """
        if not self.sweep:
            return [({}, self)]
        points = grid(self.resolved(), self._base)
        return [(chosen, _build(raw, self._base)) for chosen, raw in points]


def load_scenario(
    path: str | os.PathLike[str], overrides: Mapping[str, Any] | None = None
) -> Scenario:
    """Read and check a scenario.

    Parameters
    ----------
    path : path-like
        A YAML file, or a saved ``result.json``, whose scenario is taken.
    overrides : mapping of str to value, optional
        Dotted keys, for example ``{"cluster.world_size": 4}``, set before validation. Setting a
        ``kind`` drops the options of the old kind. What was measured is of the scenario as it
        stands in the file, and is left out with any.

    Returns
    -------
    Scenario
        Frozen and valid, at every point of its sweep.

    Raises
    ------
    ScenarioError
        With every problem that was found, one line each.
    """
    file = Path(path)
    raw = as_written(file, overrides)
    try:
        return checked(raw, file.parent)
    except ScenarioError as error:
        raise ScenarioError([f"{file}: {line}" for line in error.problems]) from None


def checked(raw: Raw, base: Path, largest: int = 1) -> Scenario:
    """Validate a scenario as plain data, with every point of its sweep.

    Stragglers and faults are idle on ranks that only a run of ``largest`` ranks has.

    Raises
    ------
    ScenarioError
        With every problem that was found.
    """
    raw = move_paths(raw, base.resolve(), base.resolve())
    found = sweep_problems(raw)
    if found:
        raise ScenarioError(found)
    written = raw
    if not may_name(raw.get("sweep") or ()):
        raw = with_machine(raw, base)
    points = list(grid(raw, base)) if raw.get("sweep") else [({}, raw)]
    largest = max([largest, *(world_size(point) for _, point in points)])
    looked_at = [_look_at(point, base, largest) for _, point in points]
    each = [found for found, _ in looked_at]
    lines = [line for line in each[0] if all(line in other for other in each)]
    for (chosen, _), found in zip(points, each, strict=True):
        said = ", ".join(f"{key}={value}" for key, value in chosen.items())
        lines += [f"with {said}: {line}" for line in found if line not in lines]
    if not raw.get("sweep") and not lines:  # the only point is the scenario itself
        (_, scenario), *_ = looked_at
        if scenario is not None:
            return _with_measured(scenario, written, base)
    try:
        scenario = _build(raw, base)
    except ScenarioError as error:
        if lines or not raw.get("sweep"):
            raise ScenarioError(lines or error.problems) from None
        # A key that only the sweep gives: the last point stands for the file's own value.
        scenario = _build({**points[-1][1], "sweep": raw["sweep"]}, base)
    if lines:
        raise ScenarioError(lines)
    if may_name(scenario.sweep):
        scenario._written = written
    return _with_measured(scenario, written, base)


def _with_measured(scenario: Scenario, written: Raw, base: Path) -> Scenario:
    """Make the scenarios of what was measured; ``written`` is what stands in the file."""
    measured = scenario.measured
    if measured is None:
        return scenario
    lines, made = built(measured, written, base, lambda raw, n: _look_at(raw, base, n))
    if not lines:
        points = made[: len(measured.points)]
        samples = [p.workload.samples_per_step(p.cluster.world_size) for p in points]
        lines = contradictions(measured, [json.dumps(p.resolved()) for p in points], samples)
    if lines:
        raise ScenarioError(lines)
    scenario._measured = made
    return scenario


def _nulls(spec: Spec) -> Raw:
    """Keys of a spec that were written as null."""
    written = spec.model_fields_set
    return {key: None for key, value in spec if value is None and key in written}


def _build(raw: Raw, base: Path) -> Scenario:
    try:
        return _validated(raw, base)
    except ValidationError as error:
        raise ScenarioError([found.line for found in problems(error, raw)]) from None


def _validated(raw: Raw, base: Path) -> Scenario:
    """Validate, and fill in what the data tells of the model.

    Raises
    ------
    pydantic.ValidationError
        If it is not valid.
    """
    scenario = Scenario.model_validate(raw, context={"base": base})
    try:
        workload = scenario.workload.settled(base)
    except ScenarioError:  # a file of the workload is at fault, which its own checks report
        workload = scenario.workload
    try:
        collectives = scenario.collectives.settled(base)
    except ScenarioError:  # as above
        collectives = scenario.collectives
    scenario = scenario.model_copy(update={"workload": workload, "collectives": collectives})
    scenario._base = base
    return scenario


# What cannot be right, all of it at once -------------------------------------------------------


def _look_at(raw: Raw, base: Path, largest: int) -> tuple[list[str], Scenario | None]:
    """Say everything that is wrong with one point, and make it where that is nothing.

    What is wrong is taken out, and the rest is looked at again, until it is valid or nothing more
    can be taken out. Checks that would judge what was taken out are passed over.
    """
    lines: list[str] = []
    mended, doubts = copy.deepcopy(raw), list[tuple[str, ...]]()
    scenario = None
    while scenario is None:
        try:
            scenario = _validated(mended, base)
        except ValidationError as error:
            found = problems(error, mended)
            fresh = [p.line for p in found if not follows(p.place, doubts)]
            lines += [line for line in fresh if line not in lines]
            taken_out = [place for p in found if (place := take_out(mended, p)) is not None]
            unknown = [(*p.place, p.unknown) for p in found]  # nobody misses these
            doubts += [place for place in taken_out if place not in unknown]
            if not taken_out:
                return lines + _file_problems(_workload(mended), base, doubts), None
    files = _file_problems(scenario.workload, base, doubts)
    if files and scenario.workload.model.timed:  # without its file it has no layers
        doubts.append(("workload", "model"))
    lines += files + _algorithm_problems(scenario.collectives, base)
    cluster, workload, strategy = scenario.cluster, scenario.workload, scenario.strategy
    if sure(doubts, ("cluster", "stragglers"), ("cluster", "world_size")):
        lines += straggler_problems(cluster, largest)
    if sure(doubts, ("workload", "inject"), ("cluster", "world_size")):
        lines += fault_problems(workload, largest)
    lines += joint_problems(cluster, workload, strategy, partial(sure, doubts))
    lines += neighbour_problems(cluster, [job.world_size for job in scenario.neighbours])
    lines = lines or size_problems(cluster, workload, strategy, base, scenario.numerics)
    if not lines and not doubts:
        lines = _job_problems(scenario, bool(scenario.neighbours))
        for number in range(len(scenario.neighbours)):
            job = scenario.neighbour(number)
            lines += [f"neighbours.{number}.{line}" for line in _whole_job_problems(job)]
    return lines, None if lines or doubts else scenario


def _job_problems(scenario: Scenario, among_jobs: bool) -> list[str]:
    """Refuse algorithms that cannot serve a valid job."""
    called = [name for name, _ in scenario.calls()]
    loners = loner_problems(scenario.collectives, scenario.strategy) if among_jobs else []
    if loners:
        return loners
    cluster, collectives = scenario.cluster, scenario.collectives
    found = algorithm_problems(cluster, collectives, called, among_jobs)
    return found + group_problems(cluster, collectives, scenario.process_groups())


def _whole_job_problems(job: Scenario) -> list[str]:
    """Say everything that is wrong with a neighbour whose keys are valid."""
    cluster, workload, strategy = job.cluster, job.workload, job.strategy
    found = [f"workload.{line}" for line in workload_problems(workload, job.base)]
    found += _algorithm_problems(job.collectives, job.base)
    found += joint_problems(cluster, workload, strategy, lambda *places: True)
    found = found or size_problems(cluster, workload, strategy, job.base, False)
    return found or _job_problems(job, True)


def _workload(raw: Raw) -> Workload | None:
    """The workload of a scenario that is not valid, if that is."""
    try:
        return Workload.model_validate(raw.get("workload"))
    except ValidationError:
        return None


def _file_problems(
    workload: Workload | None, base: Path, doubts: list[tuple[str, ...]]
) -> list[str]:
    """Check the files of a workload that is valid, although other parts may not be."""
    keys = ("model", "dataset", "loss", "weights", "shuffle")
    if workload is None or not sure(doubts, *(("workload", key) for key in keys)):
        return []
    return [f"workload.{line}" for line in workload_problems(workload, base)]


def _algorithm_problems(collectives: Collectives, base: Path) -> list[str]:
    """Check the files of algorithms."""
    try:
        collectives.settled(base)
    except ScenarioError as error:
        return error.problems
    return []
