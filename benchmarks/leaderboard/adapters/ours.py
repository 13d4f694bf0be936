"""simdp itself: what ``python -m simdp validate`` and its ``--leave-out`` answer.

That takes long, so that the answers are kept in ``answers.json``; `replay` asks again, site by
site, and goes on where it stopped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import simdp
from benchmarks.leaderboard.adapters.base import Adapter, AdapterError, Answer
from benchmarks.leaderboard.folds import Asked, folds
from benchmarks.leaderboard.gather import SCENARIOS
from benchmarks.leaderboard.points import Point, Points, digest_of, put
from simdp.errors import ScenarioError
from simdp.results.validation import TimeComparison
from simdp.studies.validate import validate
from simdp.studies.validate.folds import By
from simdp.studies.validate.leave_out import leave_out

FILE = Path(__file__).parents[1] / "answers.json"

Found = Iterator[tuple[TimeComparison, bool]]
"""Steps, then sizes of collectives, and whether each counts."""

Progress = Callable[[str], None]


class Ours(Adapter):
    """simdp, from a file of its answers.

    Parameters
    ----------
    points : Points
        That are asked.
    path : Path
        The file.
    """

    name = "simdp"
    about = (
        "simulation on a machine whose constants were fitted to the visible points; python -m "
        "simdp validate, and its --leave-out"
    )
    missing = "the effects that scenarios/validation lists in the notes of points with large errors"

    def __init__(self, points: Points, path: Path = FILE) -> None:
        kept = _read(path)
        self.rules: dict[str, dict[str, list[Any]]] = kept["answers"]
        self.is_of_these = kept["digest"] == points.digest
        self.cpu_s: dict[str, float] = kept["cpu_s"]
        self.version: str = kept["simdp"]
        self._numbers = {point["id"]: number for number, point in enumerate(points.points)}
        self._places = _places(points.points)

    def answers(self, asked: Asked) -> list[Answer | None]:
        """Look them up; None for what it has not been asked yet."""
        if self.rules and not self.is_of_these:
            raise AdapterError("its answers are of other points; --replay asks again.")
        if not self.rules.get(asked.rule):
            raise AdapterError("has not been asked under this rule; --replay does.")
        return [self._answer(asked.rule, point) for point in asked.questions]

    def _answer(self, rule: str, point: Point) -> Answer | None:
        number = self._places[point["id"]]
        known = self.rules[rule].get(point["scenario"], ())
        found = known[number] if number < len(known) else None
        return None if found is None else Answer(*found)


def _places(points: Iterable[Point]) -> dict[str, int]:
    """The number of each point in its scenario: steps, then sizes."""
    counts: dict[str, int] = {}
    found = {}
    for point in points:
        number = counts.setdefault(point["scenario"], 0)
        found[point["id"]] = number
        counts[point["scenario"]] = number + 1
    return found


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {"digest": None, "simdp": simdp.__version__, "cpu_s": {}, "answers": {}}
    return cast(dict[str, Any], json.loads(path.read_text(encoding="utf-8")))


# Asking again ------------------------------------------------------------------------------------


def replay(points: Points, rules: Sequence[str], path: Path = FILE, said: Progress = print) -> None:
    """Ask for what the file lacks: all of another version of simdp, or the sites that changed."""
    kept = _still_true(_read(path), points)
    for rule in rules:
        cut = folds(points.points, rule)
        asked = {point["scenario"] for fold in cut for point in fold.left_out}
        done = kept["answers"].setdefault(rule, {})
        for together in sites(points.points):
            missing = [name for name in together if name in asked and name not in done]
            if not missing:
                continue
            said(f"{rule}: {', '.join(together[:3])}{', ...' * (len(together) > 3)}")
            before = _cpu()
            done |= _asked_again(points.points, together, rule)
            kept["cpu_s"][rule] = round(kept["cpu_s"].get(rule, 0.0) + _cpu() - before, 1)
            _write(kept, path)


def _still_true(kept: dict[str, Any], points: Points) -> dict[str, Any]:
    """What a file holds of sites whose points are the same, by the digests of its scenarios."""
    of = digests(points.points)
    known = kept.get("of", {}) if kept["simdp"] == simdp.__version__ else {}
    same = {
        name
        for together in sites(points.points)
        if all(known.get(name) == of[name] for name in together)
        for name in together
    }
    rules = {
        rule: {name: found for name, found in answers.items() if name in same}
        for rule, answers in kept["answers"].items()
    }
    head = {"digest": points.digest, "simdp": simdp.__version__, "cpu_s": kept["cpu_s"], "of": of}
    return {**head, "answers": rules}


def digests(points: Iterable[Point]) -> dict[str, str]:
    """The digest of each scenario's points."""
    each: dict[str, list[Point]] = {}
    for point in points:
        each.setdefault(point["scenario"], []).append(point)
    return {name: digest_of(own) for name, own in each.items()}


def _cpu() -> float:
    return sum(os.times()[:4])


def _write(kept: dict[str, Any], path: Path) -> None:
    head = {key: value for key, value in kept.items() if key != "answers"}
    text = json.dumps(head)[:-1] + ', "answers": {\n'
    rules = []
    for rule, scenarios in kept["answers"].items():
        each = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in scenarios.items())
        rules.append(f"{json.dumps(rule)}: {{\n{each}\n}}")
    whole = text + ",\n".join(rules) + "\n}}\n"
    put(path, whole)


def sites(points: Iterable[Point]) -> list[list[str]]:
    """Scenarios that tell of one another: those that share a cluster or a site."""
    groups: list[tuple[set[str], list[str]]] = []
    of: dict[str, set[str]] = {}
    for point in points:
        of.setdefault(point["scenario"], set()).update((point["site"], point["cluster"]))
    for name, where in of.items():
        joined = [group for group in groups if group[0] & where]
        groups = [group for group in groups if group not in joined]
        names = [one for _, several in joined for one in several]
        groups.append((where.union(*(group[0] for group in joined)), [*names, name]))
    return [names for _, names in groups]


def _asked_again(points: Sequence[Point], together: Sequence[str], rule: str) -> dict[str, Any]:
    """Simulate the points of some scenarios."""
    paths = [SCENARIOS / f"{name}.yaml" for name in together]
    try:
        found = list(_counted(paths, rule))
    except ScenarioError as error:
        if "nothing can be left out" not in str(error):
            raise
        return {}
    ours = [one for one in points if one["scenario"] in together]
    order = {name: number for number, name in enumerate(together)}
    ours.sort(key=lambda one: (one["kind"] != "step", order[one["scenario"]]))
    made: dict[str, Any] = {name: [] for name in together}
    for point, (one, counts) in zip(ours, found, strict=True):
        if abs(one.measured / point["measured_s"] - 1) > 1e-6:
            raise AdapterError(f"{point['id']}: scenarios say otherwise; make points.json anew.")
        times = [float(f"{each:.5g}") for each in (one.simulated, one.low, one.high)]
        made[point["scenario"]].append(times if counts else None)
    return made


def _counted(paths: Sequence[Path], rule: str) -> Found:
    if rule == "calibrated":
        whole = validate(paths)
        for one in (*whole.points, *whole.rows):
            yield one, one.is_predicted
        return
    found = leave_out(paths, cast(By, rule))
    for point, place in zip(found.whole.points, found.of_points, strict=True):
        yield point, place.fold is not None and place.counts
    for row, place in zip(found.whole.rows, found.of_rows, strict=True):
        yield row, place.fold is not None and place.counts
