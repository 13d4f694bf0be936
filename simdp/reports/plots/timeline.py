"""Who did what, when: a window of time, one row of two lanes per rank."""

from __future__ import annotations

import textwrap
from typing import Any, NamedTuple

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, MaxNLocator
from numpy.typing import NDArray

from simdp.arrays import Bools, Floats, Ints
from simdp.reports import theme
from simdp.reports.plots.bar_names import blocks, fits, shorter
from simdp.reports.plots.base import Plot
from simdp.reports.plots.labels import evenly
from simdp.reports.plots.window import Window, window_of
from simdp.results.result import Result, Study
from simdp.results.trace import ACTIVITIES, COMM_LANE, COMPUTE_LANE, Trace

Names = NDArray[np.object_]

MAX_RANKS, MAX_LABELS = 16, 600
"""Rows; names written into bars. The whole run is in trace.json."""

POINTS = 72 * theme.WIDTH * 0.9
"""Width of the panel, the same for any ranks' names, so that all have the same bars named."""

PIXEL = 1 / 1200
"""Part of the window that a pixel shows; bars side by side that are narrower are drawn as one."""

LANE_HEIGHT, LANE_OFFSET = 0.38, {COMPUTE_LANE: -0.4, COMM_LANE: 0.02}
"""A lane's height, and its upper edge from the middle of its row; rows are 1 high."""


class Bars(NamedTuple):
    """What is drawn, in columns of equal length.

    Attributes
    ----------
    rank, lane, activity : ndarray, int64
        As in `Trace`.
    name : ndarray of str
        What is written into the bar, if there is room.
    start, end : ndarray, float64
        Instants [s].
    """

    rank: Ints
    lane: Ints
    activity: Ints
    name: Names
    start: Floats
    end: Floats


class Timeline(Plot[Study]):
    """Two lanes per rank: what it computes, and how it communicates."""

    kind = "timeline"
    reads = Study
    needs = "a trace, which only the last point of a study has, and only until it is saved"

    def fits(self, study: Study) -> bool:
        """Tell whether the last point has a trace of at least one step."""
        trace = study.points[-1].trace if study.points else None
        return trace is not None and bool((trace.step >= 0).any())

    def num_rows(self, study: Study) -> int:
        """Count the ranks that are shown."""
        return min(study.points[-1].world_size, MAX_RANKS)

    def draw(self, study: Study, *axes: Axes) -> None:
        """Draw on one panel; see `Plot.draw`."""
        (ax,) = axes
        result = study.points[-1]
        trace = result.trace
        assert trace is not None, "draw only studies that fit"
        slow = _stragglers(result)
        ranks = choose_ranks(result.world_size, sorted(slow))
        window = window_of(trace)
        begin, end = window.begin, window.end
        pixel = PIXEL * (end - begin)
        bars = _bars(trace, ranks, window, pixel)
        unit, per_second = theme.time_unit(end - begin)
        row_of = np.zeros(result.world_size)
        row_of[ranks] = np.arange(len(ranks))

        _draw_bars(ax, bars, row_of, begin, per_second, pixel)
        _label_bars(ax, bars, row_of, begin, end, per_second)
        program = result.scenario.get("program")  # which has no steps
        if program is None and not window.apart:
            _mark_steps(ax, trace, window, per_second)
        ax.set_xlim(0, (end - begin) * per_second)
        ax.set_ylim(len(ranks) - 0.45, -0.95)
        ax.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 2.5, 5, 10]))
        left_out = _left_out(result.world_size, ranks)
        since = "" if program else _since(window)
        ax.set_xlabel(f"Time{since} [{unit}]{left_out}")
        ax.set_ylabel("Rank [compute over comm]")
        _label_ranks(ax, ranks, slow)
        _say_what(ax, bars, slow, f"Timeline of {program}" if program else _title(window))


def choose_ranks(world_size: int, named: list[int]) -> list[int]:
    """Choose the ranks to show: all of a few, else the first, the last, the named, some between.

    Parameters
    ----------
    world_size : int
        Number of ranks.
    named : list of int
        Stragglers.

    Returns
    -------
    list of int
        At most `MAX_RANKS`, in order.
    """
    if world_size <= MAX_RANKS:
        return list(range(world_size))
    kept = {0, world_size - 1, *[named[i] for i in evenly(len(named), MAX_RANKS - 2)]}
    limit = MAX_RANKS
    while len(kept | set(evenly(world_size, limit))) > MAX_RANKS:
        limit -= 1
    kept |= set(evenly(world_size, limit))
    between = (rank for rank in range(world_size) if rank not in kept)
    while len(kept) < MAX_RANKS:
        kept.add(next(between))
    return sorted(kept)


