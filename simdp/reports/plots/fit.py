"""A calibration of collectives: bus bandwidth as measured and as fitted, and the errors below."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from simdp.reports import theme
from simdp.reports.plots.base import Plot
from simdp.reports.plots.collective_curves import Line, draw_lines, log_axis, size_axis
from simdp.reports.plots.headings import entitle
from simdp.reports.plots.labels import label_ends
from simdp.results.bandwidth import bus_bandwidth_factor
from simdp.results.calibration import CalibrationStudy, FittedPoint

MAX_ERROR = 0.5
"""Largest error of the lower panel; what is beyond is drawn at its edge."""

BAND = 0.10
"""The error that the band marks."""


class FitPlot(Plot[CalibrationStudy]):
    """How well fitted constants explain measured collectives."""

    kind = "fit"
    reads = CalibrationStudy
    needs = "two measured sizes"
    num_axes = 2

    def fits(self, study: CalibrationStudy) -> bool:
        """Tell whether there are two sizes or more."""
        return len({point.nbytes for point in study.points}) > 1

    def draw(self, study: CalibrationStudy, *axes: Axes) -> None:
        """Draw on two panels; see `Plot.draw`."""
        ax, bottom = axes
        curves = _curves(study)
        lines = [
            Line(
                name,
                [point.nbytes for point in points],
                [_busbw(point, point.fitted) for point in points],
                number,
                number,
            )
            for number, (name, points) in enumerate(curves.items())
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
        _errors_axis(bottom, every)


def _curves(study: CalibrationStudy) -> dict[str, list[FittedPoint]]:
    """Points by collective and layout, in order of size, under the name of their line."""
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


def _errors_axis(ax: Axes, sizes: list[float]) -> None:
    size_axis(ax, sizes)
    ax.axhspan(-100 * BAND, 100 * BAND, color=theme.FAINT, zorder=0)
    ax.axhline(0, color=theme.MUTED, linewidth=0.8)
    ax.set_ylim(-105 * MAX_ERROR, 105 * MAX_ERROR)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+.0f}"))
    ax.set_ylabel("Error [%]")
