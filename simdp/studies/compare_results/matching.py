"""Matches the points and settings of two results."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isnan
from pathlib import Path
from typing import Any

from simdp.errors import ScenarioError
from simdp.files import open_file
from simdp.keys import written
from simdp.results.comparison import Side
from simdp.results.diagnosis import Diagnosis
from simdp.results.metrics import num_warm_up
from simdp.results.result import Result, Study
from simdp.scenario.overrides import MACHINE, Raw, grid, move_paths
from simdp.scenario.root import build
from simdp.studies.diagnose import diagnose
from simdp.traces import kind_of
from simdp.version import __version__

# Keys ---------------------------------------------------------------------------------------------

Place = tuple[str | int, ...]

NOT_A_CAUSE = ("name", "sweep", "measured")  # keys without effect on results
OF_THE_JOB = ("world_size", "ranks_per_device")  # keys of a cluster that are never a machine's

AS_ONE = (("workload", "model"), ("workload", "compute"))
"""Mappings that count as one key where several of their keys differ, as by another preset."""


@dataclass(frozen=True)
class Leaf:
    """A place that differs; None where a scenario has no such key."""

    place: Place
    a: Any
    b: Any


@dataclass(frozen=True)
class Differing:
    """One setting that differs: dotted key, both values, and all places that change with it."""

    key: str
    a: Any
    b: Any
    leaves: tuple[Leaf, ...]


def differing(a: Raw, b: Raw) -> list[Differing]:
    """List the differences of two resolved scenarios, in the order of the first.

    A kind or a name with other options is one key, and so is a machine with all its keys.
    """
    leaves = [leaf for leaf in _walk(a, b, ()) if leaf.place[0] not in NOT_A_CAUSE]
    groups: dict[str, list[Leaf]] = {}
    machine_a, machine_b = ((raw.get("cluster") or {}).get("machine") for raw in (a, b))
    for leaf in leaves:
        place = leaf.place
        if machine_a != machine_b and _is_brought(place):
            place = tuple(MACHINE.split("."))
        place = next((section for section in AS_ONE if place[: len(section)] == section), place)
        groups.setdefault(".".join(map(str, place)), []).append(leaf)
    differences = []
    for key, grouped_leaves in groups.items():
        place = tuple(key.split("."))
        if key == MACHINE:
            differences.append(Differing(key, machine_a, machine_b, tuple(grouped_leaves)))
        elif len(grouped_leaves) == 1:
            (leaf,) = grouped_leaves
            differences.append(Differing(".".join(map(str, leaf.place)), leaf.a, leaf.b, (leaf,)))
        else:
            parts = {leaf.place[len(place)] for leaf in grouped_leaves}
            before, after = (_only(value_of(raw, key), parts) for raw in (a, b))
            differences.append(Differing(key, before, after, tuple(grouped_leaves)))
    return differences


def _is_brought(place: Place) -> bool:
    if place[0] == "cluster":
        return len(place) > 1 and place[1] not in OF_THE_JOB
    return place[:2] == ("collectives", "cost")


def _only(value: object, parts: set[str | int]) -> Any:
    """The kind of a mapping, and its differing keys."""
    if not isinstance(value, dict):
        return value
    return {key: inner for key, inner in value.items() if key == "kind" or key in parts}


def _walk(a: object, b: object, place: Place) -> Iterator[Leaf]:
    if a == b:
        return
    if isinstance(a, dict) and isinstance(b, dict) and _are_alike(a, b, place):
        for key in dict.fromkeys([*a, *b]):
            yield from _walk(a.get(key), b.get(key), (*place, key))
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for number, (value, other) in enumerate(zip(a, b, strict=True)):
            yield from _walk(value, other, (*place, number))
    else:
        yield Leaf(place, a, b)


def _are_alike(a: Raw, b: Raw, place: Place) -> bool:
    """Whether two mappings are of one kind, so that only their options differ."""
    return not place or all(a.get(key) == b.get(key) for key in ("kind", "name"))


def with_b(raw: Raw, changed: Differing) -> Raw:
    """A's scenario with B's value of one key."""
    return _with(raw, [(leaf.place, leaf.b) for leaf in changed.leaves])


def with_a(raw: Raw, changed: Differing) -> Raw:
    """B's scenario with A's value of one key."""
    return _with(raw, [(leaf.place, leaf.a) for leaf in changed.leaves])


def _with(raw: Raw, values: list[tuple[Place, object]]) -> Raw:
    made = copy.deepcopy(raw)
    for place, value in values:
        here: Any = made
        for part in place[:-1]:
            here = here[part]
        here[place[-1]] = copy.deepcopy(value)
    return made


# Sides --------------------------------------------------------------------------------------------

RESULT = "result.json"

STEP_PARTS = ("step_time_s", "compute_s", "update_s", "exposed_comm_s", "wait_s", "other_s")
"""Metrics that a comparison needs."""

Input = str | os.PathLike[str] | Study | Result | Diagnosis
"""A file, a folder, or the object of one."""


@dataclass(frozen=True)
class ResultPoint:
    """One point of a result: its settings, result, and scenario, which is resolved if it loads."""

    set: dict[str, Any]
    result: Result
    raw: Raw
    loads: bool


@dataclass(frozen=True)
class ComparedResult:
    """One side of a comparison: a result (``study``) or traces (``found``).

    The scenario's paths start from ``base``.
    """

    name: str
    study: Study | None
    found: Diagnosis | None
    base: Path

    @property
    def side(self) -> Side:
        """Summary of the side."""
        if self.found is not None:
            world = self.found.world_size or self.found.num_ranks
            return Side(self.name, self.found.source, None, 1, world)
        assert self.study is not None
        sizes = {point.world_size for point in self.study.points}
        world_size = sizes.pop() if len(sizes) == 1 else None
        return Side(self.name, "result", self.study.version, len(self.study.points), world_size)

    @property
    def results(self) -> list[Result]:
        """Results of all points; empty for traces."""
        return self.study.points if self.study is not None else []

    @cached_property
    def raws(self) -> list[Raw]:
        """Each point's scenario as plain data, merged with its machine."""
        assert self.study is not None
        scenario = self.study.scenario
        if not scenario.get("sweep"):
            return [scenario]
        return [raw for _, raw in grid(scenario, self.base)]

    def point(self, number: int, base: Path) -> ResultPoint:
        """One point with its resolved scenario; paths start from ``base``."""
        result, raw = self.results[number], self.raws[number]
        raw = {key: value for key, value in raw.items() if key not in ("sweep", "measured")}
        try:
            written, loads = build(raw, self.base).resolved(), True
        except ScenarioError:  # of another version, or its files are gone
            written, loads = raw, False
        moved = move_paths(written, self.base.resolve(), base.resolve())
        return ResultPoint(result.set, result, moved, loads)


