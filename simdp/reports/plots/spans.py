"""Draws the spans of a timeline: bars with names, and bands of many narrow ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FixedLocator, MaxNLocator
from numpy.typing import NDArray

from simdp.arrays import Bools, Floats, Ints
from simdp.reports import theme
from simdp.reports.charts.timeline import PIXEL, SpanChart, TimelineRows, TimeWindow, row_name
from simdp.reports.plots.style import SMALL_SIZE, TEXT_SIZE, TINY_SIZE, WIDTH, Look, text_width
from simdp.reports.plots.text import PALE, note, patch
from simdp.results.trace import ACTIVITIES, COMM_LANE, COMPUTE_LANE, Trace, changes

MAX_LABELS = 600  # names written into bars
HEADING = 0.85  # height of the heading of one of several runs, in rows
# a lane's height, and its upper edge from the middle of its row, in rows
LANE_HEIGHT, LANE_OFFSET = 0.38, {COMPUTE_LANE: -0.4, COMM_LANE: 0.02}


def num_rows(chart: SpanChart) -> int:
    """Count the rows of all runs, with their headings."""
    return round(sum(len(run.ranks) + HEADING * bool(run.heading) for run in chart.runs))


def draw(ax: Axes, chart: SpanChart) -> list[Artist]:
    """Draw all runs, one below the other; return the entries of the legend."""
    runs, length = chart.runs, chart.length
    _, per_second = theme.time_unit(length)
    room = _room(runs)
    top, ticks, present = 0.0, [], set[int]()
    for run in runs:
        if run.heading:
            look: Look = {"fontsize": TEXT_SIZE, "fontweight": "bold", "va": "center"}
            look |= {"xycoords": ax.get_yaxis_transform(), "in_layout": False}
            note(ax, run.heading, (0.0, top - 0.02), (2, 0), look)
            top += HEADING
        row_of = np.full(max(max(ranks) for ranks in run.ranks) + 1, np.nan)
        row_of[[ranks[0] for ranks in run.ranks]] = top + np.arange(len(run.ranks))
        bars, bands = bars_of(run.trace, run.window, length, room)
        _draw_bars(ax, bars, row_of, per_second, PIXEL * length)
        _label_bars(ax, bars, row_of, room / length, per_second)
        _label_bands(ax, bands, row_of, room / length, per_second)
        if chart.has_steps and not run.window.apart:
            _mark_steps(ax, run, top, per_second, named=not run.heading)
        ticks += [(top + row, ranks, run.slow) for row, ranks in enumerate(run.ranks)]
        present |= set(bars.activity.tolist())
        top += len(run.ranks)
    ax.set_xlim(0, length * per_second)
    ax.set_ylim(top - 0.45, -0.95 + 0.35 * bool(runs[0].heading))
    ax.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 2.5, 5, 10]))
    ax.set_xlabel(chart.x.label)
    ax.set_ylabel(chart.y.label)
    _label_ranks(ax, ticks)
    return _handles(present, any(run.slow for run in runs))


def _tops(lane: Ints | int, rank: Ints | int, row_of: Floats) -> Floats:
    compute = np.asarray(lane) == COMPUTE_LANE
    offset = np.where(compute, LANE_OFFSET[COMPUTE_LANE], LANE_OFFSET[COMM_LANE])
    return np.asarray(row_of[rank] + offset)


def _draw_bars(ax: Axes, bars: Bars, row_of: Floats, per_second: float, pixel: float) -> None:
    """Draw each activity's bars as one collection."""
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
        plain = PolyCollection(list(corners[mine]), facecolors=fill.color, edgecolors="none")
        plain.set_label(activity)
        plain.set_snap(False)  # a bar narrower than a pixel is as pale as it is narrow
        ax.add_collection(plain, autolim=False)
        wide = mine & (width > THIN * pixel)
        if fill.hatch and wide.any():
            edges: Look = {"edgecolors": fill.hatch_color, "hatch": fill.hatch}
            lines = PolyCollection(list(corners[wide]), facecolors="none", linewidths=0.0, **edges)
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
            _write(ax, x, middle, text, theme.INK, {"path_effects": halo})


