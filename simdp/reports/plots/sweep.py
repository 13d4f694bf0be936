"""Plots of sweeps and comparisons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

from simdp.arrays import Floats, Ints, grouped
from simdp.errors import UnitError
from simdp.keys import written
from simdp.reports import theme
from simdp.reports.captions import about, about_scenario
from simdp.reports.plots import labels
from simdp.reports.plots.bandwidth import BandwidthLine, draw_lines
from simdp.reports.plots.labels import Plot, entitle, evenly, label_ends, point_names, wrapped
from simdp.reports.plots.memory import capacity, device_ranks, mark_capacity
from simdp.reports.plots.scaling import MOST_ABOVE, ScalingCurve, draw_intervals
from simdp.results.comparison import ComparedPoint, Comparison
from simdp.results.metrics import Metrics
from simdp.results.result import Result, Study
from simdp.units import COMMON, DIMENSIONS, parse

MAX_ROWS = 16  # points; of more some are dropped
FAR = 4.0  # multiple of the highest peak above which a device's memory is written, not drawn
# height of a bar, in rows; length of an axis, in longest bars
BAR_HEIGHT, ROOM, NARROW_ROOM = 0.62, 1.24, 1.42
MOST_ABOVE_STEP = 1.6  # highest end of an interval, in longest bars
REASON_WIDTH = 300.0  # width for the reason of a point that cannot run [points]

# parts of a step's time, in the order of the bars, with their look
STEP_PARTS = {
    "compute_s": ("compute", theme.FILLS["forward"]),
    "update_s": ("update", theme.FILLS["update"]),
    "exposed_comm_s": ("exposed comm", theme.FILLS["comm"]),
    "wait_s": ("wait", theme.FILLS["wait"]),
    "other_s": ("other", theme.FillStyle("#FFFFFF", "....", theme.MUTED, theme.INK)),
}

MEMORY = theme.FillStyle(theme.INPUT, "", "none", theme.INK)
# bars of memory that fits a device, and that does not
TOO_MUCH = theme.FillStyle(theme.STRAGGLER, "xxxx", "#F2B48C", theme.INK)


def _height(names: Sequence[str]) -> int:
    """Count the rows that are shown; names of three lines and more need higher ones."""
    return min(len(names), MAX_ROWS) * -(-max(name.count("\n") + 1 for name in names) // 2)


def _draw_points(
    axes: Sequence[Axes],
    study: Study | Comparison,
    points: Sequence[ComparedPoint],
    names: Sequence[str],
    about: str,
) -> None:
    """Draw a row per point: left the parts of its step, right its fullest device.

    The panels share their rows. At least one point ran; others have their reason.
    """
    left, right = axes
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
    if len(points) < (count := len(study.points)):
        left.set_xlabel(f"{left.get_xlabel()}\n{len(points)} of {count} points are shown")
    keys = study.over if isinstance(study, Comparison) else study.points[0].set
    left.set_ylabel(", ".join(dict.fromkeys(labels.key_label(k, study.scenario) for k in keys)))
    entitle(left, "What a step is made of", about, rows=1)
    entitle(right, "Fullest device", " " * bool(about), rows=1)  # level with the left one


def _write_reason(ax: Axes, row: int, point: ComparedPoint) -> None:
    """Write why a point cannot run, cut to its row."""
    reason = point.problems[0] if point.problems else "it gave no result"
    text = f"cannot run: {' '.join(reason.split())}"
    text = theme.fitted(text, theme.SMALL_SIZE, REASON_WIDTH)
    look = {"va": "center", "color": theme.STRAGGLER, "in_layout": False}
    labels.note(ax, text, (0.0, row), (4, 0), xycoords=ax.get_yaxis_transform(), **look)


def _draw_steps(ax: Axes, rows: Ints, points: Sequence[ComparedPoint]) -> None:
    """Stack the parts of each point's step."""
    times = {
        key: np.array([point.run_metrics[key] for point in points], dtype=np.float64)
        for key in ("step_time_s", *STEP_PARTS)
    }
    total = times.pop("step_time_s")
    unit, per_second = theme.time_unit(float(total.max()))
    start, handles = np.zeros(len(points)), list[Artist]()
    for key, (name, fill) in STEP_PARTS.items():
        length = times[key] * per_second
        if not length.any():
            continue
        _bars(ax, rows, start, length, fill)
        handles.append(labels.patch(name, fill))
        start = start + length
    texts = [f"{_short(value * per_second)} {unit}" for value in total]
    _write_values(ax, rows, start, texts)
    longest = float(start.max())
    if (ends := _draw_intervals(ax, rows, points, per_second)) is not None:
        handles.append(ends[0])
        longest = max(longest, min(ends[1], MOST_ABOVE_STEP * longest) / 1.1)
    ax.set_xlim(0, longest * ROOM or 1.0)
    ax.set_xlabel(f"Step time [{unit}], mean over ranks")
    labels.legend_above(ax, handles)


