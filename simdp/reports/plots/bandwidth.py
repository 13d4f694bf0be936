"""Plots of bandwidth."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import log2
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from simdp.reports import theme
from simdp.reports.plots import labels
from simdp.reports.plots.labels import End, Plot, cut, entitle, evenly, label_ends
from simdp.results.calibration import CalibrationStudy, FittedPoint
from simdp.results.collective import (
    CollectiveCurve,
    CollectivePoint,
    CollectiveStudy,
    bus_bandwidth_factor,
)
from simdp.units import format_quantity

MAX_TICKS = 12  # sizes that are written below an axis


class BandwidthLine(NamedTuple):
    """A line of a plot."""

    name: str  # written at its end
    x: list[float]
    y: list[float]
    color: int  # place in `theme.SERIES`
    marker: int  # place in `theme.MARKERS`


def draw_lines(ax: Axes, lines: Sequence[BandwidthLine]) -> list[End]:
    """Draw lines with markers; return their ends for `label_ends`."""
    ends = []
    for number, line in enumerate(lines):
        color = theme.SERIES[line.color % len(theme.SERIES)]
        marker = theme.MARKERS[line.marker % len(theme.MARKERS)]
        covered = sum(_coincide(line, later) for later in lines[number + 1 :])
        ax.plot(line.x, line.y, color=color, marker=marker, **theme.line_style(number, covered))
        ends.append(End(cut(line.name), line.x[-1], line.y[-1], color, marker))
    return ends


def _coincide(a: BandwidthLine, b: BandwidthLine) -> bool:
    pairs = zip(a.y, b.y, strict=False)
    return a.x == b.x and all(abs(p - q) <= 0.01 * max(p, q) for p, q in pairs)


def size_axis(ax: Axes, sizes: Sequence[float]) -> None:
    """Make a log2 axis of sizes, with units at some of them."""
    kept = [sizes[-1]]
    step = log2(sizes[-1] / sizes[0]) / MAX_TICKS
    for size in reversed(sizes[:-1]):
        if log2(kept[-1] / size) >= step * 0.999:
            kept.append(size)
    labels.log2_axis(ax, sizes, kept[::-1], short_size, "Size of the buffer [bytes]", 0.03)


def short_size(nbytes: float) -> str:
    """Write a size with three or four digits: ``"64 KiB"``, ``"67.1 MB"``."""
    exact = format_quantity(nbytes, "data size")
    if len(exact) <= len("1024 KiB"):
        return exact
    unit, scale = theme.nbytes_unit(nbytes)
    return f"{nbytes / scale:.3g} {unit}"


def log_axis(ax: Axes, values: Sequence[float], above: float = 0.05) -> None:
    """Make a log axis, with room above the largest value (as a part of the axis)."""
    low, high = min(values), max(values)
    span = max(high / low, 1.5)
    ax.set_yscale("log")
    ax.set_ylim(low / span**0.05, high * span**above)
    labels.ticks(ax.yaxis, labels.log_places(span), "{:,.6g}".format)


MAX_ERROR = 0.5  # largest error of the lower panel; larger ones are drawn at its edge
BAND = 0.10  # error that the band marks


class FitPlot(Plot[CalibrationStudy]):
    """Measured collectives against fitted constants, with errors."""

    kind = "fit"
    reads = CalibrationStudy
    needs = "two measured sizes"
    num_axes = 2

    def fits(self, study: CalibrationStudy) -> bool:
        return len({point.nbytes for point in study.points}) > 1

    def draw(self, study: CalibrationStudy, *axes: Axes) -> None:
        ax, bottom = axes
        curves = _curves(study)
        lines = [
            BandwidthLine(
                name, [p.nbytes for p in points], [_busbw(p, p.fitted) for p in points], i, i
            )
            for i, (name, points) in enumerate(curves.items())
        ]
        ends = draw_lines(ax, lines)
        values = [value for line in lines for value in line.y]
        for number, points in enumerate(curves.values()):
            color, marker = theme.look(number)
            sizes = [point.nbytes for point in points]
            measured = [_busbw(point, point.measured) for point in points]
            values += measured
            ax.plot(sizes, measured, "o", color=color, markerfacecolor="none", linestyle="none")
            errors = [100 * min(max(p.error, -MAX_ERROR), MAX_ERROR) for p in points]
            bottom.plot(sizes, errors, marker, color=color, linestyle="none")
        every = sorted({point.nbytes for point in study.points})
        size_axis(ax, every)
        log_axis(ax, values)
        ax.set_ylabel("Bus bandwidth [GB/s]")
        said = f"fitted with {study.residual:.1%} RMS error; open circles: measured"
        entitle(ax, f"Collectives of {study.name}", said.replace("%", " %"))
        label_ends(ax, ends)
        size_axis(bottom, every)
        bottom.axhspan(-100 * BAND, 100 * BAND, color=theme.FAINT, zorder=0)
        bottom.axhline(0, color=theme.MUTED, linewidth=0.8)
        bottom.set_ylim(-105 * MAX_ERROR, 105 * MAX_ERROR)
        bottom.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+.0f}"))
        bottom.set_ylabel("Error [%]")


def _curves(study: CalibrationStudy) -> dict[str, list[FittedPoint]]:
    """Group points by collective and layout, under their lines' names, in order of size."""
    found: dict[str, list[FittedPoint]] = {}
    several = len({point.collective for point in study.points}) > 1
    for point in sorted(study.points, key=lambda point: point.nbytes):
        layout = f"{point.num_nodes} x {point.world_size // point.num_nodes} GPUs"
        name = f"{point.collective}, {layout}" if several else layout
        found.setdefault(name, []).append(point)
    return dict(sorted(found.items()))


