"""Compares two results, or a result and a real run, and explains the difference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from simdp.results.comparison import Difference, KeyChange, PointDifference
from simdp.results.diagnosis import Diagnosis
from simdp.results.result import Result
from simdp.studies.compare_results.attribution import (
    Budget,
    Known,
    Values,
    attributed,
    both,
    figures_of_result,
    figures_of_traces,
    laid_out,
    part_changes,
    parts_of_result,
    parts_of_traces,
)
from simdp.studies.compare_results.matching import (
    ComparedResult,
    Input,
    ResultPoint,
    beside_traces,
    differing,
    given,
    matched,
    steps_of,
)
from simdp.version import __version__

__all__ = ["Input", "compare_results"]


def compare_results(a: Input, b: Input, *, attribution: bool = True) -> Difference:
    """Compare two results, or a result with a real run, and attribute the difference.

    Parameters
    ----------
    a, b : path-like, Study, Result or Diagnosis
        A result.json or its folder, or traces of torch.profiler: a file, or a folder with one per
        rank. Points of sweeps are matched by their settings.
    attribution : bool
        Whether to simulate the effect of each differing key, where few differ and that takes
        seconds: A with the value of B, and B with the value of A.

    Returns
    -------
    Difference
        Times per steady step, mean over ranks [s].

    Raises
    ------
    ScenarioError
        If an input is neither a result nor a trace with steps, or they have no point in common.
    """
    first, second = given(a), given(b)
    if first.name == second.name:
        first, second = (
            replace(side, name=f"{side.name} ({letter})")
            for side, letter in ((first, "A"), (second, "B"))
        )
    if first.study is None or second.study is None:
        return _beside_traces(first, second)
    pairs, budget = matched(first, second), Budget()
    notes, points = dict[str, None](), list[PointDifference]()
    for number, other in pairs:
        here, there = first.point(number, first.base), second.point(other, first.base)
        changes = _keys(here, there, first, budget if attribution else None)
        points.append(_point(here, there, changes))
        notes.update(dict.fromkeys(_notes(here, there, first, second)))
    if budget.spent:
        notes["Too many keys differ to simulate each by itself."] = None
    left = [{n for n, _ in pairs}, {n for _, n in pairs}]
    only_a, only_b = (
        tuple(r.set for n, r in enumerate(side.results) if n not in known)
        for side, known in zip((first, second), left, strict=True)
    )
    return Difference(
        __version__, first.side, second.side, tuple(points), only_a, only_b, tuple(notes)
    )


def _keys(
    here: ResultPoint, there: ResultPoint, first: ComparedResult, budget: Budget | None
) -> list[KeyChange]:
    """Keys that differ, each with its effect where that is known."""
    changed = differing(here.raw, there.raw)
    if len(changed) == 1:
        (change,), m, n = changed, here.result.metrics, there.result.metrics
        parts = {name: n[name] - m[name] for name in parts_of_result(here.result, False)}
        total = n.step_time_s - m.step_time_s
        return [KeyChange(change.key, change.a, change.b, total, total, total, parts)]
    if budget is None or not (here.loads and there.loads):
        return [KeyChange(change.key, change.a, change.b) for change in changed]
    steps = min(steps_of(point.raw, point.result) for point in (here, there))
    return attributed(here.raw, there.raw, first.base, steps, changed, budget)


def _point(here: ResultPoint, there: ResultPoint, keys: list[KeyChange]) -> PointDifference:
    a, b = here.result, there.result
    step_a, step_b = a.metrics.step_time_s, b.metrics.step_time_s
    known = [key.seconds for key in keys if key.seconds is not None]
    return PointDifference(
        {**a.set, **b.set},
        step_a,
        step_b,
        None,
        part_changes(parts_of_result(a, False), parts_of_result(b, False), keys, ()),
        laid_out(figures_of_result(a), figures_of_result(b)),
        tuple(keys),
        step_b - step_a - sum(known) if known else None,
    )


def _notes(
    here: ResultPoint, there: ResultPoint, first: ComparedResult, second: ComparedResult
) -> Iterator[str]:
    """Notes on versions, scenarios that do not load, and calibration."""
    for side in (first, second):
        written = side.side.version
        if written != __version__:
            yield f"{side.name} was written by simdp {written}; this is {__version__}."
    for side, point in ((first, here), (second, there)):
        if not point.loads:
            yield (
                f"{side.name}: its scenario does not load here, so that keys are compared as they "
                "are written, and none by itself."
            )
    a, b = (point.result.remarks.get("calibration") for point in (here, there))
    if a != b and a and b:
        yield f"calibration: {first.name}: {a}; {second.name}: {b}."


def _beside_traces(first: ComparedResult, second: ComparedResult) -> Difference:
    """Compare where at least one side is a real run."""
    notes, results = list[str](), list[Result | None]()
    for side, other in ((first, second), (second, first)):
        if side.study is None:
            results.append(None)
            continue
        number, odd = beside_traces(side, other)
        results.append(side.results[number])
        notes += odd
    traces = list[tuple[str, Diagnosis]]()
    sides = list[tuple[float, Values, Known]]()
    for side, result in zip((first, second), results, strict=True):
        if result is not None:
            step = float(result.metrics.step_time_s)
            sides.append((step, parts_of_result(result, True), figures_of_result(result)))
        elif side.found is not None:
            step = side.found.step_time_s or 0.0
            sides.append((step, parts_of_traces(side.found), figures_of_traces(side.found)))
            traces.append((side.name, side.found))
            notes += [f"{side.name}: {remark}" for remark in side.found.remarks]
    (a_s, a_parts, a_figures), (b_s, b_parts, b_figures) = sides
    known = results[0]
    point = PointDifference(
        {} if known is None else known.set,
        a_s,
        b_s,
        None if known is None else known.metrics.interval_s,
        part_changes(a_parts, b_parts, (), traces),
        laid_out(*both(a_figures, b_figures)),
        (),
    )
    return Difference(__version__, first.side, second.side, (point,), (), (), tuple(notes))
