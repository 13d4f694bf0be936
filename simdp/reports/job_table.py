"""The summary of a job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from rich.console import Group, RenderableType

from simdp.keys import short_key, written
from simdp.reports.answers import LITTLE, WAITING_POWER
from simdp.reports.figures import TableCell, long_time, long_unit, number, percent
from simdp.reports.sections import Table, table_of
from simdp.reports.wide_table import filled, narrow_tables, wide_table
from simdp.results.job import JobRuns, JobStudy, Spread
from simdp.results.result import Result


def cells(points: Sequence[JobRuns], key: str) -> list[str]:
    """Write the values of a key, without options that are equal in all values of a kind."""
    values = [point.set[key] for point in points]
    return [written(_short(value, values)) for value in values]


def names(points: Sequence[JobRuns]) -> list[str]:
    """Name each point by the keys that it sets; empty for a single one."""
    keys = list(points[0].set)
    columns = [cells(points, key) for key in keys]
    if len(keys) == 1 and isinstance(points[0].set[keys[0]], Mapping):
        return columns[0]
    lead = [short_key(key) for key in keys]
    rows = zip(*columns, strict=True) if keys else [()] * len(points)
    return [
        ", ".join(f"{key}: {value}" for key, value in zip(lead, row, strict=True)) for row in rows
    ]


def _short(value: Any, values: Sequence[Any]) -> Any:
    if not isinstance(value, Mapping):
        return value
    same_kind = [v for v in values if isinstance(v, Mapping) and v.get("kind") == value.get("kind")]
    return {
        key: of
        for key, of in value.items()
        if key == "kind" or any(other.get(key) != of for other in same_kind)
    }


# names of the parts of `simdp.results.job.BADPUT`
NAMES = {
    "startup": "starts",
    "data": "waiting for data",
    "checkpoint_save": "checkpoints written",
    "checkpoint_restore": "checkpoints loaded",
    "lost_work": "lost work",
    "recovery": "recovery",
    "straggler": "slow ranks",
    "other": "other",
}


def table(study: JobStudy) -> RenderableType:
    """Write one job as rows, or a sweep as a row per point."""
    if study.scenario.get("sweep"):
        return _several(study)
    return _one(study)


def _one(study: JobStudy) -> RenderableType:
    (job,) = study.points
    name, runs = study.scenario["name"], runs_of(job)
    return Group(
        filled(too_short(study)),
        wide_table(replace(spreads(job), title=f"{name}: {runs}")),
        wide_table(replace(parts(job), title="")),
        filled(foot(study, job)),
    )


FAILURES = "cluster.failures, such as [{kind: exponential, mtbf: 1000 h}]"


def too_short(study: JobStudy) -> list[str]:
    """Write first what the scenario lacks, where none of a job's events occurs in its runs."""
    jobs, scenario = study.points, study.scenario
    missed = [*dict.fromkeys(job.assumed.get("not_reached") for job in jobs)]
    lines = [f"{line}." for line in missed if line]
    if scenario.get("target") or any(job.num_failures for job in jobs):
        return lines
    steps = f"{jobs[0].assumed['num_steps']:,.0f} steps, {long_time(jobs[0].finish_s.mean)}"
    target = "target, such as {samples: 1e9}"
    if scenario["cluster"].get("failures") or "cluster.failures" in scenario.get("sweep", {}):
        return [f"no failure occurs in {steps}; write {target}.", *lines]
    what = f"no failures and no target: the job is what run simulates, {steps}"
    return [f"{what}; write {FAILURES}, and {target}.", *lines]


def spreads(job: JobRuns) -> Table:
    """Make the table of mean and quantiles over runs."""
    heads = [("", False), ("mean", True), ("50 %", True), ("90 %", True), ("99 %", True)]
    rows = [_spread("done after", job.finish_s, long_time)]
    rows += [_spread("goodput", job.goodput, percent), _spread("ETTR", job.ettr, percent)]
    if job.cost_usd is not None:
        rows.append(_spread("USD", job.cost_usd, _whole))
    if job.energy_kwh is not None:
        rows.append(_spread("kWh", job.energy_kwh, _whole))
    return table_of(f"Over {runs_of(job)}", heads, rows)


