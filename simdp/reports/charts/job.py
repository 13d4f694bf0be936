"""Charts of jobs: finish times, the activities of a run, and what is lost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simdp.arrays import Floats
from simdp.reports import job_table, theme
from simdp.reports.captions import about_scenario
from simdp.reports.charts.chart import Axis, Chart, Picture, ReferenceLine, Series
from simdp.reports.charts.names import cut, evenly
from simdp.reports.figures import long_time, long_unit
from simdp.reports.job_table import names
from simdp.results.job import JobRuns, JobStretch, JobStudy

MAX_LINES = len(theme.SERIES)  # lines; of more points some are dropped
NUM_STEPS = 200  # most places of a line of finish times


def job_finish(study: JobStudy) -> Picture | None:
    """Show the share of finished runs over time: a line for each point of a sweep."""
    charts = finishes(study)
    title = f"When the job is done, in {study.points[0].runs} runs"
    return Picture(title, _about(study), charts) if charts else None


def _about(study: JobStudy) -> str:
    return about_scenario(study.scenario, list(study.scenario.get("sweep") or {}))


def finishes(study: JobStudy) -> list[Chart]:
    """Draw the share of finished runs over time, a line per point."""
    points = [job for job in study.points if len(set(job.finishes)) > 1]
    if not points:
        return []
    chosen, point_names = [points[i] for i in evenly(len(points), MAX_LINES)], names(study.points)
    unit, scale = long_unit(max(max(job.finishes) for job in chosen))
    series = []
    for job in chosen:
        times = np.sort(job.finishes) / scale
        done = np.linspace(1, len(times), min(len(times), NUM_STEPS)).round().astype(int)
        low, high = map(long_time, job.finish_interval_s)
        name = cut(point_names[study.points.index(job)]) or "runs"
        at = [float(times[0]), *times[done - 1].tolist()]
        shares = [0.0, *(100 * done / len(times)).tolist()]
        series.append(Series(f"{name}: 90 % from {low} to {high}", at, shares))
    marks = []
    if study.until_s is not None:
        marks = [ReferenceLine(f"deadline, {long_time(study.until_s)}", study.until_s / scale, "x")]
    few = len(chosen) < len(points)
    chart = Chart(
        "When the runs are done",
        Axis(f"Time from the start of the job [{unit}]", unit=unit),
        Axis("Runs that are done [%]", unit="%"),
        series,
        marks,
        caption=f"How many of the {points[0].runs} runs are done by when.",
        note=f"{len(chosen)} of {len(points)} points are drawn." if few else "",
        names_at="above",
    )
    return [chart]


MAX_ROWS = 10  # rows of points; of more some are dropped
MAX_NAME = 28  # letters of a row's name
NUM_PIECES = 6  # rows that a single run is cut into
NUM_COLUMNS = 500  # columns of time of the longest row
NUM_BINS = 240  # columns of a run alone

# colour and name of a run's activities, from the bottom of a column to the top
LOOKS = {
    "training": (theme.COMPUTE, "training"),
    "checkpoint_save": (theme.COPY, "checkpoint"),
    "recovery": (theme.WAIT, "recovery"),
    "startup": (theme.HOST, "start"),
    "checkpoint_restore": (theme.UPDATE, "load"),
    "lost": (theme.STRAGGLER, "training that was lost"),
}

Row = list[JobStretch]


def job_strip(study: JobStudy) -> Picture | None:
    """Show the first run's activities over time: cut into rows, or a row per point of a sweep."""
    points = [job for job in study.points if job.strip]
    if not points:
        return None
    single = len(study.points) == 1
    row_names, rows = _pieces(points[0].strip) if single else _rows(points)
    whole = max(row[-1].end for row in rows)
    unit, scale = long_unit(whole)
    present = [what for what in LOOKS if any(s.what == what for row in rows for s in row)]
    series = []
    for number, row in enumerate(rows):
        # Heights are shares of a column, so that short activities keep their colour.
        columns = np.arange(0.0, row[-1].end, whole / NUM_COLUMNS)
        edges = np.append(columns[columns < row[-1].end], row[-1].end)  # arange may reach it
        strip = _columns(row, present, edges, scale, str(number))
        series += [piece._replace(name="" if number else piece.name) for piece in strip]
    chart = Chart(
        "One run of the job",
        Axis(f"Time{' in the row' if single else ''} [{unit}]", unit=unit),
        Axis("Row [from]" if single else "Job [what it sets]", "category",
             ticks=dict(enumerate(row_names))),
        series,
    )  # fmt: skip
    done = long_time(study.points[0].strip[-1].end) if single else ""
    title = f"One run of the job, done after {done}" if single else "One run of each job"
    return Picture(title, _about(study), [chart])


