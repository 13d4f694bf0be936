"""What bars of points have in common: a step's parts, and the memory of the fullest device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FixedLocator, MaxNLocator

from simdp.arrays import Floats, Ints
from simdp.reports import theme
from simdp.reports.plots.headings import entitle, legend_above
from simdp.reports.plots.labels import evenly
from simdp.results.comparison import ComparedPoint

MAX_ROWS = 16
"""Points; of more some are left out."""

FAR = 4.0
"""A device's memory that is so many times the fullest one's peak is said, not drawn: beside it the
bars could not be read."""

BAR_HEIGHT, ROOM, NARROW_ROOM = 0.62, 1.24, 1.42
"""Height of a bar, in rows; length of an axis, in longest bars, with room for the value."""

MOST_ABOVE = 1.6
"""How much longer than the longest bar, in such bars, an interval is shown."""

REASON_WIDTH = 300.0
"""What there is room for in the row of a point that cannot run [points]."""

PARTS = {
    "compute_s": ("compute", theme.FILLS["forward"]),
    "update_s": ("update", theme.FILLS["update"]),
    "exposed_comm_s": ("exposed comm", theme.FILLS["comm"]),
    "wait_s": ("wait", theme.FILLS["wait"]),
    "other_s": ("other", theme.Fill("#FFFFFF", "....", theme.MUTED, theme.INK)),
}
"""What a step's time is made of, in the order of the bars, and how it looks."""

MEMORY = theme.Fill(theme.INPUT, "", "none", theme.INK)
TOO_MUCH = theme.Fill(theme.STRAGGLER, "xxxx", "#F2B48C", theme.INK)
"""Bars of memory that fit a device, and that do not."""


def shown_points(points: Sequence[ComparedPoint]) -> list[ComparedPoint]:
    """Choose the points that have room, in their order."""
    return [points[i] for i in evenly(len(points), MAX_ROWS)]


def draw_points(
    left: Axes, right: Axes, points: Sequence[ComparedPoint], names: Sequence[str], said: str
) -> None:
    """Draw a row per point: on the left its step in parts, on the right its fullest device.

    Parameters
    ----------
    left, right : Axes
        Panels that share their rows.
    points : sequence of ComparedPoint
        One that ran at least; those that cannot run say why.
    names : sequence of str
        Of the rows.
    said : str
        What stands below the left panel's axis; may be empty.
    """
    rows = np.array([row for row, point in enumerate(points) if point.metrics is not None])
    ran = [points[row] for row in rows]
    _draw_steps(left, rows, ran)
    _draw_memory(right, rows, ran)
    for row, point in enumerate(points):
        if point.metrics is None:
            _write_reason(left, row, point)
    left.yaxis.set_major_locator(FixedLocator(list(range(len(points)))))
    left.set_yticklabels(list(names))
    for ax in (left, right):
        ax.set_ylim(len(points) - 0.45, -0.55)
        ax.tick_params(axis="y", length=0)
        ax.grid(visible=False, axis="y")
    left.set_xlabel(left.get_xlabel() + (f"\n{said}" if said else ""))


def _write_reason(ax: Axes, row: int, point: ComparedPoint) -> None:
    """Say why a point cannot run, cut to the room that its row has."""
    reason = point.problems[0] if point.problems else "it gave no result"
    text = f"cannot run: {' '.join(reason.split())}"
    ax.annotate(
        theme.fitted(text, theme.SMALL_SIZE, REASON_WIDTH),
        (0.0, row),
        (4, 0),
        xycoords=ax.get_yaxis_transform(),
        textcoords="offset points",
        va="center",
        fontsize=theme.SMALL_SIZE,
        color=theme.STRAGGLER,
        in_layout=False,
    )


def _draw_steps(ax: Axes, rows: Ints, points: Sequence[ComparedPoint]) -> None:
    """Stack the parts of each point's step."""
    times = {key: _metric(points, key) for key in ("step_time_s", *PARTS)}
    total = times.pop("step_time_s")
    unit, per_second = theme.time_unit(float(total.max()))
    start, handles = np.zeros(len(points)), list[Artist]()
    for key, (name, fill) in PARTS.items():
        length = times[key] * per_second
        if not length.any():
            continue
        _bars(ax, rows, start, length, fill)
        handles.append(_key(name, fill))
        start = start + length
    texts = [f"{_short(value * per_second)} {unit}" for value in total]
    _write_values(ax, rows, start, texts)
    longest = float(start.max())
    if (ends := _draw_intervals(ax, rows, points, per_second)) is not None:
        handles.append(ends[0])
        longest = max(longest, min(ends[1], MOST_ABOVE * longest) / 1.1)
    ax.set_xlim(0, longest * ROOM or 1.0)
    ax.set_xlabel(f"Step time [{unit}], mean over ranks")
    legend_above(ax, handles)