def parts(job: JobRuns) -> Table:
    """Make the table of a job's time by part."""
    total = job.finish_s.mean
    rows = [[row.label, long_time(row.value), percent(row.value / total)] for row in part_rows(job)]
    heads = [("where the time goes", False), ("mean", True), ("share", True)]
    return table_of("Where the time goes", heads, rows)


def part_rows(job: JobRuns) -> list[TimePart]:
    """Split the mean job time, productive steps first."""
    lost = [TimePart(part, NAMES[part], s) for part, s in job.badput_s.items() if s > 0]
    productive = job.finish_s.mean - sum(job.badput_s.values())
    return [TimePart("productive", "productive", productive), *lost]


class TimePart(NamedTuple):
    """A part of a job's time [s], by its key in `simdp.results.job.BADPUT`."""

    key: str
    label: str
    value: float


def _spread(name: str, spread: Spread, write: object) -> list[str]:
    assert callable(write)
    return [name, *(write(value) for value in (spread.mean, spread.p50, spread.p90, spread.p99))]


def _several(study: JobStudy) -> RenderableType:
    title = f"{study.scenario['name']}: {runs_of(study.points[0])} of each point"
    foot = [grid_foot(study), *first_done(study)] if len(study.points) > 1 else [grid_foot(study)]
    tables = narrow_tables(replace(grid(study), title=title))
    return Group(filled(too_short(study)), *tables, filled(foot))


def grid(study: JobStudy) -> Table:
    """Make a table with a row per point of a sweep, its swept keys first."""
    keys, points = list(study.scenario["sweep"]), study.points
    unit, scale = long_unit(min(job.finish_s.mean for job in points))
    columns: list[tuple[str, Sequence[str]]] = [
        (f"done [{unit}]", [number(job.finish_s.mean / scale) for job in points]),
        ("90 % of runs", [_interval(job, scale) for job in points]),
        ("goodput", [percent(job.goodput.mean) for job in points]),
    ]
    if any(job.ettr != job.goodput for job in points):
        columns.append(("ETTR", [percent(job.ettr.mean) for job in points]))
    columns.append(("failures", [number(job.num_failures, ".3g") for job in points]))
    for name, part in (("lost", "lost_work"), ("saving", "checkpoint_save")):
        columns.append((name, [percent(job.badput_s[part] / job.finish_s.mean) for job in points]))
    intervals = _intervals(study)
    if len(set(intervals)) > 1:
        columns.append(("interval", intervals))
    if any(job.cost_usd for job in points):
        costs = [None if job.cost_usd is None else job.cost_usd.mean for job in points]
        columns.append(("USD", [*map(_whole, costs)]))
    if study.until_s is not None:
        columns.append(("in time", [percent(job.chance_to_finish) for job in points]))
    values = [cells(points, key) for key in keys]
    rows = [[*row] for row in zip(*values, *(column for _, column in columns), strict=True)]
    heads = [(key.rpartition(".")[2], False) for key in keys]
    heads += [(name, True) for name, _ in columns]
    return table_of("The points", heads, rows, grid_foot(study), len(keys))


def _intervals(study: JobStudy) -> list[TableCell]:
    return [long_time(job.assumed["interval_s"]) for job in study.points]


def first_done(study: JobStudy) -> list[str]:
    """Write which point of a sweep finishes first, and which ties with it."""
    points, called = study.points, names(study.points)
    best = min(range(len(points)), key=lambda i: points[i].finish_s.mean)
    first = points[best]
    lead = f"{called[best]} is done first, after {long_time(first.finish_s.mean)}"
    good = f"{percent(first.goodput.mean)} of the time is productive."
    if first.runs < 2:
        return [f"{lead}; {good}", "One run of each point does not show how much is chance."]
    ties = [i for i, job in enumerate(points) if i != best and job.is_tie(first)]
    if not ties:
        return [f"{lead}; {good}"]
    tied = [f"{called[i]} ({long_time(points[i].finish_s.mean)})" for i in (best, *ties)]
    error = long_time(first.mean_error_s)
    sentence = f"{', '.join(tied[:-1])} and {tied[-1]}: no difference beyond the noise of"
    lines = [f"{sentence} {runs_of(first)} (standard error of a mean {error})."]
    if len(ties) + 1 < len(points):
        lines.append("All others take longer.")
    return [*lines, f"Of the first, {good}"]