def _stragglers(result: Result) -> dict[int, str]:
    """Say for each rank that the scenario slows down by how much."""
    listed: list[dict[str, Any]] = result.scenario["cluster"].get("stragglers") or []
    return {
        straggler["rank"]: f" · {straggler['factor']:g}×" if "factor" in straggler else ""
        for straggler in listed
        if isinstance(straggler.get("rank"), int) and straggler["rank"] < result.world_size
    }


def _bars(trace: Trace, ranks: list[int], window: Window, pixel: float) -> Bars:
    """Join spans of the same activity and name that touch; cut off what leaves the window."""
    shown = window.holds(trace) & np.isin(trace.rank, ranks)
    rank, lane, step = trace.rank[shown], trace.lane[shown], trace.step[shown]
    activity = trace.activity[shown]
    start = np.maximum(trace.start[shown], window.begin)
    end = np.minimum(trace.end[shown], window.end)
    name = _names(trace, shown, pixel, window.apart)
    # Ordered by rank, lane and start, so that a bar is a run of equal keys without a gap.
    keys = np.stack([rank, lane, step, activity])
    new = np.ones(len(rank), dtype=bool)
    new[1:] = (keys[:, 1:] != keys[:, :-1]).any(axis=0) | (name[1:] != name[:-1])
    new[1:] |= start[1:] - end[:-1] > pixel / 2
    heads = np.flatnonzero(new)
    start, end = start[heads], np.maximum.reduceat(end, heads)
    wide = end - start > pixel / 4  # what is narrower cannot be seen
    heads, start, end = heads[wide], start[wide], end[wide]
    return Bars(rank[heads], lane[heads], activity[heads], name[heads], start, end)


def _names(trace: Trace, shown: Bools, pixel: float, apart: bool) -> Names:
    """Name spans: buckets that are wide enough, blocks of layers, all others by their activity.

    Where ranks are in different steps, forward says which one begins.
    """
    rank, step, activity = trace.rank[shown], trace.step[shown], trace.activity[shown]
    start, end = trace.start[shown], trace.end[shown]
    own = np.array(trace.names, dtype=object)[trace.name[shown]]
    wide = (trace.lane[shown] != COMPUTE_LANE) & (end - start > 4 * pixel)
    name = np.where(wide, own, np.array(ACTIVITIES, dtype=object)[activity])
    if apart:
        mine = activity == ACTIVITIES.index("forward")
        name[mine] = [f"step {number + 1}" for number in step[mine].tolist()]
        return name
    per_second = PIXEL / pixel * POINTS
    for code in (ACTIVITIES.index("forward"), ACTIVITIES.index("backward")):
        mine = activity == code
        one = mine & (rank == rank[0]) & (step == step.max())  # its blocks are everyone's
        found = blocks(own[one].tolist(), start[one] * per_second, end[one] * per_second)
        if found:
            name[mine] = [found.get(layer, "") for layer in own[mine]]
    return name


def _tops(bars: Bars, row_of: Floats) -> Floats:
    compute = bars.lane == COMPUTE_LANE
    offset = np.where(compute, LANE_OFFSET[COMPUTE_LANE], LANE_OFFSET[COMM_LANE])
    return np.asarray(row_of[bars.rank] + offset)


def _draw_bars(
    ax: Axes, bars: Bars, row_of: Floats, begin: float, per_second: float, pixel: float
) -> None:
    """Draw each activity's bars as one collection."""
    # A bar that has room for it ends a little early, so that its neighbour stands apart.
    short = np.where(bars.end - bars.start > 8 * pixel, 1.5 * pixel, 0.0)
    left, right = (bars.start - begin) * per_second, (bars.end - short - begin) * per_second
    top = _tops(bars, row_of)
    low = top + LANE_HEIGHT
    corners = np.stack(
        [np.stack(xy, axis=1) for xy in ((left, top), (right, top), (right, low), (left, low))],
        axis=1,
    )
    for activity, fill in theme.FILLS.items():
        mine = bars.activity == ACTIVITIES.index(activity)
        if not mine.any():
            continue
        plain = PolyCollection(list(corners[mine]), facecolors=fill.color, edgecolors="none")
        plain.set_label(activity)
        ax.add_collection(plain, autolim=False)
        if fill.hatch:
            lines = PolyCollection(
                list(corners[mine]),
                facecolors="none",
                edgecolors=fill.hatch_color,
                linewidths=0.0,
                hatch=fill.hatch,
            )
            ax.add_collection(lines, autolim=False)


