"""The timeline plot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgba
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FixedLocator, MaxNLocator

from simdp.arrays import Floats, Ints
from simdp.reports import theme
from simdp.reports.captions import about, about_point
from simdp.reports.figures import consecutive
from simdp.reports.plots.bars import (
    NUM_STEPS,
    PIXEL,
    THIN,
    Band,
    Bars,
    TimeWindow,
    bars_of,
    fits,
    shorter,
    window_of,
)
from simdp.reports.plots.labels import (
    PALE,
    Plot,
    cut,
    entitle,
    legend_above,
    note,
    patch,
    point_names,
)
from simdp.reports.rank_rows import slow_ranks
from simdp.results.result import Result, Study
from simdp.results.trace import ACTIVITIES, COMM_LANE, COMPUTE_LANE, Trace

MAX_SAID = 22  # letters of a list of ranks; of a longer one the middle is dropped


def groups(trace: Trace, world_size: int, tolerance: float) -> list[list[int]]:
    """Group ranks with equal spans, by their first ranks.

    ``tolerance`` is the difference of instants that counts as equal [s].
    """
    label = np.zeros(world_size, dtype=np.int64)
    for block in trace.blocks:
        if label.max(initial=0) == world_size - 1:  # each rank is a group by itself
            break
        lanes = block.lane if isinstance(block.lane, np.ndarray) else None
        if len(block.ranks) == world_size and lanes is None:
            if np.ptp(block.start) > tolerance:
                label = _split(label, _level(block.start, tolerance))
            if np.ptp(block.end) > tolerance:
                label = _split(label, _level(block.end, tolerance))
            continue
        for column in (lanes, block.start, block.end):
            if column is not None:
                here = np.zeros(world_size, dtype=np.int64)  # ranks that have no such span
                here[block.ranks] = _level(np.asarray(column, dtype=np.float64), tolerance) + 1
                label = _split(label, here)
    _, first, number = np.unique(label, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    return [np.flatnonzero(number == group).tolist() for group in order]


def _level(values: Floats, tolerance: float) -> Ints:
    """Number values so that equal numbers are at most the tolerance apart."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    run = np.concatenate([[0], np.cumsum(np.diff(ordered) > tolerance)])
    heads = ordered[np.flatnonzero(np.diff(run, prepend=-1))]
    # A chain of neighbours may reach far; it is cut into pieces as long as the tolerance.
    inside = ((ordered - heads[run]) / (tolerance or 1.0)).astype(np.int64)
    inside = np.where(ordered - heads[run] <= tolerance, 0, inside)
    level = np.empty(len(values), dtype=np.int64)
    level[order] = run * (int(inside.max(initial=0)) + 1) + inside
    return level


def _split(label: Ints, other: Ints) -> Ints:
    """Split groups of ranks that differ in another label."""
    _, number = np.unique(label * (int(other.max()) + 1) + other, return_inverse=True)
    found: Ints = number.reshape(-1).astype(np.int64)
    return found


def listed(ranks: Iterable[int], dash: str = "–") -> str:
    """Write ranks in short: ``"0–6, 8–31"``; of many the middle is dropped."""
    said = [
        str(a) if a == b else f"{a}{', ' if b == a + 1 else dash}{b}" for a, b in consecutive(ranks)
    ]
    text = ", ".join(said)
    if len(text) <= MAX_SAID:
        return text
    shown = len(said) - 1
    while shown > 1 and len(", ".join([*said[:shown], "…", said[-1]])) > MAX_SAID:
        shown -= 1
    return ", ".join([*said[:shown], "…", said[-1]])


def row_name(ranks: Sequence[int], slow: Mapping[int, str]) -> str:
    """Name the row of a group; ``slow`` ranks, of `slow_ranks`, have a marker and a factor."""
    factors = dict.fromkeys(slow[rank] for rank in ranks if rank in slow)
    return f"▲ {listed(ranks)}{next(iter(factors))}" if factors else listed(ranks)


