"""Curves of a sweep over any number, sizes and times included: step time, and what else changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from simdp.arrays import Floats
from simdp.errors import UnitError
from simdp.reports import theme
from simdp.reports.captions import about
from simdp.reports.plots.base import Plot
from simdp.reports.plots.collective_curves import Line, draw_lines
from simdp.reports.plots.headings import entitle
from simdp.reports.plots.labels import evenly, key_label, label_ends, point_names
from simdp.reports.plots.memory_parts import capacity, mark_capacity
from simdp.reports.plots.scaling import MOST_ABOVE, draw_intervals
from simdp.results.comparison import written
from simdp.results.result import Result, Study
from simdp.units import COMMON, DIMENSIONS, parse

WORLD_SIZE = "cluster.world_size"

MIN_VALUES, MAX_LINES, MAX_TICKS = 3, 6, 10
"""Values of a key that make a curve; curves, and values below the axis. Of more some are left
out."""

LOG_RATIO = 8.0
"""Positive values that reach so far are shown on a logarithmic axis."""

LEAST_DIFFERENCE = 0.01
"""Part by which something must differ to be shown."""


PEAKS = "Peak memory of the fullest rank"


class Second(NamedTuple):
    """What the lower panel shows.

    Attributes
    ----------
    label : str
        Of its axis, with the unit.
    read : callable
        Reads it from a point's metrics.
    title : str
        What is said above the panel.
    """

    label: str
    read: Callable[[dict[str, Any]], float]
    title: str


class SweepCurve(Plot[Study]):
    """How the step time depends on a key; below, what it costs or gains besides."""

    kind = "sweep"
    reads = Study
    needs = f"a sweep over a number other than {WORLD_SIZE}, with {MIN_VALUES} values or more"
    num_axes = 2

    def fits(self, study: Study) -> bool:
        """Tell whether a key has enough values, and world_size has no plot for itself."""
        return key_of(study) is not None

    def draw(self, study: Study, *axes: Axes) -> None:
        """Draw on two panels; see `Plot.draw`."""
        top, bottom = axes
        key = key_of(study)
        assert key is not None, "draw only studies that fit"
        points = timed(study)
        place = places_of([point.set[key] for point in points]) or {}
        curves = curves_of(points, key, place)
        names = [*curves]
        shown = [names[i] for i in evenly(len(names), MAX_LINES)]
        left_out = f"; {len(shown)} of {len(names)} lines" if len(shown) < len(names) else ""
        label = key_label(key, study.scenario)
        entitle(top, f"Step time by {lowered(label)}{left_out}", about(study))
        longest = max(point.metrics["step_time_s"] for point in points)
        unit, per_second = theme.time_unit(longest)
        second = second_of(points)
        ticks = {value: text for text, value in place.items()}
        for ax, read in (
            (top, lambda metrics: metrics["step_time_s"] * per_second),
            (bottom, second.read),
        ):
            lines = [
                Line(
                    name or "simulated",
                    [place_at(point, key, place) for point in curves[name]],
                    [read(point.metrics) for point in curves[name]],
                    number,
                    number,
                )
                for number, name in enumerate(shown)
            ]
            ends = draw_lines(ax, lines)
            _value_axis(ax, ticks, label)
            values = [value for line in lines for value in line.y]
            low, high = min(values), max(values)
            if ax is top:
                high = max(high, _intervals(ax, lines, [curves[n] for n in shown], per_second))
            if ax is top or low > 0.5 * high:
                ax.set_ylim(*((0, high * 1.12) if ax is top else _around(low, high)))
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
    ax: Axes, lines: Sequence[Line], curves: Sequence[Sequence[Result]], per_second: float
) -> float:
    """Draw the intervals of steps that are known; how high they reach on the axis."""
    ends = [
        np.array([p.metrics.get("interval_s") or (np.nan, np.nan) for p in points]).T * per_second
        for points in curves
    ]
    places = [np.array(line.x) for line in lines]
    draw_intervals(ax, places, places, [(low, high) for low, high in ends])
    longest = max(value for line in lines for value in line.y)
    highest = max((float(one) for _, high in ends for one in high if one == one), default=0.0)
    return min(highest, MOST_ABOVE * longest)


def _around(low: float, high: float) -> tuple[float, float]:
    """Limits of an axis that does not begin at 0."""
    room = 0.12 * (high - low) or 0.1 * abs(high) or 1.0
    return low - room, high + room


def timed(study: Study) -> list[Result]:
    """List the points that have a step time."""
    return [point for point in study.points if point.metrics.get("step_time_s")]


def key_of(study: Study) -> str | None:
    """Choose the axis: of the keys whose values are numbers the one that has most of them.

    None where there is none, and where more world sizes are swept, which `scaling` shows.
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
    """Where values stand on an axis, by how they are written; None if one is no number."""
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
    """Where a point stands on the axis of a key; see `places_of`."""
    return place[written(point.set[key])]


