"""Page of a job: time to finish, timeline of events, and time by activity."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from simdp.reports import job_table, theme
from simdp.reports.captions import about_scenario
from simdp.reports.figures import Row, long_time, long_unit, percent
from simdp.reports.job_table import names
from simdp.reports.page.run import closing
from simdp.reports.plots.job import LOOKS, shares
from simdp.reports.sections import (
    Axis,
    Chart,
    Page,
    ReferenceLine,
    Section,
    Series,
    Summary,
    Tile,
    Verdict,
)
from simdp.results.job import JobRuns, JobStudy

NUM_BINS = 240  # columns of time of a run
MAX_LINES = len(theme.SERIES)  # points of a sweep whose finish times are drawn

# by the parts of `simdp.results.job.BADPUT`
COLORS = {
    **{part: color for part, (color, _) in LOOKS.items()},
    "lost_work": LOOKS["lost"][0],
    "data": theme.INPUT,
    "straggler": theme.COMM,
    "other": theme.MUTED,
}

NUM_STEPS = 200  # most places of a line of finish times


def page(study: JobStudy, command: Sequence[str] = ()) -> Page:
    """Make the page of a job, or of one for every point of a sweep."""
    single = not study.scenario.get("sweep")
    sections = [
        *(_one(study, study.points[0]) if single else _several(study)),
        *finishes(study),
        *badput(study),
        *strip(study.points[0]),
        *closing(study.scenario, study.version, "job", command or _command(study)),
    ]
    name = str(study.scenario["name"])
    return Page(
        f"{name}: when the job is done",
        about_scenario(study.scenario, list(study.scenario.get("sweep") or {})),
        sections,
        f"{theme.footer(study)} · {job_table.runs_of(study.points[0])}",
    )


def _command(study: JobStudy) -> list[str]:
    """Make the command that repeats the runs of the scenario below."""
    until = [] if study.until_s is None else ["--until", f"{study.until_s:.10g} s"]
    return ["job", f"{study.scenario['name']}.yaml", "--runs", str(study.points[0].runs), *until]


def _one(study: JobStudy, job: JobRuns) -> Iterator[Section]:
    lines = [f"Done after {long_time(job.finish_s.mean)}, mean of {job_table.runs_of(job)}."]
    _, *lost = job_table.part_rows(job)
    if lost:
        most = max(lost, key=lambda row: row.value)
        lines.append(
            f"{percent(job.goodput.mean)} of the time is productive; of the rest "
            f"{percent(most.value / (sum(row.value for row in lost) or 1.0))}, "
            f"{long_time(most.value)}, goes to: {most.label}."
        )
    chance = job.chance_to_finish
    if chance is not None:
        lines.insert(0, f"Done within {long_time(study.until_s)}: {percent(chance)} of the runs.")
    lines = [*job_table.too_short(study), *lines]
    yield Verdict("Verdict", lines, "warning" if chance is not None and chance < 0.9 else "good")
    low, high = map(long_time, job.finish_interval_s)
    money = [] if job.cost_usd is None else [Tile("cost", f"{job.cost_usd.mean:,.0f} USD", "mean")]
    yield Summary(
        "Summary",
        [
            Tile("done after", long_time(job.finish_s.mean), f"90 % of runs: {low} to {high}"),
            Tile("goodput", percent(job.goodput.mean), "of the job's time is productive"),
            Tile("failures", f"{job.num_failures:.4g}", "in a run"),
            *money,
        ],
        [
            Row("about", "about it" * (not n), line)
            for n, line in enumerate(job_table.foot(study, job))
        ],
    )
    yield job_table.spreads(job)
    yield job_table.parts(job)


def _several(study: JobStudy) -> Iterator[Section]:
    lines = [*job_table.too_short(study), *job_table.first_done(study)]
    best = min(study.points, key=lambda job: job.finish_s.mean)
    is_sure = best.runs > 1 and not any(
        job is not best and job.is_tie(best) for job in study.points
    )
    yield Verdict("Verdict", lines, "good" if is_sure else "note")
    yield job_table.grid(study)


def finishes(study: JobStudy) -> Iterator[Section]:
    """Draw the share of finished runs over time, a line per point."""
    points = [job for job in study.points if len(set(job.finishes)) > 1]
    if not points:
        return
    chosen, called = points[:MAX_LINES], names(study.points)
    unit, scale = long_unit(max(max(job.finishes) for job in chosen))
    series = []
    for job in chosen:
        times = np.sort(job.finishes) / scale
        done = np.linspace(1, len(times), min(len(times), NUM_STEPS)).round().astype(int)
        at = [float(times[0]), *times[done - 1].tolist()]
        shares = [0.0, *(100 * done / len(times)).tolist()]
        low, high = map(long_time, job.finish_interval_s)
        name = called[study.points.index(job)] or "runs"
        series.append(Series(f"{name}: 90 % from {low} to {high}", at, shares))
    marks = []
    if study.until_s is not None:
        marks = [ReferenceLine(f"deadline, {long_time(study.until_s)}", study.until_s / scale, "x")]
    left = f"The first {len(chosen)} of {len(points)} points." if len(points) > MAX_LINES else ""
    yield Chart(
        "When the runs are done",
        Axis(f"Time from the start of the job [{unit}]", unit=unit),
        Axis("Runs that are done [%]", unit="%"),
        series,
        marks,
        said=f"How many of the {points[0].runs} runs are done by when.",
        note=left,
    )


def badput(study: JobStudy) -> Iterator[Section]:
    """Draw the lost time by cause."""
    points, called = study.points, [name or "the job" for name in names(study.points)]
    each = [{row.key: row.value for row in job_table.part_rows(job)} for job in points]
    causes = [part for part in job_table.NAMES if any(part in one for one in each)]
    if not causes:
        return
    series = [
        Series(
            job_table.NAMES[part],
            called,
            [
                100 * one.get(part, 0.0) / job.finish_s.mean
                for one, job in zip(each, points, strict=True)
            ],
            "bar",
            color=COLORS[part],
            stack="lost",
        )
        for part in causes
    ]
    yield Chart(
        "What is lost, by cause",
        Axis("", "category"),
        Axis("Part of the job's time [%]", unit="%"),
        series,
        said="Mean over all runs; the rest of the time is productive.",
        sideways=True,
    )


def strip(job: JobRuns) -> Iterator[Section]:
    """Draw the first run's lost time by cause, in columns of time."""
    if not job.strip:
        return
    end = max(stretch.end for stretch in job.strip)
    unit, scale = long_unit(end)
    edges = np.linspace(0.0, end, NUM_BINS + 1)
    lost = [what for what in LOOKS if what != "training" and any(s.what == what for s in job.strip)]
    series = [
        Series(
            LOOKS[what][1],
            (edges[:-1] / scale).tolist(),
            (100 * shares(job.strip, what, edges)).round(3).tolist(),
            "steps",
            color=LOOKS[what][0],
            stack="time",
        )
        for what in lost
    ]
    if series:
        yield Chart(
            "One run: what holds it up when",
            Axis(f"Time from the start of the job [{unit}]", unit=unit),
            Axis("Part of the time [%]", unit="%"),
            series,
            said=(
                f"The first run, done after {long_time(end)}, in {NUM_BINS} columns of "
                f"{long_time(end / NUM_BINS)}: what share of each goes to what. The rest is "
                "training that counts."
            ),
        )
