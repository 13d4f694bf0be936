"""Draws charts with Matplotlib: the only module that makes a picture of a declaration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from simdp.arrays import Floats
from simdp.reports import theme
from simdp.reports.charts.chart import Chart, Note, Picture, ReferenceLine, Series, Stretch, Values
from simdp.reports.charts.names import cut, wrapped
from simdp.reports.charts.timeline import SpanChart
from simdp.reports.plots import axes as scales
from simdp.reports.plots import spans
from simdp.reports.plots.style import (
    LINE_WIDTH,
    MARKER_SIZE,
    PANEL_WIDTH,
    SMALL_SIZE,
    TEXT_SIZE,
    THIN_WIDTH,
    Look,
    fitted,
    new_figure,
    text_width,
)
from simdp.reports.plots.text import HALO, PALE, End, entitle, label_ends, legend_above, note, patch

MAX_MARKERS = 24  # markers on a line
MAX_BANDS = 2  # most lines with bands of intervals
BESIDE = 0.008  # distance of two lines' intervals at one place, as a part of the axis
BAR_HEIGHT = 0.62  # in rows
CROSS = "X"  # marker of a place that is crossed out


class SeriesLook(NamedTuple):
    """Colour and marker of a series."""

    color: str
    marker: str


def draw(picture: Picture) -> tuple[Figure, list[Axes]]:
    """Draw a picture inside `simdp.reports.plots.style.style`."""
    num_rows = max(map(_num_rows, picture.charts))
    figure, panels = new_figure(len(picture.charts), num_rows, picture.widths)
    shares = picture.widths or (1.0,) * len(panels)
    widths = [PANEL_WIDTH * share / (sum(picture.widths) or 1.0) for share in shares]
    drawn = [draw_chart(*of) for of in zip(panels, picture.charts, widths, strict=True)]
    rows = [legend_above(ax, drawn[i].handles, widths[i]) for i, ax in enumerate(panels)]
    for number, (chart, ax) in enumerate(zip(picture.charts, panels, strict=True)):
        if not number:
            entitle(ax, picture.title, picture.about, max(rows) if picture.widths else rows[0])
        elif picture.widths:  # level with the first one
            entitle(ax, chart.title, " " * bool(picture.about), max(rows))
            ax.set_ylabel("")
        else:
            text = ": ".join(filter(None, [chart.title, chart.caption.removesuffix(".")]))
            ax.set_title(text, fontsize=TEXT_SIZE, fontweight="normal")
        label_ends(ax, drawn[number].ends)
    return figure, panels


def _num_rows(chart: Chart) -> int:
    """Count the rows of bars, which decide the height; 0 for curves."""
    if isinstance(chart, SpanChart):
        return spans.num_rows(chart)
    rows = _rows(chart).values()
    lines = max((wrapped(name).count("\n") + 1 for name in rows), default=1)
    return len(rows) * -(-lines // 2)


class Names(NamedTuple):
    """Names of a panel's series that are still to be written."""

    handles: Sequence[Artist] = ()  # entries of a legend
    ends: Sequence[End] = ()  # of lines, beside the panel


def draw_chart(ax: Axes, chart: Chart, width: float) -> Names:
    """Draw a chart on an empty panel of some width [points]."""
    if isinstance(chart, SpanChart):
        return Names(spans.draw(ax, chart))
    scales.scale(ax, chart)
    stacks: dict[str, Floats] = {}
    for number, series in enumerate(chart.series):
        if series.look in ("area", "steps"):
            _draw_area(ax, chart, series, stacks)
        elif series.look in ("bar", "ends", "limit"):
            _draw_bars(ax, chart, series, stacks)
        else:
            _draw_line(ax, chart.series, number)
    if any(series.look == "steps" for series in chart.series) and chart.y.scale != "category":
        places = _floats(chart.series[0].x)
        for total in stacks.values():
            ax.plot(places, total, drawstyle="steps-post", color=theme.INK, linewidth=THIN_WIDTH)
    _draw_intervals(ax, chart)
    for mark in chart.marks:
        _draw_mark(ax, mark)
    rows = {place: wrapped(name) for place, name in _rows(chart).items()}
    scales.limit(ax, chart, len(rows), width)
    scales.tick(ax, chart, rows)
    for remark in chart.notes:
        _write_note(ax, remark)
    for stretch in chart.stretches:
        _draw_stretch(ax, stretch, width)
    if chart.names_at == "above" or any(map(_is_filling, chart.series)):
        return Names([_handle(s, _look(s, n)) for n, s in enumerate(chart.series) if s.name])
    ends = [end for n, s in enumerate(chart.series) for end in _ends(s, _look(s, n))]
    theory = {end.text: end for end in ends if end.dashed}  # one of several is named
    return Names(ends=[end for end in ends if not end.dashed or end is theory[end.text]])


