"""Scenario, the root of every YAML file, with its overrides and sweeps."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, PrivateAttr, TypeAdapter, ValidationError, field_validator

from simdp.cluster import Cluster
from simdp.collectives import Collectives
from simdp.errors import ScenarioError
from simdp.files import read_json, read_yaml
from simdp.overrides import Raw, grid, override, sweep_problems
from simdp.spec import Bool, Int, Spec, problem, problems
from simdp.strategies import AnyStrategy
from simdp.strategies.ddp import DDP
from simdp.strategies.memory import host_memory, host_memory_needed
from simdp.units import format_quantity
from simdp.workload import Workload


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
    numerics : bool
        False simulates time only, without arrays.
    sweep : dict of str to list
        Dotted keys and their values; several make a grid whose last key runs fastest.
    """

    name: str = "scenario"
    seed: Int = Field(0, ge=0, lt=2**63)
    cluster: Cluster
    workload: Workload
    strategy: AnyStrategy = DDP()
    collectives: Collectives = Collectives()
    numerics: Bool = True
    sweep: dict[str, list[Any]] = Field(default_factory=dict)

    _base: Path = PrivateAttr(default=Path())

    @field_validator("name")
    @classmethod
    def _names_a_folder(cls, value: str) -> str:
        if not re.fullmatch(r"\w[\w.+-]*", value):
            raise problem(f"{value!r} cannot name a folder; use letters, digits, '_', '-' and '.'.")
        return value

    @property
    def base(self) -> Path:
        """The folder that relative paths start from: the scenario file's."""
        return self._base

    def resolved(self, folder: Path | None = None) -> Raw:
        """Write the scenario as plain data that loads again: defaults and units spelled out.

        Parameters
        ----------
        folder : Path, optional
            Where it will lie: its paths start from there. Left out, from where they do now.
        """
        raw: Raw = self.model_dump(mode="json", exclude_none=True)
        return raw if folder is None else _move_paths(raw, self._base.resolve(), folder.resolve())

    def points(self) -> list[tuple[Raw, Scenario]]:
        """Every point of the sweep: what it sets, and its scenario; one point without a sweep.

        Returns
        -------
        list of (dict, Scenario)
            In the order of the grid. A straggler whose rank a point lacks is idle there.
        """
        if not self.sweep:
            return [({}, self)]
        return [(chosen, _build(raw, self._base)) for chosen, raw in grid(self.resolved())]


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
        ``kind`` drops the options of the old kind.

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
    raw = read_json(file) if file.suffix == ".json" else read_yaml(file)
    if file.suffix == ".json" and isinstance(raw, dict):
        raw = raw.get("scenario")
    if not isinstance(raw, dict):
        raise ScenarioError([f"{file}: is not a scenario; it must be a mapping with cluster: ..."])
    try:
        raw = copy.deepcopy(raw)
        for key, value in (overrides or {}).items():
            override(raw, key, value)
        raw.setdefault("name", re.sub(r"[^\w.+-]|^\W", "_", file.stem))
        return checked(raw, file.parent)
    except ScenarioError as error:
        raise ScenarioError([f"{file}: {line}" for line in error.problems]) from None


def checked(raw: Raw, base: Path) -> Scenario:
    """Validate a scenario as plain data, with every point of its sweep.

    Raises
    ------
    ScenarioError
        With every problem that was found.
    """
    raw = _move_paths(raw, base.resolve(), base.resolve())
    found = sweep_problems(raw)
    if found:
        raise ScenarioError(found)
    points = list(grid(raw)) if raw.get("sweep") else [({}, raw)]
    largest = max([_world_size(point) for _, point in points])
    each = [_point_problems(point, base, largest) for _, point in points]
    lines = [line for line in each[0] if all(line in other for other in each)]
    for (chosen, _), found in zip(points, each, strict=True):
        said = ", ".join(f"{key}={value}" for key, value in chosen.items())
        lines += [f"with {said}: {line}" for line in found if line not in lines]
    try:
        scenario = _build(raw, base)
    except ScenarioError as error:
        if lines or not raw.get("sweep"):
            raise ScenarioError(lines or error.problems) from None
        # A key that only the sweep gives: the last point stands for the file's own value.
        scenario = _build({**points[-1][1], "sweep": raw["sweep"]}, base)
    if lines:
        raise ScenarioError(lines)
    return scenario


