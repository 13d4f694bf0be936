"""Charts of collectives: bandwidth by size, time by world size, and fitted constants."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import log2, nan

from simdp.arrays import grouped
from simdp.reports import theme
from simdp.reports.charts.chart import Axis, Chart, Picture, Series, Stretch
from simdp.reports.charts.names import evenly
from simdp.results.calibration import CalibrationStudy, FittedPoint
from simdp.results.collective import (
    CollectiveCurve,
    CollectivePoint,
    CollectiveStudy,
    bus_bandwidth_factor,
)
from simdp.units import format_quantity

MAX_LINES = 6  # lines; of more world sizes or buffer sizes some are dropped
MAX_ERROR = 0.5  # largest error of the lower panel; larger ones are drawn at its edge
BAND = 0.10  # error that the band marks


def short_size(nbytes: float) -> str:
    """Write a size with three or four digits: ``"64 KiB"``, ``"67.1 MB"``."""
    exact = format_quantity(nbytes, "data size")
    if len(exact) <= len("1024 KiB"):
        return exact
    unit, scale = theme.nbytes_unit(nbytes)
    return f"{nbytes / scale:.3g} {unit}"


def _size_axis(sizes: Sequence[float]) -> Axis:
    ticks = {float(size): short_size(size) for size in sorted({*sizes})}
    return Axis("Size of the buffer [bytes]", "log2", ticks=ticks)


def error_band(ends: Sequence[float], band: float) -> Series:
    """Mark the errors [%] up to a share, around 0."""
    return Series(
        "", ends, [0.0] * len(ends), low=[-100 * band] * len(ends), high=[100 * band] * len(ends),
        dashed=True,
    )  # fmt: skip


def cut_error(error: float) -> float:
    """Write an error in percent; one that would hide the others lies at the edge."""
    return 100 * min(max(error, -MAX_ERROR), MAX_ERROR)


def fit(study: CalibrationStudy) -> Picture | None:
    """Show measured collectives against fitted constants, with errors."""
    sizes = sorted({point.nbytes for point in study.points})
    if len(sizes) < 2:
        return None
    several = len({point.collective for point in study.points}) > 1
    layouts = [
        f"{f'{p.collective}, ' * several}{p.num_nodes} x {p.world_size // p.num_nodes} GPUs"
        for p in study.points
    ]
    groups = grouped(zip(layouts, study.points, strict=True))
    lines, circles, errors = list[Series](), list[Series](), list[Series]()
    for number, name in enumerate(sorted(groups)):
        points = sorted(groups[name], key=lambda point: point.nbytes)
        color, marker = theme.look(number)
        at = [float(point.nbytes) for point in points]
        fitted = [_busbw(point, point.fitted) for point in points]
        measured = [_busbw(point, point.measured) for point in points]
        share = [cut_error(point.error) for point in points]
        lines.append(Series(name, at, fitted, color=color, marker=marker))
        circles.append(Series("", at, measured, "points", color=color, marker="o"))
        errors.append(Series("", at, share, "points", color=color, marker=marker, is_filled=True))
    over, most = _size_axis(sizes), 105 * MAX_ERROR
    charts = [
        Chart("Bus bandwidth", over, Axis("Bus bandwidth [GB/s]", "log"), [*lines, *circles]),
        Chart(
            "Error",
            over,
            Axis("Error [%]", ends=(-most, most), is_signed=True),
            [error_band([float(sizes[0]), float(sizes[-1])], BAND), *errors],
        ),
    ]
    residual = f"{study.residual:.1%}".replace("%", " %")
    text = f"fitted with {residual} RMS error; open circles: measured"
    return Picture(f"Collectives of {study.name}", text, charts)


def _busbw(point: FittedPoint, seconds: float) -> float:
    factor = bus_bandwidth_factor(point.collective, point.world_size) or 1.0
    return factor * point.nbytes / seconds / 1e9


def bandwidth(study: CollectiveStudy) -> Picture | None:
    """Show bus bandwidth by buffer size: a line per algorithm and world size."""
    lines = _lines(study)
    if not any(len(line.x) > 1 for line in lines):
        return None
    shown, every = _world_sizes(study), {curve.world_size for curve in study.curves}
    title = f"Bus bandwidth of {study.collective}"
    if len(every) == 1:
        title += f", {shown[0]} GPU{'s' * (shown[0] > 1)}"
    elif len(shown) < len(every):
        title += f"; {len(shown)} of {len(every)} world sizes"
    (curve, *others) = study.curves
    stretches: list[Stretch] = []
    if len(lines) == 1:
        ends = [(p.low or nan, p.high or nan) for p in curve.points]
        times = [(p.nbytes, p.seconds) for p in curve.points]
        lines = [_with_interval(study, lines[0], times, ends, curve.world_size)]
    if curve.points[0].candidates and not others:
        title += "; thin: what auto chose from"
        lines = [line._replace(name="auto") for line in lines] + _candidates(study, curve)
        stretches = _stretches(curve)
    measured = [(p.nbytes, p.measured) for p in curve.points if p.measured is not None]
    line = _line(study, "measured", measured, curve.world_size)
    if line.x:  # open circles, over everything
        lines.append(line._replace(look="points", color=theme.INK, marker="o"))
    chart = Chart(
        title,
        _size_axis([p.nbytes for c in study.curves for p in c.points if p.nbytes]),
        Axis("Bus bandwidth [GB/s]", "log"),
        lines,
        stretches=stretches,
    )
    return Picture(title, f"on {study.cluster}", [chart])


def _world_sizes(study: CollectiveStudy) -> list[int]:
    """Choose world sizes evenly."""
    every = sorted({curve.world_size for curve in study.curves})
    num_algorithms = len(study.curves) // len(every)
    return [every[i] for i in evenly(len(every), max(MAX_LINES // num_algorithms, 1))]


def _look(which: int, number: int, both: bool) -> tuple[str, str]:
    """Choose a colour per algorithm and a marker per size; of one alone both follow it."""
    if not both:
        which = number = which + number
    return theme.look(which)[0], theme.look(number)[1]


def _lines(study: CollectiveStudy) -> list[Series]:
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
        times = [(point.nbytes, point.seconds) for point in curve.points]
        color, marker = _look(which, size, len(algorithms) > 1 < len(sizes))
        line = _line(study, ", ".join(name), times, curve.world_size)
        lines.append(line._replace(color=color, marker=marker))
    return [line for line in lines if line.x]


def _line(
    study: CollectiveStudy, name: str, times: Sequence[tuple[int, float]], world_size: int
) -> Series:
    rates = [(float(size), study.busbw(size, seconds, world_size)) for size, seconds in times]
    shown = [(size, busbw / 1e9) for size, busbw in rates if busbw]
    return Series(name, [x for x, _ in shown], [y for _, y in shown])


def _with_interval(
    study: CollectiveStudy,
    line: Series,
    times: Sequence[tuple[int, float]],
    ends: Sequence[tuple[float, float]],
    world_size: int,
) -> Series:
    """Add the 90 % interval of times to a line; the longest time is the lowest bandwidth."""
    known = [(size, end) for (size, _), end in zip(times, ends, strict=True) if size in line.x]
    if all(end != end for _, both in known for end in both):
        return line
    high, low = (
        [(study.busbw(size, both[side], world_size) or nan) / 1e9 for size, both in known]
        for side in (0, 1)
    )
    return line._replace(low=low, high=high)


def _candidates(study: CollectiveStudy, curve: CollectiveCurve) -> list[Series]:
    """Make a thin line of each candidate's predicted bandwidth; slow ones lack some sizes."""
    times = grouped(
        (name, (point.nbytes, seconds))
        for point in curve.points
        for name, seconds in point.candidates.items()
    )
    return [
        _line(study, name, sizes, curve.world_size)._replace(color=theme.WAIT, marker="none")
        for name, sizes in times.items()
    ]