def grid_foot(study: JobStudy) -> str:
    """Explain the columns of a sweep."""
    intervals = _intervals(study)
    foot = "done, goodput and all others but 90 %: means; lost, saving: shares of the time"
    if len(set(intervals)) == 1 and intervals[0] != "-":
        foot += f"; a checkpoint every {intervals[0]} of training"
    return foot


def _interval(job: JobRuns, scale: float) -> TableCell:
    low, high = (number(seconds / scale) for seconds in job.finish_interval_s)
    return TableCell(f"{low} - {high}", low.value)


def _whole(value: float | None) -> TableCell:
    return number(value, ",.0f")


def runs_of(job: JobRuns) -> str:
    """Count the runs, in words."""
    return f"{job.runs} run{'s' if job.runs > 1 else ''}"


def foot(study: JobStudy, job: JobRuns) -> Iterator[str]:
    """Write further facts about a job, a line each."""
    given, low_high = job.assumed, " - ".join(map(long_time, job.finish_interval_s))
    yield f"90 % of the runs are done after {low_high}"
    if job.chance_to_finish is not None:
        yield f"done within {long_time(study.until_s)}: {percent(job.chance_to_finish)} of the runs"
    failures = f"{job.num_failures:.4g} failures in a run"
    yield failures + (f", one every {long_time(job.mttf_s)}" if job.mttf_s else "")
    line = f"assumed: {given['num_steps']:,.0f} steps of {given['step_s']:.4g} s on "
    line += f"{given['num_nodes']} node{'s' if given['num_nodes'] > 1 else ''}"
    if given["interval_s"] is not None:
        behind = given["background_s"]
        line += f"; a checkpoint every {long_time(given['interval_s'])} of training"
        line += f" ({given['interval_steps']} steps), which holds it up for "
        line += f"{given['blocking_s']:.3g} s" + (f", {behind:.3g} s behind it" if behind else "")
        line += f"; {given['load_s']:.3g} s to load it"
    if given.get("mttf_s") and "guarded_mttf_s" in given and given["interval_s"] is not None:
        yield from _guarded(given)
    if job.cost_usd is not None and given["price_date"]:
        yield f"USD: by list prices of {given['price_date']}"
    ends = job.energy_between_kwh
    if ends is not None and ends[1] - ends[0] > LITTLE * ends[1]:
        yield f"kWh: {ends[0]:,.0f} to {ends[1]:,.0f} in the mean, {WAITING_POWER}"
    if job.trained is not None:
        yield from _training(job.trained)
    recovery = given["recovery"]
    times = [f"{key} {value}" for key, value in recovery.items() if key not in ("kind", "load")]
    yield f"{line}; {recovery['kind']} with {', '.join(times)}"


def _guarded(given: Mapping[str, Any]) -> Iterator[str]:
    """Write which failures load a checkpoint from storage, if not all do."""
    guarded = given.get("guarded_mttf_s")
    kind = given["recovery"]["kind"]
    if guarded is None:
        yield f"with {kind} no failure loads a checkpoint from storage"
    elif abs(guarded - given["mttf_s"]) > 1e-9 * guarded:
        yield f"with {kind} a checkpoint is loaded from storage once in {long_time(guarded)}"


def _training(trained: Result) -> Iterator[str]:
    """Write the samples and the final loss of the first run."""
    participation, losses = trained.participation or {}, trained.metrics["loss"]
    missed = {
        "were repeated": participation.get("repeated", 0),
        "were passed over": participation.get("uncommitted", 0),
    }
    counts = [f"{count:,} {what}" for what, count in missed.items() if count]
    samples = f"the first run trained on {participation.get('counted', 0):,} samples"
    yield ", ".join([samples, *counts, f"to a loss of {losses[-1]:.6g}"])