def _draw_intervals(
    ax: Axes, rows: Ints, points: Sequence[ComparedPoint], per_second: float
) -> tuple[Artist, float] | None:
    """Draw the 90 % intervals that are known below the bars: the legend's key, and the last end."""
    ends = [((point.metrics or {}).get("interval_s")) for point in points]
    known = [(row, *one) for row, one in zip(rows, ends, strict=True) if one]
    if not known:
        return None
    at, low, high = np.array(known, dtype=np.float64).T
    below = at + BAR_HEIGHT / 2 + 0.09
    lines = ax.hlines(
        below, low * per_second, high * per_second, colors=theme.INK, linewidth=1.1, zorder=4
    )
    lines.set_label("90 % interval")
    for end in (low, high):
        ax.plot(end * per_second, below, "|", color=theme.INK, markersize=5, zorder=4)
    return lines, float(high.max()) * per_second


def _draw_memory(ax: Axes, every: Ints, points: Sequence[ComparedPoint]) -> None:
    """Draw what the fullest device keeps, and what it has room for."""
    kept = np.array([point.device_bytes for point in points], dtype=np.float64)
    room = np.array([point.capacity_bytes for point in points], dtype=np.float64)
    unit, per_byte = _size_unit(float(kept.max()))
    handles: list[Artist] = []
    too_much = kept > room
    for name, fill, which in (("fits", MEMORY, ~too_much), ("does not fit", TOO_MUCH, too_much)):
        if which.any():
            _bars(ax, every[which], np.zeros(which.sum()), kept[which] * per_byte, fill)
            handles.append(_key(name, fill))
    texts = [f"{_short(value * per_byte)} {unit}" for value in kept]
    _write_values(ax, every, kept * per_byte, texts)
    near = room <= FAR * kept.max()
    longest = max(float(kept.max()) * NARROW_ROOM, float(room[near].max(initial=0.0)) * 1.08)
    ax.set_xlim(0, longest * per_byte or 1.0)
    if near.any():
        rows = every[near]
        line = ax.vlines(
            room[near] * per_byte, rows - 0.5, rows + 0.5, colors=theme.INK, linewidth=1.6, zorder=4
        )
        line.set_label("device")
        handles.append(line)
    ax.set_xlabel(f"Peak memory [{unit}]{_said_of(room[~near])}")
    entitle(ax, "Fullest device", " ", rows=1)
    ax.xaxis.set_major_locator(MaxNLocator(5))
    legend_above(ax, handles)


def _said_of(room: Floats) -> str:
    """Say what devices have that have far more than is kept."""
    if not len(room):
        return ""
    unit, per_byte = _size_unit(float(room.min()))
    least = "a device has" if room.min() == room.max() else "devices have at least"
    return f"\n{least} {_short(float(room.min()) * per_byte)} {unit}"


def _metric(points: Sequence[ComparedPoint], key: str) -> Floats:
    return np.array([(point.metrics or {})[key] for point in points], dtype=np.float64)


def _bars(ax: Axes, rows: Ints, start: Floats, length: Floats, fill: theme.Fill) -> None:
    ax.barh(rows, length, BAR_HEIGHT, start, color=fill.color, linewidth=0, zorder=2)
    if fill.hatch:
        ax.barh(
            rows,
            length,
            BAR_HEIGHT,
            start,
            color="none",
            edgecolor=fill.hatch_color,
            hatch=fill.hatch,
            linewidth=0,
            zorder=2.1,
        )


def _key(name: str, fill: theme.Fill) -> Patch:
    return Patch(
        facecolor=fill.color,
        edgecolor=fill.hatch_color if fill.hatch else "none",
        hatch=fill.hatch * 2,
        linewidth=0,
        label=name,
    )


def _write_values(ax: Axes, rows: Ints, ends: Floats, texts: Sequence[str]) -> None:
    """Write a value right of its bar, readable where it crosses a line."""
    halo = [withStroke(linewidth=2.5, foreground="white")]
    for row, end, text in zip(rows, ends, texts, strict=True):
        ax.annotate(
            text,
            (end, row),
            (4, 0),
            textcoords="offset points",
            va="center",
            fontsize=theme.SMALL_SIZE,
            path_effects=halo,
            zorder=5,
        )


def _size_unit(largest: float) -> tuple[str, float]:
    """Choose the unit of an axis of sizes, and how many of it make a byte."""
    for unit, nbytes in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if largest >= nbytes:
            return unit, 1 / nbytes
    return "B", 1.0


def _short(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"
