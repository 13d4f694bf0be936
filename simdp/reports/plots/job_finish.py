"""Job finish: by when how many runs of a job are done."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from simdp.reports import theme
from simdp.reports.captions import about_scenario
from simdp.reports.figures import long_time, long_unit
from simdp.reports.job_names import names
from simdp.reports.plots.base import Plot
from simdp.reports.plots.headings import entitle
from simdp.reports.plots.labels import cut, evenly
from simdp.results.job import JobStudy

MAX_LINES = len(theme.SERIES)
"""Lines; of more points some are left out."""

MARKED = (0.5, 0.9, 0.99)
"""Shares of the runs at which a line has a marker."""


class JobFinish(Plot[JobStudy]):
    """The share of runs that are done, over time: a line for each point of a sweep."""

    kind = "job_finish"
    reads = JobStudy
    needs = "a job with two runs or more"

    def fits(self, study: JobStudy) -> bool:
        """Tell whether runs differ."""
        return any(len(set(job.finishes)) > 1 for job in study.points)

    def draw(self, study: JobStudy, *axes: Axes) -> None:
        """Draw on one panel; see `Plot.draw`."""
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
