"""Rows of a timeline: which runs, and which of their ranks; those that do the same share one."""

from __future__ import annotations

from typing import NamedTuple

from simdp.reports import theme
from simdp.reports.plots.alike import choose, groups
from simdp.reports.plots.bars import PIXEL
from simdp.reports.plots.labels import point_names
from simdp.reports.plots.window import NUM_STEPS, Window, window_of
from simdp.reports.slow_ranks import slow_ranks
from simdp.results.result import Result, Study
from simdp.results.trace import Trace

MAX_ROWS, MAX_HEADING = 16, 90
"""Rows of all runs; letters of what one is called. The whole run is in trace.json."""


class Rows(NamedTuple):
    """One run: a row for each group of ranks that do the same.

    Attributes
    ----------
    heading : str
        What the run is called where there are several.
    window : Window
        The time that is shown.
    trace : Trace
        What the rows' first ranks do in it.
    ranks : list of list of int
        The ranks of each row.
    slow : dict of int to str
        Ranks that are marked, with what is said of them.
    num_groups : int
        How many rows there would be for all ranks.
    """

    heading: str
    window: Window
    trace: Trace
    ranks: list[list[int]]
    slow: dict[int, str]
    num_groups: int


def read_rows(study: Study) -> list[Rows]:
    """Read the last point; or every point, where the sweep kept all traces."""
    points = study.points
    if len(points) < 2 or any(point.trace is None for point in points):
        return [_rows(points[-1], "", NUM_STEPS, MAX_ROWS)]
    limit = max(MAX_ROWS // len(points), 2)
    names = point_names(points, limit=MAX_HEADING)
    return [
        _rows(point, _heading(point, name), 1, limit)
        for point, name in zip(points, names, strict=True)
    ]


def _heading(point: Result, name: str) -> str:
    seconds = point.metrics.get("step_time_s") or 0.0
    unit, per_second = theme.time_unit(seconds)
    return f"{name} · {seconds * per_second:.4g} {unit} per step"


def _rows(result: Result, heading: str, num_steps: int, limit: int) -> Rows:
    trace, n = result.trace, result.world_size
    assert trace is not None, "draw only studies that fit"
    window = window_of(trace, num_steps)
    inside = window.cut(trace)
    found = groups(inside, n, PIXEL * window.length)
    slow = slow_ranks(result, inside.blocks)
    chosen = choose(found, list(slow), limit)
    ranks = [found[number] for number in chosen]
    shown = inside.of_ranks([group[0] for group in ranks])
    return Rows(heading, window, shown, ranks, slow, len(found))
