"""Scales, limits and ticks of a chart's axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal

import numpy as np
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.axis import Axis as PlotAxis

from simdp.arrays import Floats
from simdp.reports import theme
from simdp.reports.charts.chart import Axis, Chart
from simdp.reports.plots.style import PANEL_WIDTH, SMALL_SIZE, text_width

MARGIN = 0.05  # free part of an axis on either side of its values
ABOVE, BELOW_NAMES = 1.12, 1.28  # height of an axis in largest values; with names along its edge
MOST_ABOVE = 2.5  # highest end of an interval, in largest values
STRIP_HEIGHT = 0.76  # of a strip, in rows
STEPS = (1, 2, 2.5, 5, 10)


def scale(ax: Axes, chart: Chart) -> None:
    """Set logarithmic axes, before anything is drawn."""
    for axis, set_scale in ((chart.x, ax.set_xscale), (chart.y, ax.set_yscale)):
        if axis.scale == "log2":
            set_scale("log", base=2)
        elif axis.scale == "log":
            set_scale("log")


def moved(ax: Axes, x: Floats, part: float) -> Floats:
    """Move places sideways by a part of the axis over these places."""
    if ax.get_xscale() == "log":
        return np.asarray(x * (x[-1] / x[0]) ** part)
    return np.asarray(x + part * (x[-1] - x[0]))


def limit(ax: Axes, chart: Chart, num_rows: int, width: float) -> None:
    """Set the ends of both axes; ``width`` is that of the panel [points]."""
    if chart.sideways:
        ax.set_xlim(*_bar_ends(chart, width))
        ax.set_ylim(num_rows - 0.45, -0.55)
        return
    is_filled = any(series.look in ("area", "steps") for series in chart.series)
    if chart.x.scale != "category":
        marks = [mark.value for mark in chart.marks if mark.axis == "x"]
        ax.set_xlim(*_ends(chart.x, np.append(_values(chart, "x"), marks), is_filled))
    if chart.y.scale == "category":
        ax.set_ylim(num_rows - 0.5, -0.5)
    else:
        ax.set_ylim(*_heights(chart))


def _values(chart: Chart, *fields: str) -> Floats:
    """Join the finite values of all series."""
    columns = [
        np.array(getattr(series, name), dtype=np.float64)
        for series in chart.series
        for name in fields
        if len(getattr(series, name))
    ]
    places = ["xy".index(name) for name in fields if name in "xy"]
    columns += [line[:, at] for s in chart.series for line in s.members for at in places]
    values = np.concatenate([*columns, []])
    return np.asarray(values[np.isfinite(values)])


def _ends(axis: Axis, values: Floats, is_filled: bool) -> tuple[float, float]:
    """Choose the ends of a horizontal axis."""
    if axis.ends is not None or not len(values):
        return axis.ends or (0.0, 1.0)
    low, high = float(values.min()), float(values.max())
    if is_filled:
        return low, high
    if axis.scale in ("log", "log2"):
        room = (high / low) ** MARGIN if high > low else 2.0
        return low / room, high * room
    room = MARGIN * (high - low) or 0.5
    return (0.0 if axis.from_zero else low - room), high + room


def _heights(chart: Chart) -> tuple[float, float]:
    """Choose the ends of a vertical axis."""
    if chart.y.ends is not None:
        return chart.y.ends
    marks = [mark.value for mark in chart.marks if mark.axis == "y"]
    stacks: dict[str, Floats] = {}
    for series in chart.series:
        if series.stack and series.look != "bar":
            stacks[series.stack] = stacks.get(series.stack, 0.0) + np.array(series.y)
    values = np.concatenate([_values(chart, "y"), marks, *stacks.values()])
    if not len(values):
        return 0.0, 1.0
    intervals = [s for s in chart.series if not s.members]
    ends = _values(Chart("", chart.x, chart.y, intervals), "low", "high")
    low, high = float(values.min()), float(values.max())
    low = min(low, float(ends.min(initial=low)))
    longest = float(ends.max(initial=high))
    high = max(high, longest if low < 0 else min(longest, MOST_ABOVE * high))
    has_names = bool(chart.stretches) or any(note.side[:2] == "up" for note in chart.notes)
    if chart.y.scale == "log":
        span = max(high / low, 1.5)
        return low / span**MARGIN, high * span ** (0.16 if has_names else MARGIN)
    if chart.y.is_near or low < 0:
        room = MARGIN * 2 * (high - low) or 0.1 * abs(high) or 1.0
        return low - room, high + room
    return 0.0, high * (BELOW_NAMES if has_names else ABOVE) or 1.0


def _bar_ends(chart: Chart, width: float) -> tuple[float, float]:
    """Choose the ends of the axis of horizontal bars, with room for what is written beside them."""
    lengths: dict[tuple[str, str], float] = {}
    for series in chart.series:
        for name, length in zip(series.x, series.y, strict=False):
            if series.look == "bar":
                key = series.stack or series.name, str(name)
                lengths[key] = lengths.get(key, 0.0) + float(length or 0.0)
    longest = max(lengths.values(), default=0.0)
    ends = _values(chart, "high").max(initial=0.0)
    limits = [float(value or 0.0) for s in chart.series if s.look == "limit" for value in s.y]
    limits += [mark.value for mark in chart.marks if mark.axis == "x"]
    written = [
        remark.x / max(1 - (text_width(remark.text, SMALL_SIZE) + 12) / width, 0.2)
        for remark in chart.notes
        if not remark.room
    ]
    most = max([longest, min(ends, 1.75 * longest), *limits], default=0.0)
    return 0.0, max(1.08 * most, *written, 0.0) or 1.0


def tick(ax: Axes, chart: Chart, rows: Mapping[float, str]) -> None:
    """Set ticks, their texts, and the names of both axes."""
    across, up = (chart.y, chart.x) if chart.sideways else (chart.x, chart.y)
    ax.set_xlabel(across.label)
    ax.set_ylabel(up.label)
    ax.tick_params(labelbottom=True)
    places = [] if chart.sideways else sorted({*_values(chart, "x").tolist()})
    for axis, of, values in ((ax.xaxis, across, places), (ax.yaxis, up, [])):
        name: Literal["x", "y"] = "x" if axis is ax.xaxis else "y"
        if of.scale == "category":
            axis.set_major_locator(ticker.FixedLocator(list(rows)))
            axis.set_major_formatter(ticker.FixedFormatter(list(rows.values())))
            ax.tick_params(axis=name, length=0)
            ax.grid(visible=False, axis=name)
        elif of.ticks is not None or of.scale == "log2":
            texts = of.ticks or {value: f"{value:.0f}" for value in values}
            _ticks(axis, _apart(ax, texts), partial(_nearest, texts))
        else:
            _chosen_ticks(ax, axis, of, values)


def _chosen_ticks(ax: Axes, axis: PlotAxis, of: Axis, values: Sequence[float]) -> None:
    """Choose ticks by the ends of an axis."""
    low, high = sorted(axis.get_view_interval())
    write = _signed if of.is_signed else theme.short_number
    if of.scale == "log":
        span = high / low
        subs = (1,) if span > 2e3 else (1, 2, 5)
        many = ticker.LogLocator(10, subs=subs)
        _ticks(axis, ticker.MaxNLocator(5) if span < 5 else many, write)
    elif values and axis is ax.xaxis and all(value == round(value) for value in values):
        whole = ticker.MaxNLocator(8, integer=True, steps=[1, 2, 5, 10])
        chosen = whole.tick_values(values[0], values[-1])
        _ticks(axis, [t for t in chosen if values[0] <= t <= values[-1]], write)
    else:
        _ticks(axis, ticker.MaxNLocator(8 if axis is ax.xaxis else 6, steps=STEPS), write)


def _nearest(texts: Mapping[float, str], value: float) -> str:
    return texts[min(texts, key=lambda place: abs(place - value))]


def _signed(value: float) -> str:
    return f"{value:+.4g}" if value else "0"


def _ticks(
    axis: PlotAxis, places: ticker.Locator | Sequence[float], write: Callable[[float], str]
) -> None:
    """Set the major ticks of an axis and their labels; there are no minor ones."""
    axis.set_major_locator(
        places if isinstance(places, ticker.Locator) else ticker.FixedLocator(places)
    )
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: write(value)))
    axis.set_minor_locator(ticker.NullLocator())


def _apart(ax: Axes, texts: Mapping[float, str]) -> list[float]:
    """Choose places, from the largest down, whose texts do not touch."""
    places = sorted(texts)
    least = (max(text_width(text, SMALL_SIZE) for text in texts.values()) + 8) / PANEL_WIDTH
    at = np.log(places) if ax.get_xscale() == "log" else np.array(places)
    low, high = np.log(ax.get_xlim()) if ax.get_xscale() == "log" else ax.get_xlim()
    kept = [len(places) - 1]
    for i in reversed(range(len(places) - 1)):
        if at[kept[-1]] - at[i] >= least * (high - low):
            kept.append(i)
    return [places[i] for i in reversed(kept)]