def given(what: Input) -> ComparedResult:
    """Read one side; a ScenarioError if it is neither a result nor a trace with steps."""
    if isinstance(what, Result):
        what = Study(__version__, {**what.scenario, "sweep": {}}, [what])
    if isinstance(what, Study):
        name = str(what.scenario.get("name", "scenario"))
        return ComparedResult(name, _checked(name, what), None, Path())
    if isinstance(what, Diagnosis):
        return ComparedResult("traces", None, _with_steps("the diagnosis", what), Path())
    path = Path(what)
    file = path / RESULT if (path / RESULT).is_file() else path
    if file.is_file() and _is_result(file):
        return ComparedResult(str(path), _checked(str(file), Study.load(file)), None, file.parent)
    if not path.exists():
        raise ScenarioError(
            f"{path}: there is no such file or folder; give a result.json of simdp, the folder "
            "it lies in, or a trace of torch.profiler or a folder of them."
        )
    kind = kind_of(path)
    if kind != "traces":
        raise ScenarioError(
            f"{path}: holds {kind.replace('_', ' ')}, which have no steps to compare; give a "
            "result.json of simdp, or traces of torch.profiler."
        )
    diagnosis = _with_steps(str(path), diagnose(path, remedies=False))
    return ComparedResult(str(path), None, diagnosis, path)


def _is_result(file: Path) -> bool:
    """Whether a file begins like simdp's, which no trace does."""
    if file.suffix != ".json":
        return False
    with open_file(file) as stream:
        return b'"simdp":' in stream.read(200)


def _with_steps(name: str, diagnosis: Diagnosis) -> Diagnosis:
    if diagnosis.step_time_s is None:
        raise ScenarioError(
            f"{name}: has no steps to compare: neither ProfilerStep nor Optimizer.step is in "
            "it; call profiler.step() after every step, and record again."
        )
    return diagnosis