def _write(ax: Axes, x: float, y: float, text: str, color: str, halo: Look | None = None) -> None:
    look: Look = {"ha": "center", "va": "center_baseline", "fontsize": TINY_SIZE}
    ax.text(x, y, text, color=color, in_layout=False, **look, **(halo or {}))


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
    names = max(text_width(line, SMALL_SIZE) for line in lines)
    return 0.97 * 72 * WIDTH - 1.1 * names - 40


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


def _handles(present: set[int], is_slow: bool) -> list[Artist]:
    """Make the legend of activities and slow ranks."""
    handles: list[Artist] = [
        patch(activity, fill.color, fill.hatch, fill.hatch_color)
        for activity, fill in theme.FILLS.items()
        if ACTIVITIES.index(activity) in present
    ]
    slow = Line2D([], [], color=theme.STRAGGLER, marker="^", linestyle="", label="slow rank")
    return handles + [slow] * is_slow


PADDING = 2.0  # free space around a name, both sides together [points]
# a pass is shown in blocks if at least so many have room for their names, over at least this share
# of it
MIN_BLOCKS, MIN_SHARE = 3, 0.6


def fits(text: str, width: float) -> bool:
    """Return whether a bar of this width [points] has room for a name."""
    return text_width(text, TINY_SIZE) + PADDING <= width


def shorter(name: str) -> list[str]:
    """Write a bar's name in ever fewer letters.

    ``all_reduce bucket 3`` becomes ``b3``; ``broadcast buffers 0`` ``buffers``, ``all_gather
    layer1.0.bn1 statistics`` ``bn1``, and ``step 7`` ``7``.
    """
    if name in ("forward", "backward"):
        return [name, {"forward": "fwd", "backward": "bwd"}[name]]
    words = name.split()
    if words[0] == "step":
        return [name, words[-1]]
    if len(words) < 3:  # as in "used parameters", which says it all
        return [name]
    if words[1] == "bucket":  # and, behind its number, which part of it
        rest = "".join(f" {word}" for word in words[3:] if len(word) == 1)
        return [name, " ".join(words[1:3]) + rest, f"b{words[2]}{rest}"]
    _, what, last = words[0], words[-2], words[-1]
    tail = f"{what} {last}"
    if what == "unit":
        return [name, tail, f"u{last}"]
    return [name, tail, what, what.rpartition(".")[2]]


def blocks(layers: Sequence[str], start: Floats, end: Floats) -> dict[str, str]:
    """Group the layers of a pass into the smallest blocks with readable names.

    ``layers`` are names in the order of one rank's pass, such as ``layer1.0.conv1``; ``start`` and
    ``end`` of shape `(num_layers,)` are the edges of their bars [points]. Returns the name by
    layer, such as ``layer1.0``, ``""`` without room; empty if most of the pass would have no name.
    """
    for gather in (_block, lambda layer: layer.partition(".")[0]):
        paths = [gather(layer) for layer in layers]
        heads = [i for i, path in enumerate(paths) if not i or path != paths[i - 1]]
        if not heads or len(heads) > len(set(paths)):  # a block in several pieces tells nothing
            continue
        tails = [i - 1 for i in (*heads[1:], len(layers))]
        width = end[tails] - start[heads]
        named = {paths[i]: ".".join(paths[i].split(".")[-2:]) for i in heads}
        read = np.array([fits(named[paths[i]], w) for i, w in zip(heads, width, strict=True)])
        if read.sum() >= MIN_BLOCKS and width[read].sum() >= MIN_SHARE * width.sum():
            kept = {paths[i] for i, shown in zip(heads, read, strict=True) if shown}
            return {
                layer: named[path] if path in kept else ""
                for layer, path in zip(layers, paths, strict=True)
            }
    return {}


def _block(layer: str) -> str:
    """Cut a layer's path behind its first number, else before its last part."""
    parts = layer.split(".")
    for place, name in enumerate(parts[1:], 2):
        if name.isdigit():
            return ".".join(parts[:place])
    return ".".join(parts[:-1]) or layer


Names = NDArray[np.object_]
THIN = 3.0  # width up to which neighbouring bars are counted, not named [pixels]
WIDE = 2.0  # least width of a collective with a name of its own [points]
MIN_IN_BAND = 3  # least number of bars in a band


class Bars(NamedTuple):
    """Bars in columns of equal length."""

    rank: Ints
    lane: Ints
    activity: Ints
    name: Names  # written into the bar if there is room
    start: Floats  # since the begin of the window [s]
    end: Floats  # since the begin of the window [s]