def strip(job: JobRuns) -> list[Chart]:
    """Draw the first run's lost time by cause, in columns of time."""
    lost = [what for what in LOOKS if what != "training" and any(s.what == what for s in job.strip)]
    if not lost:
        return []
    end = max(stretch.end for stretch in job.strip)
    unit, scale = long_unit(end)
    columns = _columns(job.strip, lost, np.linspace(0.0, end, NUM_BINS + 1), scale, "time")
    chart = Chart(
        "One run: what holds it up when",
        Axis(f"Time from the start of the job [{unit}]", unit=unit),
        Axis("Part of the time [%]", unit="%"),
        [
            piece._replace(x=piece.x[:-1], y=(100 * np.asarray(piece.y[:-1])).round(3).tolist())
            for piece in columns
        ],
        caption=(
            f"The first run, done after {long_time(end)}, in {NUM_BINS} columns of "
            f"{long_time(end / NUM_BINS)}: what share of each goes to what. The rest is "
            "training that counts."
        ),
    )
    return [chart]


def _columns(
    strip: Sequence[JobStretch], present: Sequence[str], edges: Floats, scale: float, stack: str
) -> list[Series]:
    """Make stacked areas of the share of each column of time that each activity takes."""
    series = []
    for what in present:
        (color, name), heights = LOOKS[what], shares(strip, what, edges)
        heights, places = np.append(heights, heights[-1]), (edges / scale).tolist()
        series.append(Series(name, places, heights, "steps", color=color, stack=stack))
    return series


def shares(strip: Sequence[JobStretch], what: str, edges: Floats) -> Floats:
    """Compute the share, from 0 to 1, of each column of time that one activity takes.

    ``edges``, shape `(num_columns + 1,)`, ascend [s].
    """
    mine = [(s.start, s.end) for s in strip if s.what == what]
    if not mine:
        return np.zeros(len(edges) - 1)
    bounds = np.array(sorted(mine)).reshape(-1)
    inside = np.diff(bounds) * (np.arange(len(bounds) - 1) % 2 == 0)
    spent = np.concatenate([[0.0], np.cumsum(inside)])
    return np.asarray(np.diff(np.interp(edges, bounds, spent)) / np.diff(edges))


def _rows(points: Sequence[JobRuns]) -> tuple[list[str], list[Row]]:
    """Make names and contents of the rows of several jobs."""
    chosen, point_names = evenly(len(points), MAX_ROWS), names(points)
    return [cut(point_names[i], MAX_NAME) for i in chosen], [
        _in_order(points[i].strip) for i in chosen
    ]


def _in_order(strip: Sequence[JobStretch]) -> Row:
    """Sort by end, so that the last one ends the run."""
    return sorted(strip, key=lambda s: s.end)


def _pieces(strip: Sequence[JobStretch]) -> tuple[list[str], list[Row]]:
    """Cut a run into equal rows, each from its own start."""
    end = max(s.end for s in strip)
    unit, scale = long_unit(end)
    length = end / NUM_PIECES
    rows: list[Row] = [[] for _ in range(NUM_PIECES)]
    for s in strip:
        first, last = int(s.start / length), int(s.end / length)
        for piece in range(first, min(last, NUM_PIECES - 1) + 1):
            begin = piece * length
            start, stop = max(s.start - begin, 0.0), min(s.end - begin, length)
            if stop > start:
                rows[piece].append(JobStretch(s.what, start, stop))
    row_names = [f"{piece * length / scale:.3g} {unit}" for piece in range(NUM_PIECES)]
    return row_names, [_in_order(row) for row in rows]


# by the parts of `simdp.results.job.BADPUT`
COLORS = {
    **{part: color for part, (color, _) in LOOKS.items()},
    "lost_work": LOOKS["lost"][0],
    "data": theme.INPUT,
    "straggler": theme.COMM,
    "other": theme.MUTED,
}


def badput(study: JobStudy) -> list[Chart]:
    """Draw the lost time by cause."""
    points, point_names = study.points, [name or "the job" for name in names(study.points)]
    parts = [{row.key: row.value for row in job_table.part_rows(job)} for job in points]
    causes = [cause for cause in job_table.NAMES if any(cause in lost for lost in parts)]
    series = [
        Series(
            job_table.NAMES[cause],
            point_names,
            [
                100 * lost.get(cause, 0.0) / job.finish_s.mean
                for lost, job in zip(parts, points, strict=True)
            ],
            "bar",
            color=COLORS[cause],
            stack="lost",
        )
        for cause in causes
    ]
    chart = Chart(
        "What is lost, by cause",
        Axis("", "category"),
        Axis("Part of the job's time [%]", unit="%"),
        series,
        caption="Mean over all runs; the rest of the time is productive.",
        sideways=True,
    )
    return [chart] if series else []