def _draw_intervals(
    ax: Axes, rows: Ints, points: Sequence[ComparedPoint], per_second: float
) -> tuple[Artist, float] | None:
    """Draw the known 90 % intervals below the bars; return a legend handle and the last end."""
    ends = [point.run_metrics.interval_s for point in points]
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
    """Draw the memory of the fullest device, and its capacity."""
    kept = np.array([point.device_bytes for point in points], dtype=np.float64)
    room = np.array([point.capacity_bytes for point in points], dtype=np.float64)
    unit, per_byte = _size_unit(float(kept.max()))
    handles: list[Artist] = []
    too_much = kept > room
    for name, fill, which in (("fits", MEMORY, ~too_much), ("does not fit", TOO_MUCH, too_much)):
        if which.any():
            _bars(ax, every[which], np.zeros(which.sum()), kept[which] * per_byte, fill)
            handles.append(labels.patch(name, fill))
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
    ax.xaxis.set_major_locator(MaxNLocator(5))
    labels.legend_above(ax, handles)


def _said_of(room: Floats) -> str:
    """Write capacities that are far above the peaks."""
    if not len(room):
        return ""
    unit, per_byte = _size_unit(float(room.min()))
    least = "a device has" if room.min() == room.max() else "devices have at least"
    return f"\n{least} {_short(float(room.min()) * per_byte)} {unit}"


def _bars(ax: Axes, rows: Ints, start: Floats, length: Floats, fill: theme.FillStyle) -> None:
    ax.barh(rows, length, BAR_HEIGHT, start, color=fill.color, linewidth=0, zorder=2)
    if fill.hatch:
        look: dict[str, Any] = {"ec": fill.hatch_color, "hatch": fill.hatch, "zorder": 2.1}
        ax.barh(rows, length, BAR_HEIGHT, start, color="none", linewidth=0, **look)


def _write_values(ax: Axes, rows: Ints, ends: Floats, texts: Sequence[str]) -> None:
    """Write a value right of its bar, readable where it crosses a line."""
    for row, end, text in zip(rows, ends, texts, strict=True):
        look: dict[str, Any] = {"path_effects": labels.HALO, "zorder": 5}
        labels.note(ax, text, (end, row), (4, 0), va="center", **look)


def _size_unit(largest: float) -> tuple[str, float]:
    """Choose the unit of an axis of sizes, and how many make a byte."""
    for unit, nbytes in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if largest >= nbytes:
            return unit, 1 / nbytes
    return "B", 1.0