class Band(NamedTuple):
    """Many narrow bars of a lane, with their count."""

    rank: int
    lane: int
    start: float  # since the begin of the window [s]
    end: float  # since the begin of the window [s]
    text: str  # ``"145 × all_reduce"``


def bars_of(
    trace: Trace, window: TimeWindow, length: float, room: float
) -> tuple[Bars, list[Band]]:
    """Make bars and bands of a window's spans.

    The panel is ``length`` long in time [s] and ``room`` wide [points].
    """
    pixel = PIXEL * length
    if not len(trace):
        none, never = np.zeros(0, dtype=np.int64), np.zeros(0)
        return Bars(none, none, none, never.astype(object), never, never), []
    rank, lane, step, activity = trace.rank, trace.lane, trace.step, trace.activity
    start = np.maximum(trace.start, window.begin) - window.begin
    end = np.minimum(trace.end, window.end) - window.begin
    name = _names(trace, start, end, room / length, window.apart)
    # Ordered by rank, lane and start, so that a bar is a run of equal keys without a gap.
    new = changes(rank, lane, step, activity, name)
    new[1:] |= start[1:] - end[:-1] > pixel / 2
    # Collectives one behind the other are counted, so that only wide ones are joined by name.
    new[1:] |= (lane[1:] != COMPUTE_LANE) & (trace.name[1:] != trace.name[:-1])
    heads = np.flatnonzero(new)
    end = np.maximum.reduceat(end, heads)
    bars = Bars(rank[heads], lane[heads], activity[heads], name[heads], start[heads], end)
    return _with_bands(bars, trace.name[heads], trace.names, pixel)


def _names(trace: Trace, start: Floats, end: Floats, per_second: float, apart: bool) -> Names:
    """Name spans: wide collectives, blocks of layers, others by activity.

    If ranks are in different steps, forward has the step's number. ``per_second`` is the width of a
    second [points].
    """
    rank, step, activity = trace.rank, trace.step, trace.activity
    own = np.array([*trace.names, ""], dtype=object)[trace.name]
    wide = (trace.lane != COMPUTE_LANE) & ((end - start) * per_second > WIDE)
    name = np.where(wide, own, np.array(ACTIVITIES, dtype=object)[activity])
    if apart:
        mine = activity == ACTIVITIES.index("forward")
        name[mine] = [f"step {number + 1}" for number in step[mine].tolist()]
        return name
    for code in (ACTIVITIES.index("forward"), ACTIVITIES.index("backward")):
        mine = activity == code
        last = mine & (rank == rank[0]) & (step == step.max())  # its blocks are everyone's
        names = blocks(own[last].tolist(), start[last] * per_second, end[last] * per_second)
        if names:
            name[mine] = [names.get(layer, "") for layer in own[mine]]
    return name


def _with_bands(bars: Bars, code: Ints, names: list[str], pixel: float) -> tuple[Bars, list[Band]]:
    """Count runs of narrow bars instead of naming each.

    ``code`` are the places of the bars' names in ``names``.
    """
    thin: Bools = bars.end - bars.start < THIN * pixel
    new = changes(bars.rank, bars.lane)
    new[1:] |= ~thin[1:] | ~thin[:-1] | (bars.start[1:] - bars.end[:-1] > THIN * pixel)
    run = np.cumsum(new) - 1
    bands = []
    for number in np.flatnonzero(np.bincount(run) >= MIN_IN_BAND):
        first, last = np.searchsorted(run, [number, number + 1])
        inside = slice(first, last)
        if bars.lane[first] != COMPUTE_LANE:
            text = _count(bars.activity[inside], [names[i] for i in code[inside]])
            place = int(bars.rank[first]), int(bars.lane[first]), float(bars.start[first])
            bands.append(Band(*place, float(bars.end[inside].max()), text))
        bars.name[inside] = ""
    return bars, bands


def _count(activity: Ints, names: list[str]) -> str:
    """Count the bars of a band by name; waits belong to collectives."""
    comm = ACTIVITIES.index("comm")
    named = [name for name, code in zip(names, activity, strict=True) if code == comm] or names
    kinds = list(dict.fromkeys(name.partition(" ")[0] for name in named))
    return f"{len(named)} × {kinds[0] if len(kinds) == 1 and kinds[0] else 'comm'}"