def _busbw(point: FittedPoint, seconds: float) -> float:
    factor = bus_bandwidth_factor(point.collective, point.world_size) or 1.0
    return factor * point.nbytes / seconds / 1e9


MAX_LINES = 6  # lines; of more world sizes some are dropped
_POINTS = 72 * theme.WIDTH * 0.7  # width of the panel


class Bandwidth(Plot[CollectiveStudy]):
    """Bus bandwidth by buffer size: a line per algorithm and world size."""

    kind = "bandwidth"
    reads = CollectiveStudy
    needs = "a collective that moves data, at two sizes or more"

    def fits(self, study: CollectiveStudy) -> bool:
        return any(len(line.x) > 1 for line in _lines(study))

    def draw(self, study: CollectiveStudy, *axes: Axes) -> None:
        (ax,) = axes
        lines = _lines(study)
        title = f"Bus bandwidth of {study.collective}{_said(study)}"
        (curve, *others) = study.curves
        auto = curve if curve.points[0].candidates and not others else None
        if auto is not None:
            lines = [line._replace(name="auto") for line in lines]
            title += "; thin: what auto chose from"
        entitle(ax, title, f"on {study.cluster}")
        ends = draw_lines(ax, lines)
        values = [value for line in lines for value in line.y]
        if len(lines) == 1:
            values += _draw_interval(ax, study, curve)
        if auto is not None:
            for line in _candidates(study, auto):
                ax.plot(line.x, line.y, color=theme.WAIT, lw=theme.THIN_WIDTH * 1.5, zorder=2)
                ends.append(End(line.name, line.x[-1], line.y[-1], theme.WAIT))
                values += line.y
        times = [(p.nbytes, p.measured) for p in curve.points if p.measured is not None]
        line = _line(study, "measured", times, curve.world_size)
        if line.x:  # open circles, over everything
            size = theme.MARKER_SIZE + 1.5
            ax.plot(line.x, line.y, "o", color=theme.INK, mfc="none", ms=size, mew=1.3, zorder=4)
            ends.append(End("measured", line.x[-1], line.y[-1], theme.INK, "o", is_open=True))
            values += line.y
        size_axis(ax, sorted({nbytes for line in lines for nbytes in line.x}))
        shown = auto.crossovers() if auto else []
        log_axis(ax, values, above=0.16 if shown else 0.05)
        ax.set_ylabel("Bus bandwidth [GB/s]")
        label_ends(ax, ends)
        if auto is not None and shown:
            _mark_crossovers(ax, auto)