def _short(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


class ComparisonBars(Plot[Comparison]):
    """Parts of every point's step, and the memory of its fullest device."""

    kind = "comparison"
    reads = Comparison
    needs = "a point that ran"
    num_axes = 2
    widths = (1.9, 1.0)

    def fits(self, study: Comparison) -> bool:
        return bool(study.ran)

    def num_rows(self, study: Comparison) -> int:
        return _height(_comparison_names(study.points))

    def draw(self, study: Comparison, *axes: Axes) -> None:
        every = study.points if len(study.points) <= MAX_ROWS else study.ran
        points = [every[i] for i in evenly(len(every), MAX_ROWS)]
        of = about_scenario(study.scenario, study.over)
        _draw_points(axes, study, points, _comparison_names(points), of)


def _comparison_names(points: Sequence[ComparedPoint]) -> list[str]:
    """Name the rows; with the number of ranks if points differ in it."""
    several = len({point.world_size for point in points if point.world_size is not None}) > 1
    names = []
    for point in points:
        ranks = f"{point.world_size} GPU{'s' * (point.world_size != 1)}"
        told = "cluster.world_size" in point.set and point.label.endswith(str(point.world_size))
        # The axis names a single key, so the rows have its values only.
        name = written(*point.set.values()) if len(point.set) == 1 else point.label
        tell = several and not told and point.world_size is not None
        names.append(wrapped(name + (f" · {ranks}" if tell else "")))
    return names


WORLD_SIZE = "cluster.world_size"
# values of a key that make a curve; curves; values below the axis
MIN_VALUES, MAX_LINES, MAX_TICKS = 3, 6, 10
LOG_RATIO = 8.0  # ratio of positive values from which on the axis is logarithmic
LEAST_DIFFERENCE = 0.01  # least relative difference that is shown
PEAKS = "Peak memory of the fullest rank"


class Second(NamedTuple):
    """Contents of the lower panel."""

    label: str  # of its axis, with the unit
    read: Callable[[Metrics], float]  # reads the value from a point's metrics
    title: str  # above the panel


class SweepCurve(Plot[Study]):
    """Step time by a swept key, above its trade-off, such as loss or memory."""

    kind = "sweep"
    reads = Study
    needs = f"a sweep over a number other than {WORLD_SIZE}, with {MIN_VALUES} values or more"
    num_axes = 2

    def fits(self, study: Study) -> bool:
        return key_of(study) is not None

    def draw(self, study: Study, *axes: Axes) -> None:
        top, bottom = axes
        key = key_of(study)
        assert key is not None, "draw only studies that fit"
        points = timed(study)
        place = places_of([point.set[key] for point in points]) or {}
        curves = curves_of(points, key, place)
        names = [*curves]
        shown = [names[i] for i in evenly(len(names), MAX_LINES)]
        left_out = f"; {len(shown)} of {len(names)} lines" if len(shown) < len(names) else ""
        label = labels.key_label(key, study.scenario)
        entitle(top, f"Step time by {lowered(label)}{left_out}", about(study))
        unit, per_second = theme.time_unit(max(point.metrics.step_time_s for point in points))
        second = second_of(points)
        ticks = {value: text for text, value in place.items()}
        for ax, read in (
            (top, lambda metrics: metrics.step_time_s * per_second),
            (bottom, second.read),
        ):
            lines = [
                BandwidthLine(
                    name or "simulated",
                    [place_at(point, key, place) for point in curves[name]],
                    [read(point.metrics) for point in curves[name]],
                    *(i, i),
                )
                for i, name in enumerate(shown)
            ]
            ends = draw_lines(ax, lines)
            _value_axis(ax, ticks, label)
            values = [value for line in lines for value in line.y]
            low, high = min(values), max(values)
            if ax is top:
                high = max(high, _intervals(ax, lines, [curves[n] for n in shown], per_second))
            if ax is bottom and low > 0.5 * high:
                room = 0.12 * (high - low) or 0.1 * abs(high) or 1.0
                ax.set_ylim(low - room, high + room)
            else:
                ax.set_ylim(0, high * 1.12 or 1.0)
            ax.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
            if len(shown) > 1 or shown[0]:
                label_ends(ax, ends)
        top.tick_params(labelbottom=True)
        top.set_ylabel(f"Step time [{unit}]")
        bottom.set_ylabel(second.label)
        if second.title == PEAKS:
            _say_capacity(bottom, points)
        bottom.yaxis.set_major_formatter(FuncFormatter(theme.short_number))
        bottom.set_title(second.title, fontsize=theme.TEXT_SIZE, fontweight="normal")


def _intervals(
    ax: Axes, lines: Sequence[BandwidthLine], curves: Sequence[Sequence[Result]], per_second: float
) -> float:
    """Draw the known intervals of steps; return their height on the axis."""
    ends = [
        np.array([p.metrics.interval_s or (np.nan, np.nan) for p in points]).T * per_second
        for points in curves
    ]
    places = [np.array(line.x) for line in lines]
    draw_intervals(ax, places, places, [(low, high) for low, high in ends])
    longest = max(value for line in lines for value in line.y)
    highest = max((float(one) for _, high in ends for one in high if one == one), default=0.0)
    return min(highest, MOST_ABOVE * longest)


def timed(study: Study) -> list[Result]:
    """List the points that have a step time."""
    return [point for point in study.points if point.metrics.step_time_s]


def key_of(study: Study) -> str | None:
    """Choose the numeric key with the most values as axis.

    None without one, and if more world sizes are swept, which the plot `scaling` shows.
    """
    points = timed(study)
    keys = [*(points[0].set if points else {})]
    counts = {
        key: len(place)
        for key in keys
        if (place := places_of([point.set[key] for point in points])) is not None
    }
    if not counts:
        return None
    key = max(counts, key=lambda key: (counts[key], key != WORLD_SIZE))
    return key if counts[key] >= MIN_VALUES and key != WORLD_SIZE else None


def places_of(values: list[Any]) -> dict[str, float] | None:
    """Map written values to positions on an axis; None if one is no number."""
    if any(isinstance(value, bool) or not isinstance(value, int | float | str) for value in values):
        return None
    if not any(isinstance(value, str) for value in values):
        return {written(value): float(value) for value in values}
    units = {str(value).strip().partition(" ")[2] for value in values}
    known = [name for name, of in DIMENSIONS.items() if all((u, of.unit) in COMMON for u in units)]
    for dimension in known or DIMENSIONS:
        try:
            return {written(value): parse(value, dimension) for value in values}
        except UnitError:
            continue
    return None


def place_at(point: Result, key: str, place: dict[str, float]) -> float:
    """Return a point's position on the axis of a key; see `places_of`."""
    return place[written(point.set[key])]


def curves_of(points: list[Result], key: str, place: dict[str, float]) -> dict[str, list[Result]]:
    """Group points into curves that differ in the key only, by its value."""
    curves = grouped(zip(point_names(points, leave_out=key), points, strict=True))
    return {
        name: sorted(here, key=lambda point: place_at(point, key, place))
        for name, here in curves.items()
    }


def second_of(points: list[Result]) -> Second:
    """Choose the lower panel: loss, else memory, else lost time if they vary, else throughput."""
    losses = [point.metrics.last_loss for point in points]
    last = [float(loss) for loss in losses if loss is not None]
    if None not in losses and labels.differ(last, LEAST_DIFFERENCE, False):
        label = "Last loss [the loss's own unit]"
        return Second(label, lambda m: m.last_loss or 0.0, "Last step's loss")
    peaks = [float(max(point.metrics.peak_memory_bytes)) for point in points]
    if labels.differ(peaks, LEAST_DIFFERENCE, False):
        unit, scale = theme.nbytes_unit(max(peaks))
        return Second(f"Memory [{unit}]", lambda m: max(m.peak_memory_bytes) / scale, PEAKS)
    exposed = [point.metrics.exposed_comm_s or 0.0 for point in points]
    lost = [point.metrics.wait_s or 0.0 for point in points]
    if any(labels.differ(times, LEAST_DIFFERENCE, False) for times in (exposed, lost)):
        parts = ("exposed_comm_s", "wait_s")
        unit, per_second = theme.time_unit(max(a + b for a, b in zip(exposed, lost, strict=True)))
        return Second(
            f"Lost [{unit}]",
            lambda m: sum(m.get(part) or 0.0 for part in parts) * per_second,
            "Exposed communication, and waiting for slower ranks",
        )
    return Second(
        "Throughput [samples/s]", lambda m: m.throughput_samples_per_s or 0.0, "Throughput"
    )


def _say_capacity(ax: Axes, points: list[Result]) -> None:
    """Draw a device's capacity if some points need more."""
    rooms = {capacity(point, 0) for point in points if not point.metrics.fits_memory}
    if len(rooms) == 1:
        room = rooms.pop()
        peaks = [max(point.metrics.peak_memory_bytes) for point in points]
        unit, scale = theme.nbytes_unit(max(peaks))
        mark_capacity(ax, room / scale, ax.get_xlim()[1], f"{room / scale:.4g} {unit}")


def _value_axis(ax: Axes, ticks: dict[float, str], label: str) -> None:
    """Make an axis of the key's values, written as in the sweep."""
    values = sorted(ticks)
    if values[0] > 0 and values[-1] / values[0] >= LOG_RATIO:
        ax.set_xscale("log", base=2)
        margin = (values[-1] / values[0]) ** 0.05
        ax.set_xlim(values[0] / margin, values[-1] * margin)
        spot = np.log2(values)
    else:
        room = 0.05 * (values[-1] - values[0])
        ax.set_xlim(values[0] - room, values[-1] + room)
        spot = np.array(values)
    kept, least = [len(values) - 1], (spot[-1] - spot[0]) / MAX_TICKS
    for i in reversed(range(len(values) - 1)):
        if spot[kept[-1]] - spot[i] >= least * 0.999:
            kept.append(i)
    places = [values[i] for i in reversed(kept)]
    labels.ticks(ax.xaxis, places, lambda value: ticks[min(ticks, key=lambda k: abs(k - value))])
    ax.set_xlabel(label)


def lowered(label: str) -> str:
    """Write an axis label inside a sentence, without its unit."""
    return label[:1].lower() + label[1:].partition(" [")[0]


MOST_LETTERS = 400  # letters of a name that is broken into lines; only longer ones are cut


class PointBars(Plot[Study]):
    """Parts of every point's step, and the memory of its fullest device."""

    kind = "points"
    reads = Study
    needs = "a sweep over other keys than numbers and cluster.world_size"
    num_axes = 2
    widths = (1.9, 1.0)

    def fits(self, study: Study) -> bool:
        shown = ScalingCurve().fits(study) or SweepCurve().fits(study)
        return len(timed(study)) > 1 and not shown

    def num_rows(self, study: Study) -> int:
        return _height(_names(study))

    def draw(self, study: Study, *axes: Axes) -> None:
        names, chosen = _names(study), evenly(len(study.points), MAX_ROWS)
        points = [_compared(study.points[i]) for i in chosen]
        _draw_points(axes, study, points, [names[i] for i in chosen], about(study))


def _names(study: Study) -> list[str]:
    """Name the rows; the axis names a single key."""
    if len(study.points[0].set) == 1:
        return [wrapped(written(*point.set.values())) for point in study.points]
    return [wrapped(name or "-") for name in point_names(study.points, limit=MOST_LETTERS)]


def _compared(point: Result) -> ComparedPoint:
    """Read a point with its device of the highest memory utilisation."""
    peaks = point.metrics.peak_memory_bytes
    held = {
        (sum(peaks[r] for r in device_ranks(point, rank)), capacity(point, rank))
        for rank in _unlike(point, peaks)
    }
    kept, room = max(held, key=lambda pair: pair[0] / pair[1])
    return ComparedPoint(
        point.set,
        world_size=point.world_size,
        metrics=point.metrics,
        device_bytes=kept,
        capacity_bytes=room,
    )


def _unlike(point: Result, peaks: list[int]) -> list[int]:
    """List the first rank of each device; of equal devices only the fullest one's."""
    firsts = [r for r in range(point.world_size) if device_ranks(point, r)[0] == r]
    if isinstance(point.scenario["cluster"].get("device"), list):
        return firsts
    kept = {sum(peaks[r] for r in device_ranks(point, first)): first for first in firsts}
    return [kept[max(kept)]]