def _checked(name: str, study: Study) -> Study:
    """Return a result if it has the times of steps."""
    lacking = {
        key: None for point in study.points for key in STEP_PARTS if isnan(point.metrics[key])
    }
    if study.points and not lacking:
        return study
    written = study.version
    by = "" if written == __version__ else f", which simdp {written} wrote"
    lacks = ", ".join(lacking) or "points"
    raise ScenarioError(
        f"{name}: lacks {lacks}{by}; run its scenario again with simdp {__version__}: "
        f"python -m simdp run {name}."
    )


def steps_of(raw: Raw, result: Result) -> int:
    """Number of steps of a point: set, or inferred from its result."""
    num_steps = (raw.get("workload") or {}).get("steps")
    if isinstance(num_steps, int):
        return num_steps
    known = result.metrics.lr or ()
    return len(known) or num_warm_up(2) + 1


# Matching -----------------------------------------------------------------------------------------

Pairs = list[tuple[int, int]]  # numbers of points of A and of B
MAX_NAMED = 3  # most points that a message names


def matched(a: ComparedResult, b: ComparedResult) -> Pairs:
    """Match the points with equal settings, in A's order; a ScenarioError if none match.

    Two single runs always match. Where the two sweep different keys, a point's values of the
    other's keys are those of its scenario.
    """
    if len(a.results) == len(b.results) == 1:
        return [(0, 0)]
    sweeps = [given.results[0].set.keys() for given in (a, b)]
    pairs: Pairs = []
    if sweeps[0] == sweeps[1]:
        pairs = _same([r.set for r in a.results], [r.set for r in b.results])
    if not pairs:
        keys = list(dict.fromkeys([*sweeps[0], *sweeps[1]]))
        pairs = _same(_values(a, keys), _values(b, keys))
    if not pairs:
        raise ScenarioError(
            f"{a.name} and {b.name}: have no point in common: {_settings(a)}, and {_settings(b)}; "
            "compare results with a point that sets the same in both."
        )
    return pairs


def beside_traces(result: ComparedResult, traces: ComparedResult) -> tuple[int, list[str]]:
    """Choose the point to compare a real run with, that with as many ranks, and add notes.

    A ScenarioError if none or several have as many.
    """
    world, sizes = traces.side.world_size, [point.world_size for point in result.results]
    same_size = [number for number, size in enumerate(sizes) if size == world]
    if len(same_size) == 1:
        return same_size[0], []
    if len(sizes) == 1:
        return 0, [f"{result.name} has {sizes[0]} ranks, and {traces.name} {world}."]
    how = f"has {len(same_size)} points" if same_size else "has no point"
    raise ScenarioError(
        f"{result.name}: {how} of {world} ranks, as many as {traces.name}: {_settings(result)}; "
        "run only the point to compare with."
    )


def _same(first: Sequence[dict[str, object]], second: Sequence[dict[str, object]]) -> Pairs:
    there = {_key(values): number for number, values in reversed(list(enumerate(second)))}
    return [(n, there[_key(v)]) for n, v in enumerate(first) if _key(v) in there]


def _key(values: dict[str, object]) -> str:
    return json.dumps(values, sort_keys=True, default=str)


def _values(given: ComparedResult, keys: Sequence[str]) -> list[dict[str, Any]]:
    """Values of some keys at every point, by its resolved scenario."""
    points = [given.point(number, given.base) for number in range(len(given.results))]
    return [{key: value_of(point.raw, key) for key in keys} for point in points]


def value_of(raw: Raw, key: str) -> Any:
    """Value at a dotted key; None where there is none."""
    here: Any = raw
    for part in key.split("."):
        if isinstance(here, list) and part.isdecimal() and int(part) < len(here):
            here = here[int(part)]
        elif isinstance(here, dict):
            here = here.get(part)
        else:
            return None
    return here


def _settings(given: ComparedResult) -> str:
    """The first points in words."""
    settings = [
        ", ".join(f"{key}={written(value)}" for key, value in point.set.items()) or "no sweep"
        for point in given.results
    ]
    more = f" and {len(settings) - MAX_NAMED} more" if len(settings) > MAX_NAMED else ""
    return f"{given.name} has {'; '.join(settings[:MAX_NAMED])}{more}"