def _world_sizes(study: CollectiveStudy) -> list[int]:
    """Choose world sizes evenly."""
    every = sorted({curve.world_size for curve in study.curves})
    num_algorithms = len(study.curves) // len(every)
    return [every[i] for i in evenly(len(every), max(MAX_LINES // num_algorithms, 1))]


def _said(study: CollectiveStudy) -> str:
    """Write the world sizes in the title."""
    shown, every = _world_sizes(study), {curve.world_size for curve in study.curves}
    if len(every) == 1:
        return f", {shown[0]} GPU{'s' * (shown[0] > 1)}"
    return f"; {len(shown)} of {len(every)} world sizes" if len(shown) < len(every) else ""


def _lines(study: CollectiveStudy) -> list[BandwidthLine]:
    """Make a line per curve with bandwidths, coloured by algorithm or world size."""
    algorithms = list(dict.fromkeys(curve.algorithm for curve in study.curves))
    sizes = _world_sizes(study)
    lines = []
    for curve in study.curves:
        if curve.world_size not in sizes:
            continue
        which, size = algorithms.index(curve.algorithm), sizes.index(curve.world_size)
        name = [curve.algorithm] * (len(algorithms) > 1 or len(sizes) == 1)
        name += [f"{curve.world_size} GPU{'s' * (curve.world_size > 1)}"] * (len(sizes) > 1)
        color, marker = (which, size) if len(algorithms) > 1 < len(sizes) else (which + size,) * 2
        times = [(point.nbytes, point.seconds) for point in curve.points]
        lines.append(_line(study, ", ".join(name), times, curve.world_size, color, marker))
    return [line for line in lines if line.x]


def _line(
    study: CollectiveStudy,
    name: str,
    times: list[tuple[int, float]],
    world_size: int,
    color: int = 0,
    marker: int = 0,
) -> BandwidthLine:
    found = [(nbytes, study.busbw(nbytes, seconds, world_size)) for nbytes, seconds in times]
    shown = [(float(nbytes), busbw / 1e9) for nbytes, busbw in found if busbw]
    return BandwidthLine(name, [x for x, _ in shown], [y for _, y in shown], color, marker)


def _candidates(study: CollectiveStudy, curve: CollectiveCurve) -> list[BandwidthLine]:
    """Make a line of each candidate's predicted bandwidth; slow ones lack some sizes."""
    times: dict[str, list[tuple[int, float]]] = {}
    for point in curve.points:
        for name, seconds in point.candidates.items():
            times.setdefault(name, []).append((point.nbytes, seconds))
    return [_line(study, name, found, curve.world_size) for name, found in times.items()]


def _draw_interval(ax: Axes, study: CollectiveStudy, curve: CollectiveCurve) -> list[float]:
    """Shade the 90 % interval of the only line, and return its edges."""
    ends = [(p.nbytes, p.low, p.high) for p in curve.points if p.low and p.high]
    most, least = (
        _line(study, "", [(end[0], end[side]) for end in ends], curve.world_size) for side in (1, 2)
    )
    if not ends:
        return []
    ax.fill_between(least.x, least.y, most.y, color=theme.COMM, alpha=0.15, linewidth=0, zorder=1)
    at = least.x[len(least.x) // 2], least.y[len(least.x) // 2]
    labels.note(ax, "90 % interval", at, (0, -4), ha="left", va="top", color=theme.MUTED)
    return least.y + most.y


def _mark_crossovers(ax: Axes, curve: CollectiveCurve) -> None:
    """Draw a line where ``auto`` changes its algorithm, and name these on top."""
    points = curve.points
    edges, names = [float(points[0].nbytes)], [points[0].algorithm]
    for before, after in pairwise(points):
        if after.algorithm != before.algorithm:
            edges.append(_meeting(before, after))
            names.append(after.algorithm)
            ax.axvline(edges[-1], color=theme.MUTED, linewidth=0.8, linestyle=":", zorder=1.5)
    edges.append(float(points[-1].nbytes))
    octaves = log2(ax.get_xlim()[1] / ax.get_xlim()[0])
    for name, left, right in zip(names, edges, edges[1:], strict=False):
        room = log2(right / left) / octaves * _POINTS
        kind = name.partition("(")[0]
        text = next((t for t in (name, kind, kind.replace("_", "_\n", 1)) if _fits(t, room)), "")
        look = labels.PALE | {"ha": "center", "va": "top", "path_effects": labels.HALO}
        look |= {"transform": ax.get_xaxis_transform(), "in_layout": False}
        ax.text((left * right) ** 0.5, 0.985, text, **look)


def _fits(text: str, room: float) -> bool:
    return max(theme.text_width(part, theme.SMALL_SIZE) for part in text.split("\n")) + 4 <= room


def _meeting(before: CollectivePoint, after: CollectivePoint) -> float:
    """Find the size of equal times of two algorithms, on straight lines between two sizes."""
    old, new = before.algorithm, after.algorithm
    if not all({old, new} <= {*point.candidates} for point in (before, after)):
        return float(after.nbytes)
    gain = [log2(p.candidates[old] / p.candidates[new]) for p in (before, after)]
    part = gain[0] / (gain[0] - gain[1]) if gain[0] < gain[1] else 1.0
    return float(before.nbytes * (after.nbytes / before.nbytes) ** part)


class WorldSize(Plot[CollectiveStudy]):
    """Time by world size: a line per algorithm, at a few sizes."""

    kind = "world_size"
    reads = CollectiveStudy
    needs = "two world sizes or more"

    def fits(self, study: CollectiveStudy) -> bool:
        return any(len(line.x) > 1 for line in _world_size_lines(study))

    def draw(self, study: CollectiveStudy, *axes: Axes) -> None:
        (ax,) = axes
        lines = _world_size_lines(study)
        unit, per_second = theme.time_unit(max(max(line.y) for line in lines))
        lines = [line._replace(y=[y * per_second for y in line.y]) for line in lines]
        sizes = sorted({x for line in lines for x in line.x})
        shown, every = len(_sizes(study)), len(study.curves[0].points)
        said = f"; {shown} of {every} sizes" if shown < every else ""
        of = f" of {short_size(_sizes(study)[0])}" if _is_in_the_title(study) else ""
        title = f"Time of {study.collective}{of} by the number of GPUs{said}"
        entitle(ax, title, f"on {study.cluster}")
        ends = draw_lines(ax, lines)
        labels.log2_axis(ax, sizes, sizes, margin=0.03)
        log_axis(ax, [y for line in lines for y in line.y])
        ax.set_ylabel(f"Time [{unit}]")
        label_ends(ax, ends)


def _sizes(study: CollectiveStudy) -> list[int]:
    """Choose sizes evenly."""
    every = [point.nbytes for point in study.curves[0].points]
    num_algorithms = len({curve.algorithm for curve in study.curves})
    return [every[i] for i in evenly(len(every), max(MAX_LINES // num_algorithms, 1))]


def _is_in_the_title(study: CollectiveStudy) -> bool:
    """Return whether several algorithms share one size, written in the title only."""
    several = len({curve.algorithm for curve in study.curves}) > 1
    return several and len(study.curves[0].points) == 1 and _sizes(study)[0] > 0


def _world_size_lines(study: CollectiveStudy) -> list[BandwidthLine]:
    """Make lines of each algorithm's times at some sizes; a single rank takes none."""
    algorithms = list(dict.fromkeys(curve.algorithm for curve in study.curves))
    sizes, lines = _sizes(study), []
    for which, algorithm in enumerate(algorithms):
        for number, nbytes in enumerate(sizes):
            found = [
                (float(curve.world_size), point.seconds)
                for curve in study.curves
                for point in curve.points
                if curve.algorithm == algorithm and point.nbytes == nbytes and point.seconds > 0
            ]
            if not found:
                continue
            name = [algorithm] * (len(algorithms) > 1 or not nbytes)
            name += [short_size(nbytes)] if nbytes and not _is_in_the_title(study) else []
            look = (which, number) if len(algorithms) > 1 < len(sizes) else (which + number,) * 2
            x, y = [n for n, _ in found], [seconds for _, seconds in found]
            lines.append(BandwidthLine(", ".join(name), x, y, *look))
    return lines