def _world_size(raw: Raw) -> int:
    """World size of a scenario as plain data; 1 where that is no number."""
    cluster = raw.get("cluster")
    size = cluster.get("world_size") if isinstance(cluster, dict) else None
    return size if isinstance(size, int) else 1


def _point_problems(raw: Raw, base: Path, largest: int) -> list[str]:
    try:
        scenario = _build(raw, base)
    except ScenarioError as error:
        return error.problems + _file_problems(raw, base)
    return _straggler_problems(scenario, largest) + _problems(scenario)


def _build(raw: Raw, base: Path) -> Scenario:
    try:
        scenario = Scenario.model_validate(raw)
    except ValidationError as error:
        raise ScenarioError(problems(error, raw)) from None
    scenario._base = base
    return scenario


def _move_paths(value: Any, base: Path, folder: Path, key: str = "") -> Any:
    """Write paths that start from ``base``, and absolute ones, as seen from ``folder``."""
    if isinstance(value, dict):
        return {
            name: _move_paths(inner, base, folder, str(name).split(".")[-1])
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [_move_paths(inner, base, folder, key) for inner in value]
    if key in ("path", "weights") and isinstance(value, str):
        return os.path.relpath(base / value, folder)
    return value


def _straggler_problems(scenario: Scenario, largest: int) -> list[str]:
    """Refuse stragglers on ranks that the sweep's largest world size lacks."""
    return [
        f"cluster.stragglers.{i}.rank: rank {straggler.on_rank()} does not exist; the largest "
        f"world_size is {largest}, so ranks are 0 ... {largest - 1}."
        for i, straggler in enumerate(scenario.cluster.stragglers)
        if (straggler.on_rank() or 0) >= largest
    ]


def _file_problems(raw: Raw, base: Path) -> list[str]:
    """Check the files of a workload that is valid, although another part of the scenario is not."""
    try:
        workload = TypeAdapter(Workload).validate_python(raw.get("workload"))
    except ValidationError:
        return []
    return [f"workload.{line}" for line in workload.problems(base)]


def _problems(scenario: Scenario) -> list[str]:
    """Say what is wrong between the parts of one point."""
    cluster, workload, n = scenario.cluster, scenario.workload, scenario.cluster.world_size
    found = [f"workload.{line}" for line in workload.problems(scenario.base)]
    wrong = scenario.strategy.problem_with(n)
    if wrong:
        found.append(f"strategy.kind: {wrong}")
    for rank, device in enumerate(cluster.devices()):
        if workload.dtype not in device.peak:
            place = (
                f"cluster.device.{rank}" if isinstance(cluster.device, list) else ("cluster.device")
            )
            found.append(
                f"{place}.peak: has no {workload.dtype}, the workload's dtype; "
                f"known: {', '.join(device.peak)}."
            )
            break
    batch = workload.global_batch
    if batch is not None and batch < n:
        found.append(
            f"workload.global_batch: {batch} samples cannot feed {n} ranks; use {n} or more."
        )
    if not found:
        found += _size_problems(scenario)
    return found


def _size_problems(scenario: Scenario) -> list[str]:
    workload, n = scenario.workload, scenario.cluster.world_size
    num_samples = workload.dataset.length(scenario.base)
    accumulate = workload.grad_accum
    if isinstance(accumulate, list) and workload.global_batch is not None:
        shard = -(-min(workload.global_batch, num_samples) // n)
        if sum(accumulate) != shard:
            return [
                f"workload.grad_accum: {accumulate} sums to {sum(accumulate)}, but each rank gets "
                f"{shard} of the {workload.global_batch} samples; make the sums equal."
            ]
    if workload.drop_last and workload.samples_per_step(n) > num_samples:
        return [
            f"workload.drop_last: leaves nothing, since one step takes "
            f"{workload.samples_per_step(n)} samples and the dataset has {num_samples}."
        ]
    if not scenario.numerics:
        return []
    needed, there = host_memory_needed(workload, scenario.strategy, n, num_samples), host_memory()
    if needed <= there:
        return []
    return [
        f"numerics: the arrays of {n} ranks need {needed / 1e9:.1f} GB, but this machine has "
        f"{format_quantity(round(there, -8), 'data size')}; set numerics: false to simulate the "
        "time alone."
    ]