def curves_of(points: list[Result], key: str, place: dict[str, float]) -> dict[str, list[Result]]:
    """Sort points into curves that differ in nothing but the key, by its value."""
    curves: dict[str, list[Result]] = {}
    for point, name in zip(points, point_names(points, leave_out=key), strict=True):
        curves.setdefault(name, []).append(point)
    return {
        name: sorted(here, key=lambda point: place_at(point, key, place))
        for name, here in curves.items()
    }


def second_of(points: list[Result]) -> Second:
    """Choose what the lower panel shows: the loss, else the memory, where they change, else more.

    A sweep asks what a change of the step time costs; where it costs nothing, what hides it.
    """
    losses = [point.metrics["loss"][-1] if point.metrics.get("loss") else None for point in points]
    if None not in losses and _differ([float(loss) for loss in losses if loss is not None]):
        return Second(
            "Last loss [the loss's own unit]", lambda m: m["loss"][-1], "Last step's loss"
        )
    peaks = [float(max(point.metrics["peak_memory_bytes"])) for point in points]
    if _differ(peaks):
        unit, scale = theme.nbytes_unit(max(peaks))
        return Second(f"Memory [{unit}]", lambda m: max(m["peak_memory_bytes"]) / scale, PEAKS)
    exposed = [point.metrics.get("exposed_comm_s") or 0.0 for point in points]
    lost = [point.metrics.get("wait_s") or 0.0 for point in points]
    if _differ(exposed) or _differ(lost):
        parts = ("exposed_comm_s", "wait_s")
        unit, per_second = theme.time_unit(max(a + b for a, b in zip(exposed, lost, strict=True)))
        return Second(
            f"Lost [{unit}]",
            lambda m: sum(m.get(part) or 0.0 for part in parts) * per_second,
            "Exposed communication, and waiting for slower ranks",
        )
    return Second(
        "Throughput [samples/s]", lambda m: m.get("throughput_samples_per_s") or 0.0, "Throughput"
    )


def _say_capacity(ax: Axes, points: list[Result]) -> None:
    """Draw what a device holds, where some points need more."""
    rooms = {capacity(point, 0) for point in points if not point.metrics["fits_memory"]}
    if len(rooms) == 1:
        room = rooms.pop()
        peaks = [max(point.metrics["peak_memory_bytes"]) for point in points]
        unit, scale = theme.nbytes_unit(max(peaks))
        mark_capacity(ax, room / scale, ax.get_xlim()[1], f"{room / scale:.4g} {unit}")


def _differ(values: list[float]) -> bool:
    array: Floats = np.array(values)
    if not np.isfinite(array).all():
        return False
    return bool(np.ptp(array) > LEAST_DIFFERENCE * np.abs(array).max())


def _value_axis(ax: Axes, ticks: dict[float, str], label: str) -> None:
    """Give the key's values an axis, on which they stand as they are written."""
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
    ax.xaxis.set_major_locator(FixedLocator([values[i] for i in reversed(kept)]))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(ticks, value)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel(label)


def lowered(label: str) -> str:
    """Write the label of an axis inside a sentence, without its unit."""
    return label[:1].lower() + label[1:].partition(" [")[0]


def _tick(ticks: dict[float, str], value: float) -> str:
    nearest = min(ticks, key=lambda known: abs(known - value))
    return ticks[nearest]
