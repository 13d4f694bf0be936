"""Points side by side: what a step is made of, and what the fullest device keeps."""

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
from simdp.reports.plots.base import Plot
from simdp.reports.plots.labels import cut, evenly
from simdp.results.comparison import ComparedPoint, Comparison, short_key, written

MAX_ROWS = 16
"""Points; of more some are left out."""

FAR = 4.0
"""A device's memory that is so many times the fullest one's peak is said, not drawn: beside it the
bars could not be read."""

BAR_HEIGHT, ROOM, NARROW_ROOM = 0.62, 1.24, 1.42
"""Height of a bar, in rows; length of an axis, in longest bars, with room for the value."""

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


class ComparisonBars(Plot[Comparison]):
    """Every point's step in parts, and beside it the memory of its fullest device."""

    kind = "comparison"
    reads = Comparison
    needs = "a point that ran"
    num_axes = 2
    widths = (1.9, 1.0)

    def fits(self, study: Comparison) -> bool:
        """Tell whether a point ran."""
        return bool(study.ran)

    def num_rows(self, study: Comparison) -> int:
        """Count the points that are shown."""
        return min(len(study.ran), MAX_ROWS)

    def draw(self, study: Comparison, *axes: Axes) -> None:
        """Draw on two panels; see `Plot.draw`."""
        left, right = axes
        every = study.ran
        points = [every[i] for i in evenly(len(every), MAX_ROWS)]
        _draw_steps(left, points)
        _draw_memory(right, points)
        rows = range(len(points))
        left.yaxis.set_major_locator(FixedLocator(list(rows)))
        left.set_yticklabels(_names(points))
        keys = ", ".join(dict.fromkeys(short_key(key) for key in study.over))
        left.set_ylabel(f"Compared [{keys}]")
        for ax in axes:
            ax.set_ylim(len(points) - 0.45, -0.55)
            ax.tick_params(axis="y", length=0)
            ax.grid(visible=False, axis="y")
        left_out = _left_out(study, len(points))
        left.set_xlabel(left.get_xlabel() + left_out)


def _names(points: Sequence[ComparedPoint]) -> list[str]:
    """Name the rows; where points differ in it, with the number of ranks."""
    several = len({point.world_size for point in points}) > 1
    names = []
    for point in points:
        ranks = f"{point.world_size} GPU{'s' * (point.world_size != 1)}"
        told = "cluster.world_size" in point.set and point.label.endswith(str(point.world_size))
        # The axis names the key; one alone need not stand in every row.
        name = written(*point.set.values()) if len(point.set) == 1 else point.label
        names.append(cut(name) + (f" · {ranks}" if several and not told else ""))
    return names


def _left_out(study: Comparison, shown: int) -> str:
    """Say which points are not shown, as a line below the axis; nothing if all are."""
    failed = [cut(point.label) for point in study.points if point.metrics is None]
    said = []
    if shown < len(study.ran):
        said.append(f"{shown} of {len(study.ran)} points are shown")
    if failed:
        said.append(f"cannot run: {', '.join(failed[:3])}{', ...' * (len(failed) > 3)}")
    return "\n" + "; ".join(said) if said else ""


def _draw_steps(ax: Axes, points: Sequence[ComparedPoint]) -> None:
    """Stack the parts of each point's step."""
    times = {key: _metric(points, key) for key in ("step_time_s", *PARTS)}
    total = times.pop("step_time_s")
    unit, per_second = theme.time_unit(float(total.max()))
    start, handles = np.zeros(len(points)), []
    for key, (name, fill) in PARTS.items():
        length = times[key] * per_second
        if not length.any():
            continue
        _bars(ax, np.arange(len(points)), start, length, fill)
        handles.append(_key(name, fill))
        start = start + length
    _write_values(ax, start, [f"{_short(value * per_second)} {unit}" for value in total])
    ax.set_xlim(0, float(start.max()) * ROOM or 1.0)
    ax.set_xlabel(f"Step time [{unit}], mean over ranks")
    ax.set_title("What a step is made of", pad=24)
    _legend(ax, handles)


def _draw_memory(ax: Axes, points: Sequence[ComparedPoint]) -> None:
    """Draw what the fullest device keeps, and what it has room for."""
    kept = np.array([point.device_bytes for point in points], dtype=np.float64)
    room = np.array([point.capacity_bytes for point in points], dtype=np.float64)
    unit, per_byte = _size_unit(float(kept.max()))
    handles: list[Artist] = []
    too_much = kept > room
    for name, fill, which in (("fits", MEMORY, ~too_much), ("does not fit", TOO_MUCH, too_much)):
        rows = np.flatnonzero(which)
        if len(rows):
            _bars(ax, rows, np.zeros(len(rows)), kept[rows] * per_byte, fill)
            handles.append(_key(name, fill))
    _write_values(ax, kept * per_byte, [f"{_short(value * per_byte)} {unit}" for value in kept])
    near = room <= FAR * kept.max()
    longest = max(float(kept.max()) * NARROW_ROOM, float(room[near].max(initial=0.0)) * 1.08)
    ax.set_xlim(0, longest * per_byte or 1.0)
    rows = np.flatnonzero(near)
    if len(rows):
        line = ax.vlines(
            room[rows] * per_byte, rows - 0.5, rows + 0.5, colors=theme.INK, linewidth=1.6, zorder=4
        )
        line.set_label("device")
        handles.append(line)
    ax.set_xlabel(f"Peak memory [{unit}]{_said_of(room[~near])}")
    ax.set_title("Fullest device", pad=24)
    ax.xaxis.set_major_locator(MaxNLocator(5))
    _legend(ax, handles)


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


def _legend(ax: Axes, handles: Sequence[Artist]) -> None:
    """Say what the colours mean, between the title and the panel."""
    if not handles:
        return
    ax.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        ncols=len(handles),
        borderaxespad=0.2,
        borderpad=0.2,
        handlelength=1.4,
        handletextpad=0.5,
        columnspacing=1.1,
    )


def _write_values(ax: Axes, ends: Floats, texts: Sequence[str]) -> None:
    """Write a value right of its bar, readable where it crosses a line."""
    halo = [withStroke(linewidth=2.5, foreground="white")]
    for row, (end, text) in enumerate(zip(ends, texts, strict=True)):
        ax.annotate(
            text,
            (end, row),
            (4, 0),
            textcoords="offset points",
            va="center_baseline",
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
