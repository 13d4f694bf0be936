"""Plots of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from simdp.arrays import Floats
from simdp.reports import theme
from simdp.reports.captions import about_scenario
from simdp.reports.figures import long_time, long_unit
from simdp.reports.job_table import names
from simdp.reports.plots.labels import Plot, cut, entitle, evenly
from simdp.results.job import JobStretch, JobStudy

MAX_LINES = len(theme.SERIES)  # lines; of more points some are dropped
MARKED = (0.5, 0.9, 0.99)  # shares of the runs at which a line has a marker


class JobFinish(Plot[JobStudy]):
    """Share of finished runs over time: a line for each point of a sweep."""

    kind = "job_finish"
    reads = JobStudy
    needs = "a job with two runs or more"

    def fits(self, study: JobStudy) -> bool:
        return any(len(set(job.finishes)) > 1 for job in study.points)

    def draw(self, study: JobStudy, *axes: Axes) -> None:
        (ax,) = axes
        every, called = study.points, names(study.points)
        chosen = evenly(len(every), MAX_LINES)
        unit, scale = long_unit(max(max(every[i].finishes) for i in chosen))
        for number, i in enumerate(chosen):
            times = np.sort(every[i].finishes) / scale
            color, marker = theme.look(number)
            shares = np.arange(len(times) + 1) / len(times)
            ax.step([times[0], *times], 100 * shares, where="post", color=color)
            at = np.quantile(times, MARKED)
            low, high = (long_time(end) for end in every[i].finish_interval_s)
            name = f"{cut(called[i]) or 'runs'}: 90 % from {low} to {high}"
            marks = [100 * share for share in MARKED]
            ax.plot(at, marks, color=color, marker=marker, linestyle="none", label=name)
        if study.until_s is not None:
            said = f"deadline, {long_time(study.until_s)}"
            ax.axvline(study.until_s / scale, color=theme.STRAGGLER, linestyle="--", label=said)
        ax.set_xlabel(f"Time from the start of the job [{unit}]")
        ax.set_ylabel("Runs that are done [%]")
        ax.set_ylim(0, 101)
        runs = every[0].runs
        of = about_scenario(study.scenario, list(study.scenario.get("sweep") or {}))
        left_out = f"; {len(chosen)} of {len(every)} points" if len(chosen) < len(every) else ""
        rows = len(chosen) + (study.until_s is not None)
        entitle(ax, f"When the job is done, in {runs} runs{left_out}", of, -(-rows // 2))
        ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.2)


MAX_ROWS = 10  # rows of points; of more some are dropped
MAX_NAME = 28  # letters of a row's name
NUM_PIECES = 6  # rows that a single run is cut into

# colour and name of a run's activities, from the top of a column to the bottom
LOOKS = {
    "training": (theme.COMPUTE, "training"),
    "checkpoint_save": (theme.COPY, "checkpoint"),
    "recovery": (theme.WAIT, "recovery"),
    "startup": (theme.HOST, "start"),
    "checkpoint_restore": (theme.UPDATE, "load"),
    "lost": (theme.STRAGGLER, "training that was lost"),
}

NUM_COLUMNS, HEIGHT = 500, 0.76  # columns of time of the longest row; a row's height
Row = list[JobStretch]


class JobStrip(Plot[JobStudy]):
    """The first run's activities over time: cut into rows, or a row per point of a sweep."""

    kind = "job_strip"
    reads = JobStudy
    needs = "a run with recorded activities"

    def fits(self, study: JobStudy) -> bool:
        return any(job.strip for job in study.points)

    def num_rows(self, study: JobStudy) -> int:
        return len(_rows(study)[0])

    def draw(self, study: JobStudy, *axes: Axes) -> None:
        (ax,) = axes
        called, rows = _rows(study)
        unit, scale = long_unit(max(row[-1].end for row in rows))
        present = [what for what in LOOKS if any(s.what == what for row in rows for s in row)]
        whole = max(row[-1].end for row in rows)
        for y, row in enumerate(rows):
            # Heights are shares of a column, so that short activities keep their colour.
            columns = np.arange(0.0, row[-1].end, whole / NUM_COLUMNS)
            edges = np.append(columns[columns < row[-1].end], row[-1].end)  # arange may reach it
            low = np.full(len(edges), y + HEIGHT / 2)
            for what in reversed(present):
                share = shares(row, what, edges)
                high = low - HEIGHT * np.append(share, share[-1])
                look: dict[str, Any] = {"color": LOOKS[what][0], "linewidth": 0}
                ax.fill_between(edges / scale, low, high, step="post", **look)
                low = high
        ax.set_yticks(range(len(rows)), called)
        ax.set_ylim(len(rows) - 0.5, -0.5)
        ax.set_xlim(0, whole / scale)
        ax.grid(visible=False, axis="y")
        single = len(study.points) == 1
        ax.set_ylabel("Row [from]" if single else "Job [what it sets]")
        ax.set_xlabel(f"Time{' in the row' if single else ''} [{unit}]")
        done = long_time(study.points[0].strip[-1].end)
        title = f"One run of the job, done after {done}" if single else "One run of each job"
        sweep = list(study.scenario.get("sweep") or {})
        entitle(ax, title, about_scenario(study.scenario, sweep), 1)
        patches = [Patch(color=LOOKS[what][0], label=LOOKS[what][1]) for what in present]
        place: dict[str, Any] = {"bbox_to_anchor": (0, 1), "ncols": 6, "borderaxespad": 0.2}
        ax.legend(handles=patches, loc="lower left", **place)


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
    found: Floats = np.diff(np.interp(edges, bounds, spent)) / np.diff(edges)
    return found


def _rows(study: JobStudy) -> tuple[list[str], list[Row]]:
    """Make names and contents of the rows."""
    points = [job for job in study.points if job.strip]
    if len(study.points) == 1:
        return _pieces(points[0].strip)
    chosen, called = evenly(len(points), MAX_ROWS), names(points)
    return [cut(called[i], MAX_NAME) for i in chosen], [_in_order(points[i].strip) for i in chosen]


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
    called = [f"{piece * length / scale:.3g} {unit}" for piece in range(NUM_PIECES)]
    return called, [_in_order(row) for row in rows]