def _stretches(curve: CollectiveCurve) -> list[Stretch]:
    """Name the algorithms that ``auto`` chose along the axis; without a change there are none."""
    points = curve.points
    edges, names = [float(points[0].nbytes)], [points[0].algorithm]
    for before, after in pairwise(points):
        if after.algorithm != before.algorithm:
            edges.append(_meeting(before, after))
            names.append(after.algorithm)
    edges.append(float(points[-1].nbytes))
    stretches = []
    for number, (name, left, right) in enumerate(zip(names, edges, edges[1:], strict=False)):
        kind = name.partition("(")[0]
        shorter = (name, kind, kind.replace("_", "_\n", 1))
        stretches.append(Stretch(shorter, left, right, number > 0))
    return stretches if len(stretches) > 1 else []


def _meeting(before: CollectivePoint, after: CollectivePoint) -> float:
    """Find the size of equal times of two algorithms, on straight lines between two sizes."""
    old, new = before.algorithm, after.algorithm
    if not all({old, new} <= {*point.candidates} for point in (before, after)):
        return float(after.nbytes)
    gain = [log2(p.candidates[old] / p.candidates[new]) for p in (before, after)]
    part = gain[0] / (gain[0] - gain[1]) if gain[0] < gain[1] else 1.0
    return float(before.nbytes * (after.nbytes / before.nbytes) ** part)


def world_size(study: CollectiveStudy) -> Picture | None:
    """Show time by world size: a line per algorithm, at a few sizes; a single rank takes none."""
    every = [point.nbytes for point in study.curves[0].points]
    algorithms = list(dict.fromkeys(curve.algorithm for curve in study.curves))
    sizes = [every[i] for i in evenly(len(every), max(MAX_LINES // len(algorithms), 1))]
    in_title = len(algorithms) > 1 and len(every) == 1 and sizes[0] > 0
    lines = []
    for which, algorithm in enumerate(algorithms):
        for number, nbytes in enumerate(sizes):
            times = [
                (float(curve.world_size), point.seconds)
                for curve in study.curves
                for point in curve.points
                if curve.algorithm == algorithm and point.nbytes == nbytes and point.seconds > 0
            ]
            name = [algorithm] * (len(algorithms) > 1 or not nbytes)
            name += [short_size(nbytes)] if nbytes and not in_title else []
            color, marker = _look(which, number, len(algorithms) > 1 < len(sizes))
            line = Series(", ".join(name), [n for n, _ in times], [s for _, s in times])
            lines += [line._replace(color=color, marker=marker)] * bool(times)
    if not any(len(line.x) > 1 for line in lines):
        return None
    unit, per_second = theme.time_unit(max(s for line in lines for s in line.y if s))
    some = f"; {len(sizes)} of {len(every)} sizes" if len(sizes) < len(every) else ""
    of = f" of {short_size(sizes[0])}" if in_title else ""
    title = f"Time of {study.collective}{of} by the number of GPUs{some}"
    chart = Chart(
        title,
        Axis("World size [GPUs]", "log2"),
        Axis(f"Time [{unit}]", "log", unit),
        [line._replace(y=[(y or 0.0) * per_second for y in line.y]) for line in lines],
    )
    return Picture(title, f"on {study.cluster}", [chart])