def choose(found: Sequence[Sequence[int]], named: Sequence[int], limit: int) -> list[int]:
    """Choose places of groups: the first, the last, those of named ranks, and some between.

    ``named`` ranks are in order of importance; ``limit`` groups have room.
    """
    if len(found) <= limit:
        return list(range(len(found)))
    place = {rank: number for number, ranks in enumerate(found) for rank in ranks}
    kept = dict.fromkeys([0, len(found) - 1])
    kept |= dict.fromkeys(place[rank] for rank in named if rank in place)
    chosen = [*kept][:limit]
    rest = [number for number in range(len(found)) if number not in kept]
    room = limit - len(chosen)
    chosen += [rest[(2 * i + 1) * len(rest) // (2 * room)] for i in range(room)]
    return sorted(chosen)


MAX_ROWS, MAX_HEADING = 16, 90  # rows of all runs; letters of a heading


class TimelineRows(NamedTuple):
    """Rows of one run, one for each group of equal ranks."""

    heading: str  # empty for a single run
    window: TimeWindow
    trace: Trace  # spans of the rows' first ranks
    ranks: list[list[int]]  # of each row
    slow: dict[int, str]  # suffix of each marked rank
    num_groups: int  # rows of all ranks


def read_rows(study: Study) -> list[TimelineRows]:
    """Read the last point; or every point if all have traces."""
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
    seconds = point.metrics.step_time_s or 0.0
    unit, per_second = theme.time_unit(seconds)
    return f"{name} · {seconds * per_second:.4g} {unit} per step"


def _rows(result: Result, heading: str, num_steps: int, limit: int) -> TimelineRows:
    trace, n = result.trace, result.world_size
    assert trace is not None, "draw only studies that fit"
    window = window_of(trace, num_steps)
    inside = window.cut(trace)
    found = groups(inside, n, PIXEL * window.length)
    slow = slow_ranks(result, inside.blocks)
    ranks = [found[number] for number in choose(found, list(slow), limit)]
    shown = inside.of_ranks([group[0] for group in ranks])
    return TimelineRows(heading, window, shown, ranks, slow, len(found))


MAX_LABELS = 600  # names written into bars
HEADING = 0.85  # height of the heading of one of several runs, in rows
# a lane's height, and its upper edge from the middle of its row, in rows
LANE_HEIGHT, LANE_OFFSET = 0.38, {COMPUTE_LANE: -0.4, COMM_LANE: 0.02}


class TimelinePlot(Plot[Study]):
    """Compute and communication lanes of each group of ranks."""

    kind = "timeline"
    reads = Study
    needs = "a trace, which only the last point of a study has, and only until it is saved"

    def __init__(self) -> None:
        self._read: tuple[Study, list[TimelineRows]] | None = None

    def fits(self, study: Study) -> bool:
        trace = study.points[-1].trace if study.points else None
        return trace is not None and any(block.step >= 0 for block in trace.blocks)

    def num_rows(self, study: Study) -> int:
        return round(sum(len(run.ranks) + HEADING * bool(run.heading) for run in self._runs(study)))

    def draw(self, study: Study, *axes: Axes) -> None:
        (ax,) = axes
        result, runs = study.points[-1], self._runs(study)
        length = max(run.window.length for run in runs)
        unit, per_second = theme.time_unit(length)
        program = result.scenario.get("program")  # which has no steps
        room = _room(runs)
        top, ticks, present = 0.0, [], set()
        for run in runs:
            if run.heading:
                look: dict[str, Any] = {"fontsize": theme.TEXT_SIZE, "fontweight": "bold"}
                look |= {"xycoords": ax.get_yaxis_transform(), "va": "center", "in_layout": False}
                note(ax, run.heading, (0.0, top - 0.02), (2, 0), **look)
                top += HEADING
            row_of = np.full(result.world_size, np.nan)
            row_of[[ranks[0] for ranks in run.ranks]] = top + np.arange(len(run.ranks))
            bars, bands = bars_of(run.trace, run.window, length, room)
            _draw_bars(ax, bars, row_of, per_second, PIXEL * length)
            _label_bars(ax, bars, row_of, room / length, per_second)
            _label_bands(ax, bands, row_of, room / length, per_second)
            if program is None and not run.window.apart:
                _mark_steps(ax, run, top, per_second, named=not run.heading)
            ticks += [(top + row, ranks, run.slow) for row, ranks in enumerate(run.ranks)]
            present |= set(bars.activity.tolist())
            top += len(run.ranks)
        ax.set_xlim(0, length * per_second)
        ax.set_ylim(top - 0.45, -0.95 + 0.35 * bool(runs[0].heading))
        ax.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 2.5, 5, 10]))
        since = "" if program else _since(runs)
        ax.set_xlabel(f"Time{since} [{unit}]{_left_out(runs)}")
        ax.set_ylabel("Rank [compute over comm]" if top > 2 else "Rank [number]")
        _label_ranks(ax, ticks)
        said = about(study) if len(runs) > 1 else about_point(result)
        handles = _handles(present, any(run.slow for run in runs))
        title = f"Timeline of {program}" if program else _title(study, runs)
        entitle(ax, title, said, rows=1)
        legend_above(ax, handles)

    def _runs(self, study: Study) -> list[TimelineRows]:
        if self._read is None or self._read[0] is not study:
            self._read = study, read_rows(study)
        return self._read[1]