def _floats(values: Values | Sequence[str]) -> Floats:
    return np.array(values, dtype=np.float64)


def _look(series: Series, number: int) -> SeriesLook:
    color, marker = theme.look(number)
    return SeriesLook(
        series.color or (theme.MUTED if series.dashed else color), series.marker or marker
    )


def _is_filling(series: Series) -> bool:
    return series.look not in ("line", "points")


def _rows(chart: Chart) -> Mapping[float, str]:
    """Name the rows of bars or of strips by place; empty for curves."""
    axis = chart.y if chart.y.scale == "category" else chart.x
    if axis.scale != "category":
        return {}
    if axis.ticks is not None:
        return axis.ticks
    names = dict.fromkeys(str(name) for series in chart.series for name in series.x)
    return {float(place): name for place, name in enumerate(names)}


def _places(chart: Chart, series: Series) -> Floats:
    """Compute the rows of a series of bars."""
    if not any(isinstance(name, str) for name in series.x):
        return _floats(series.x)
    place = {name: number for number, name in _rows(chart).items()}
    return np.array([place[str(name)] for name in series.x])


def _draw_line(ax: Axes, every: Sequence[Series], number: int) -> None:
    """Draw a line or points; a line that later ones coincide with is wider than these."""
    series = every[number]
    color, marker = _look(series, number)
    x, y = _floats(series.x), _floats(series.y)
    if series.look == "points":
        filled: Look = {"ms": MARKER_SIZE, "mfc": color, "mec": "white", "mew": 0.5, "zorder": 3.8}
        hollow: Look = {
            "ms": MARKER_SIZE + 2.5,
            "mfc": "none",
            "mec": color,
            "mew": 1.1,
            "zorder": 4,
        }
        ax.plot(x, y, marker, color=color, **(filled if series.is_filled else hollow))
        for text, *place in zip(series.labels, x, y, strict=False):
            note(ax, text, (place[0], place[1]), (6, 0), {"va": "center"})
    elif series.dashed:
        if len(series.low):
            low, high = _floats(series.low), _floats(series.high)
            ax.fill_between(x, low, high, color=theme.FAINT, linewidth=0, zorder=1.5)
        ax.plot(x, y, "--", color=color, linewidth=1.2, zorder=2)
    elif marker == "none":
        ax.plot(x, y, color=color, linewidth=1.5 * THIN_WIDTH, zorder=2)
    else:
        covered = sum(_coincide(series, later) for later in every[number + 1 :])
        step = -(-len(x) // MAX_MARKERS) or 1
        ax.plot(x, y, color=color, marker=marker, markevery=(number % step, step),
                linewidth=LINE_WIDTH + 2.2 * covered, markersize=MARKER_SIZE + 3 * covered,
                markeredgecolor="white", markeredgewidth=0.6, zorder=3 + 0.01 * number)  # fmt: skip
    if series.members:
        thin = LineCollection(
            list(series.members), colors=theme.SERIES[2], linewidths=THIN_WIDTH, alpha=0.8
        )
        ax.add_collection(thin)
    if series.crosses:
        x, y = np.transpose(series.crosses)
        ax.plot(x, y, CROSS, color=color, ms=1.6 * MARKER_SIZE, mec="white", mew=0.6, zorder=4)


def _coincide(a: Series, b: Series) -> bool:
    if b.look != "line" or b.dashed or len(a.y) != len(b.y):
        return False
    pairs = zip((a.x, a.y), (b.x, b.y), strict=True)
    return all(np.allclose(_floats(p), _floats(q), 0.01, 0, equal_nan=True) for p, q in pairs)


def _draw_intervals(ax: Axes, chart: Chart) -> None:
    """Draw a bar at each point with an interval, and a band for few lines."""
    known = [
        (series, _look(series, number).color)
        for number, series in enumerate(chart.series)
        if np.isfinite(_floats(series.high)).any()
        and not (series.dashed or series.members or _is_filling(series))
    ]
    lines = [series for series, _ in known if series.look == "line"]
    for number, (series, color) in enumerate(known):
        x, low, high = (_floats(values) for values in (series.x, series.low, series.high))
        is_line = series.look == "line"
        if is_line and len(lines) <= MAX_BANDS:
            ax.fill_between(x, low, high, color=color, alpha=0.13, linewidth=0, zorder=1)
        if is_line and len(lines) > 1:
            x = scales.moved(ax, x, BESIDE * (number - (len(lines) - 1) / 2))
        pale = 1.0 if is_line else 0.5
        ax.vlines(x, low, high, colors=color, linewidth=1.1, alpha=pale, zorder=2.5)
        for end in (low, high) if is_line else ():
            ax.plot(x, end, "_", color=color, markersize=6, markeredgewidth=1.1, zorder=2.5)
    if lines:
        text = f"{'band' if len(lines) <= MAX_BANDS else 'bars'}: 90 % interval"
        ax.text(0.012, 0.97, text, transform=ax.transAxes, va="top", zorder=6, **PALE)


def _draw_area(ax: Axes, chart: Chart, series: Series, stacks: dict[str, Floats]) -> None:
    """Draw an area on those of its stack; in strips a row's height is 1."""
    x, heights = _floats(series.x), _floats(series.y)
    if chart.y.scale == "category":
        heights = -scales.STRIP_HEIGHT * heights
        stacks.setdefault(
            series.stack, np.full(len(x), float(series.stack) + scales.STRIP_HEIGHT / 2)
        )
    low = stacks.get(series.stack, np.zeros(len(x)))
    stacks[series.stack] = high = low + heights
    step: Literal["post"] | None = "post" if series.look == "steps" else None
    ax.fill_between(x, low, high, step=step, facecolor=series.color, linewidth=0)
    if series.hatch:
        ax.fill_between(
            x, low, high, step=step, facecolor="none", edgecolor=series.hatch_color,
            hatch=series.hatch, linewidth=0,
        )  # fmt: skip


def _draw_bars(ax: Axes, chart: Chart, series: Series, stacks: dict[str, Floats]) -> None:
    """Draw bars, on those of their stack; or the intervals and limits of rows."""
    rows, bar = _places(chart, series), ax.barh if chart.sideways else ax.bar
    if series.look == "limit":
        lines = ax.vlines if chart.sideways else ax.hlines
        lines(_floats(series.y), rows - 0.5, rows + 0.5, colors=theme.INK, linewidth=1.6, zorder=4)
        return
    if series.look == "ends":
        below = rows + BAR_HEIGHT / 2 + 0.09
        low, high = _floats(series.low), _floats(series.high)
        ax.hlines(below, low, high, colors=theme.INK, linewidth=1.1, zorder=4, label=series.name)
        for end in (low, high):
            ax.plot(end, below, "|", color=theme.INK, markersize=5, zorder=4)
        return
    beside = [other for other in chart.series if other.look == "bar" and not other.stack]
    thick = BAR_HEIGHT / (len(beside) or 1) if not series.stack else BAR_HEIGHT
    if not series.stack:
        rows = rows + thick * (beside.index(series) - (len(beside) - 1) / 2)
    start = stacks.setdefault(series.stack, np.zeros(len(_rows(chart)))) if series.stack else None
    at = _places(chart, series).astype(int)
    low = np.zeros(len(rows)) if start is None else start[at]
    length = _floats(series.y)
    bar(rows, length, thick, low, color=series.color, linewidth=0, zorder=2)
    if series.hatch:
        look: Look = {"edgecolor": series.hatch_color, "hatch": series.hatch, "zorder": 2.1}
        bar(rows, length, thick, low, color="none", linewidth=0, **look)
    if start is not None:
        start[at] += length


def _draw_mark(ax: Axes, mark: ReferenceLine) -> None:
    """Draw a line across, dashed, with its text at its upper or right end."""
    look: Look = {"color": theme.STRAGGLER, "linestyle": "--", "linewidth": LINE_WIDTH}
    if mark.axis == "y":
        ax.axhline(mark.value, **look)
        at, frame, by, va = (1.0, mark.value), ax.get_yaxis_transform(), (-4, 3), "bottom"
    else:
        ax.axvline(mark.value, **look)
        at, frame, by, va = (mark.value, 1.0), ax.get_xaxis_transform(), (-4, -3), "top"
    text: Look = {"color": theme.STRAGGLER, "path_effects": HALO, "xycoords": frame}
    note(ax, mark.text, at, by, text | {"ha": "right", "va": va})


def _draw_stretch(ax: Axes, stretch: Stretch, width: float) -> None:
    """Name a part of the axis along the upper edge, and mark where it begins."""
    if stretch.is_marked:
        ax.axvline(stretch.start, color=theme.MUTED, linewidth=0.8, linestyle=":", zorder=1.5)
    to_fraction = ax.transScale + ax.transLimits
    left, right = (to_fraction.transform((end, 1.0))[0] for end in (stretch.start, stretch.end))
    for text in stretch.names:
        room = max(text_width(line, SMALL_SIZE) for line in text.split("\n")) + 4
        if room <= (right - left) * width:
            middle = ax.transAxes + ax.get_xaxis_transform().inverted()
            x = middle.transform(((left + right) / 2, 0.985))[0]
            look: Look = {**PALE, "ha": "center", "va": "top", "path_effects": HALO}
            ax.text(x, 0.985, text, transform=ax.get_xaxis_transform(), in_layout=False, **look)
            return


# offsets [points] and alignments of a remark
SIDES = {
    "right": ((4.0, 0.0), "left", "center"),
    "below": ((0.0, -1.3 * SMALL_SIZE - 2), "center", "center"),
    "up right": ((4.0, 7.0), "left", "bottom"),
    "up left": ((-4.0, 7.0), "right", "bottom"),
}


def _write_note(ax: Axes, remark: Note) -> None:
    if remark.marker:
        ax.plot(remark.x, remark.y, remark.marker, color=theme.INK, clip_on=False, zorder=5)
    by, ha, va = SIDES[remark.side]
    text = fitted(remark.text, SMALL_SIZE, remark.room) if remark.room else remark.text
    look: Look = {"color": remark.color, "path_effects": HALO, "in_layout": not remark.room}
    note(ax, text, (remark.x, remark.y), by, look | {"ha": ha, "va": va, "zorder": 6})


def _handle(series: Series, look: SeriesLook) -> Artist:
    """Make an entry of a legend."""
    if series.look in ("ends", "limit"):
        return Line2D([], [], color=theme.INK, linewidth=1.1, label=series.name)
    if _is_filling(series):
        return patch(series.name, series.color, series.hatch, series.hatch_color)
    if series.dashed:
        return Line2D([], [], color=look.color, linestyle="--", linewidth=1.2, label=series.name)
    face = look.color if series.is_filled or series.look == "line" else "none"
    line: Literal["", "-"] = "" if series.look == "points" else "-"
    marks: Look = {"marker": look.marker, "mfc": face, "linestyle": line}
    return Line2D([], [], color=look.color, label=series.name, **marks)


def _ends(series: Series, look: SeriesLook) -> list[End]:
    """Find the last points of a line and of its thin ones; none without a name."""
    x, y = _floats(series.x), _floats(series.y)
    there = np.flatnonzero(np.isfinite(y))
    ends = []
    if series.of_members:
        last = np.array(
            [
                line[np.isfinite(line[:, 1])][-1]
                for line in series.members
                if np.isfinite(line[:, 1]).any()
            ]
        )
        if len(last):
            right = last[last[:, 0] == last[:, 0].max()]
            ends.append(End(series.of_members, right[0, 0], right[:, 1].max(), theme.SERIES[2]))
    if series.name and len(there):
        marker = "" if series.dashed or look.marker == "none" else look.marker
        is_open = series.look == "points" and not series.is_filled
        place = float(x[there[-1]]), float(y[there[-1]])
        ends.append(End(cut(series.name), *place, look.color, marker, series.dashed, is_open))
    return ends