def _label_bars(
    ax: Axes, bars: Bars, row_of: Floats, begin: float, end: float, per_second: float
) -> None:
    """Write what a bar is into it, as long as it fits; the widest bars first."""
    width = (bars.end - bars.start) / (end - begin) * POINTS
    middles = _tops(bars, row_of) + LANE_HEIGHT / 2
    widest = np.argsort(-width, kind="stable")[:MAX_LABELS]
    for i in np.sort(widest):
        activity = ACTIVITIES[bars.activity[i]]
        if activity == "wait" or not bars.name[i]:
            continue
        text = next((text for text in shorter(bars.name[i]) if fits(text, width[i])), "")
        if not text:
            continue
        ax.text(
            ((bars.start[i] + bars.end[i]) / 2 - begin) * per_second,
            middles[i],
            text,
            ha="center",
            va="center_baseline",
            fontsize=theme.TINY_SIZE,
            color=theme.FILLS[activity].text_color,
            in_layout=False,
        )


def _mark_steps(ax: Axes, trace: Trace, window: Window, per_second: float) -> None:
    """Name the steps above the first row; a line stands where a later one begins."""
    begin, end, steps = window.begin, window.end, window.steps
    starts = [float(trace.start[trace.step == step].min(initial=end)) for step in steps]
    for step, start, until in zip(steps, starts, [*starts[1:], end], strict=True):
        if step > steps[0]:
            ax.axvline((start - begin) * per_second, color=theme.MUTED, linewidth=0.8, zorder=0.9)
        ax.text(
            ((start + until) / 2 - begin) * per_second,
            -0.7,
            f"step {step + 1}",
            ha="center",
            va="center",
            fontsize=theme.SMALL_SIZE,
            color=theme.MUTED,
            in_layout=False,
        )


def _label_ranks(ax: Axes, ranks: list[int], slow: dict[int, str]) -> None:
    """Name the rows; a straggler has a colour, a marker, and its factor."""
    ax.yaxis.set_major_locator(FixedLocator(list(range(len(ranks)))))
    names = [f"▲ {rank}{slow[rank]}" if rank in slow else str(rank) for rank in ranks]
    for rank, label in zip(ranks, ax.set_yticklabels(names), strict=True):
        if rank in slow:
            label.set_color(theme.STRAGGLER)
            label.set_fontweight("bold")
    ax.tick_params(axis="y", length=0)
    ax.grid(visible=False, axis="y")
    for boundary in range(1, len(ranks)):
        ax.axhline(boundary - 0.5, color=theme.FAINT, linewidth=0.7, zorder=0.8)


def _since(window: Window) -> str:
    if window.apart:
        unit, per_second = theme.time_unit(window.begin)
        return f" since {window.begin * per_second:.4g} {unit} of the run"
    return f" since the start of step {window.steps[0] + 1}"


def _title(window: Window) -> str:
    if window.apart:
        return "Timeline, each rank in its own step"
    first, last = window.steps[0] + 1, window.steps[-1] + 1
    return f"Timeline of step {last}" if first == last else f"Timeline of steps {first}–{last}"


def _say_what(ax: Axes, bars: Bars, slow: dict[int, str], title: str) -> None:
    """Write the title, and what the colours and markers mean."""
    ax.set_title(title)
    present = set(bars.activity.tolist())
    handles: list[Artist] = [
        Patch(
            facecolor=fill.color,
            edgecolor=fill.hatch_color,
            hatch=fill.hatch * 2,
            linewidth=0,
            label=activity,
        )
        for activity, fill in theme.FILLS.items()
        if ACTIVITIES.index(activity) in present
    ]
    if any(rank in slow for rank in bars.rank.tolist()):
        handles.append(
            Line2D([], [], color=theme.STRAGGLER, marker="^", linestyle="", label="straggler")
        )
    ax.legend(
        handles=handles,
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        ncols=len(handles),
        borderaxespad=0.2,
        handlelength=1.4,
        handletextpad=0.5,
        columnspacing=1.2,
    )


def _left_out(world_size: int, ranks: list[int]) -> str:
    """Say which ranks are not shown, as lines below the axis; nothing if all are."""
    runs: list[list[int]] = []
    for rank in range(world_size):
        if rank in ranks:
            continue
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    if not runs:
        return ""
    said = ", ".join(str(low) if low == high else f"{low}–{high}" for low, high in runs)
    text = f"{len(ranks)} of {world_size} ranks are shown; left out: {said}"
    return "\n" + textwrap.fill(text, 110)