def _tops(lane: Any, rank: Any, row_of: Floats) -> Floats:
    compute = np.asarray(lane) == COMPUTE_LANE
    offset = np.where(compute, LANE_OFFSET[COMPUTE_LANE], LANE_OFFSET[COMM_LANE])
    return np.asarray(row_of[rank] + offset)


def _draw_bars(ax: Axes, bars: Bars, row_of: Floats, per_second: float, pixel: float) -> None:
    """Draw each activity's bars as one collection; partly filled ones are paler."""
    # A wide bar ends a little early, to leave a gap before its neighbour.
    width = bars.end - bars.start
    short = np.where((width > THIN * pixel) & (bars.name != ""), 1.5 * pixel, 0.0)
    short = np.minimum(short, 0.25 * width)
    left, right = bars.start * per_second, (bars.end - short) * per_second
    top = _tops(bars.lane, bars.rank, row_of)
    low = top + LANE_HEIGHT
    corners = np.stack(
        [np.stack(xy, axis=1) for xy in ((left, top), (right, top), (right, low), (left, low))],
        axis=1,
    )
    for activity, fill in theme.FILLS.items():
        mine = bars.activity == ACTIVITIES.index(activity)
        if not mine.any():
            continue
        colors = [to_rgba(fill.color, part) for part in bars.fill[mine]]
        plain = PolyCollection(list(corners[mine]), facecolors=colors, edgecolors="none")
        plain.set_label(activity)
        ax.add_collection(plain, autolim=False)
        full = mine & (bars.fill == 1)
        if fill.hatch and full.any():
            edges: dict[str, Any] = {"edgecolors": fill.hatch_color, "hatch": fill.hatch}
            lines = PolyCollection(list(corners[full]), facecolors="none", linewidths=0.0, **edges)
            ax.add_collection(lines, autolim=False)


def _label_bars(ax: Axes, bars: Bars, row_of: Floats, points: float, per_second: float) -> None:
    """Write names into bars that have room, the widest first.

    A second is ``points`` wide, and ``per_second`` units of the axis.
    """
    width = (bars.end - bars.start) * points
    middles = _tops(bars.lane, bars.rank, row_of) + LANE_HEIGHT / 2
    widest = np.argsort(-width, kind="stable")[:MAX_LABELS]
    for i in np.sort(widest):
        activity = ACTIVITIES[bars.activity[i]]
        if activity == "wait" or not bars.name[i]:
            continue
        text = next((text for text in shorter(bars.name[i]) if fits(text, width[i])), "")
        if text:
            x = (bars.start[i] + bars.end[i]) / 2 * per_second
            _write(ax, x, middles[i], text, theme.FILLS[activity].text_color)


def _label_bands(
    ax: Axes, bands: Sequence[Band], row_of: Floats, points: float, per_second: float
) -> None:
    """Write the count of a band's bars, if there is room."""
    halo = [withStroke(linewidth=2.0, foreground="white", alpha=0.8)]
    for band in bands:
        room = (band.end - band.start) * points
        text = next((t for t in (band.text, band.text.partition(" ")[0]) if fits(t, room)), "")
        if text:
            middle = float(_tops(band.lane, band.rank, row_of)) + LANE_HEIGHT / 2
            x = (band.start + band.end) / 2 * per_second
            _write(ax, x, middle, text, theme.INK, path_effects=halo)


def _write(ax: Axes, x: float, y: float, text: str, color: str, **more: Any) -> None:
    more |= {"ha": "center", "va": "center_baseline", "fontsize": theme.TINY_SIZE}
    ax.text(x, y, text, color=color, in_layout=False, **more)


