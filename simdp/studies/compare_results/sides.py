"""Sides: what is compared, read from where it lies: a result, or the traces of a real run."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import simdp
from simdp.errors import ScenarioError
from simdp.files import open_file
from simdp.results.diagnosis import Diagnosis
from simdp.results.difference import Side
from simdp.results.metrics import num_warm_up
from simdp.results.result import Result, Study
from simdp.scenario.overrides import Raw, grid, move_paths
from simdp.scenario.root import build
from simdp.studies.diagnose import diagnose
from simdp.traces import kind_of

RESULT = "result.json"

STEP_PARTS = ("step_time_s", "compute_s", "update_s", "exposed_comm_s", "wait_s", "other_s")
"""Metrics without which there is nothing to compare."""

Input = str | os.PathLike[str] | Study | Result | Diagnosis
"""A file, a folder, or what Python has of one."""


@dataclass(frozen=True)
class Point:
    """One point of a result.

    Attributes
    ----------
    set : dict
        What it sets.
    result : Result
        What it gave.
    raw : dict
        Its scenario as plain data; with all defaults, where it loads.
    loads : bool
        Whether it does.
    """

    set: dict[str, Any]
    result: Result
    raw: Raw
    loads: bool


@dataclass(frozen=True)
class Given:
    """One of the two that are compared.

    Attributes
    ----------
    name : str
        As it is called.
    study : Study or None
        Of a result.
    found : Diagnosis or None
        Of traces.
    base : Path
        Folder that the scenario's paths start from.
    """

    name: str
    study: Study | None
    found: Diagnosis | None
    base: Path

    @property
    def side(self) -> Side:
        """It in short."""
        if self.found is not None:
            world = self.found.world_size or self.found.num_ranks
            return Side(self.name, self.found.source, None, 1, world)
        assert self.study is not None
        sizes = {point.world_size for point in self.study.points}
        world_size = sizes.pop() if len(sizes) == 1 else None
        return Side(self.name, "result", self.study.version, len(self.study.points), world_size)

    @property
    def results(self) -> list[Result]:
        """Of all points; none of traces."""
        return self.study.points if self.study is not None else []

    @cached_property
    def raws(self) -> list[Raw]:
        """Each point's scenario as plain data, machines taken in."""
        assert self.study is not None
        scenario = self.study.scenario
        if not scenario.get("sweep"):
            return [scenario]
        return [raw for _, raw in grid(scenario, self.base)]

    def point(self, number: int, base: Path) -> Point:
        """One point with every default spelled out; its paths start from ``base``."""
        result, raw = self.results[number], self.raws[number]
        raw = {key: value for key, value in raw.items() if key not in ("sweep", "measured")}
        try:
            written, loads = build(raw, self.base).resolved(), True
        except ScenarioError:  # of another version, or its files are gone
            written, loads = raw, False
        moved = move_paths(written, self.base.resolve(), base.resolve())
        return Point(result.set, result, moved, loads)


def given(what: Input) -> Given:
    """Read one side.

    Raises
    ------
    ScenarioError
        If it is neither a result nor a trace with steps.
    """
    if isinstance(what, Result):
        what = Study(simdp.__version__, {**what.scenario, "sweep": {}}, [what])
    if isinstance(what, Study):
        name = str(what.scenario.get("name", "scenario"))
        return Given(name, _checked(name, what), None, Path())
    if isinstance(what, Diagnosis):
        return Given("traces", None, _with_steps("the diagnosis", what), Path())
    path = Path(what)
    file = path / RESULT if (path / RESULT).is_file() else path
    if file.is_file() and _is_result(file):
        study = _checked(str(file), Study.load(file))
        return Given(str(path), study, None, file.parent)
    if not path.exists():
        raise ScenarioError(
            [
                f"{path}: there is no such file or folder; give a result.json of simdp, the folder "
                "it lies in, or a trace of torch.profiler or a folder of them."
            ]
        )
    kind = kind_of(path)
    if kind != "traces":
        raise ScenarioError(
            [
                f"{path}: holds {kind.replace('_', ' ')}, which have no steps to compare; give a "
                "result.json of simdp, or traces of torch.profiler."
            ]
        )
    return Given(str(path), None, _with_steps(str(path), diagnose(path, remedies=False)), path)


def _is_result(file: Path) -> bool:
    """Whether a file begins as simdp's do, which no trace does."""
    if file.suffix != ".json":
        return False
    with open_file(file) as stream:
        return b'"simdp":' in stream.read(200)


def _with_steps(name: str, found: Diagnosis) -> Diagnosis:
    if found.step_time_s is None:
        raise ScenarioError(
            [
                f"{name}: has no steps to compare: neither ProfilerStep nor Optimizer.step is in "
                "it; call profiler.step() after every step, and record again."
            ]
        )
    return found


def _checked(name: str, study: Study) -> Study:
    """Refuse a result without the times of steps."""
    lacking = {
        key: None
        for point in study.points
        for key in STEP_PARTS
        if not isinstance(point.metrics.get(key), int | float)
    }
    if study.points and not lacking:
        return study
    written = study.version
    by = "" if written == simdp.__version__ else f", which simdp {written} wrote"
    lacks = ", ".join(lacking) or "points"
    raise ScenarioError(
        [
            f"{name}: lacks {lacks}{by}; run its scenario again with simdp {simdp.__version__}: "
            f"python -m simdp run {name}."
        ]
    )


def steps_of(raw: Raw, result: Result) -> int:
    """How many steps a point had, as far as its result tells."""
    asked = (raw.get("workload") or {}).get("steps")
    if isinstance(asked, int):
        return asked
    known = result.metrics.get("lr") or ()
    return len(known) or num_warm_up(2) + 1