def _mark_steps(ax: Axes, run: TimelineRows, top: float, per_second: float, named: bool) -> None:
    """Name the steps above the first row, and draw lines at their begins."""
    begin, length, steps, trace = run.window.begin, run.window.length, run.window.steps, run.trace
    starts = [float(trace.start[trace.step == step].min(initial=np.inf)) - begin for step in steps]
    starts = [min(start, length) for start in starts]
    for step, start, until in zip(steps, starts, [*starts[1:], length], strict=True):
        if step > steps[0]:
            low, high = top - 0.5, top + len(run.ranks) - 0.5
            ax.vlines(start * per_second, low, high, colors=theme.MUTED, linewidth=0.8, zorder=0.9)
        if named:
            x, look = (start + until) / 2 * per_second, {"ha": "center", "va": "center", **PALE}
            ax.text(x, top - 0.7, f"step {step + 1}", in_layout=False, **look)


def _room(runs: Sequence[TimelineRows]) -> float:
    """Compute the width of the panel, right of the names of its rows [points]."""
    lines = [line for run in runs for r in run.ranks for line in _row_name(r, run.slow).split("\n")]
    names = max(theme.text_width(line, theme.SMALL_SIZE) for line in lines)
    return 0.97 * 72 * theme.WIDTH - 1.1 * names - 40


def _row_name(ranks: list[int], slow: dict[int, str]) -> str:
    """Name a row, with the number of its ranks."""
    name = row_name(ranks, slow)
    return f"{name}\n{len(ranks)} ranks" if len(ranks) > 2 else name


def _label_ranks(ax: Axes, ticks: list[tuple[float, list[int], dict[int, str]]]) -> None:
    """Name the rows; stragglers are coloured."""
    ax.yaxis.set_major_locator(FixedLocator([place for place, _, _ in ticks]))
    names = [_row_name(ranks, slow) for _, ranks, slow in ticks]
    for (_, ranks, slow), label in zip(ticks, ax.set_yticklabels(names), strict=True):
        if any(rank in slow for rank in ranks):
            label.set_color(theme.STRAGGLER)
            label.set_fontweight("bold")
    ax.tick_params(axis="y", length=0)
    ax.grid(visible=False, axis="y")
    for place, _, _ in ticks[1:]:
        ax.axhline(place - 0.5, color=theme.FAINT, linewidth=0.7, zorder=0.8)


def _since(runs: Sequence[TimelineRows]) -> str:
    window = runs[-1].window
    if len(runs) == 1 and window.apart:
        unit, per_second = theme.time_unit(window.begin)
        return f" since {window.begin * per_second:.4g} {unit} of the run"
    if len({run.window.steps[0] for run in runs}) > 1 or window.apart:
        return " since the start of what is shown"
    return f" since the start of step {window.steps[0] + 1}"


def _title(study: Study, runs: Sequence[TimelineRows]) -> str:
    windows = [run.window for run in runs]
    by = ""
    if len(runs) > 1:
        keys = dict.fromkeys(key for point in study.points for key in point.set)
        by = " by " + cut(", ".join(key.removesuffix(".kind").split(".")[-1] for key in keys))
    if windows[-1].apart:
        return f"Timeline{by}, each rank in its own step"
    first, last = windows[-1].steps[0] + 1, windows[-1].steps[-1] + 1
    if len({window.steps[-1] for window in windows}) > 1:
        return f"Timeline of the last step{by}"
    return f"Timeline of step{f' {last}' if first == last else f's {first}–{last}'}{by}"


def _handles(present: set[int], is_slow: bool) -> list[Artist]:
    """Make the legend of activities and slow ranks."""
    handles: list[Artist] = [
        patch(activity, fill)
        for activity, fill in theme.FILLS.items()
        if ACTIVITIES.index(activity) in present
    ]
    slow = Line2D([], [], color=theme.STRAGGLER, marker="^", linestyle="", label="slow rank")
    return handles + [slow] * is_slow


def _left_out(runs: Sequence[TimelineRows]) -> str:
    """Count the rows that are not shown, as a line below the axis; empty if none."""
    shown, every = sum(len(run.ranks) for run in runs), sum(run.num_groups for run in runs)
    if shown == every:
        return ""
    return f"\n{shown} of {every} groups of ranks are shown, the slowest among them"
