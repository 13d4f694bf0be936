"""Throughput against world size on one cluster, measured and simulated, and the error."""

from __future__ import annotations

from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from simdp.reports import theme
from simdp.reports.plots.base import Plot
from simdp.reports.plots.collective_curves import Line, draw_lines, log_axis
from simdp.reports.plots.labels import cut, evenly, label_ends
from simdp.reports.validation_words import in_common, setting
from simdp.results.validation import StepComparison, Validation

AXIS = "cluster.world_size"

ASIDE = 0.009
"""Part of the axis between the errors of two curves."""

BAND = 0.10
"""The error that the band marks."""

MAX_LINES = 6
"""Lines; of more those with the most points are kept."""


class Curve(NamedTuple):
    """Points that differ in nothing but the world size, by world size."""

    name: str
    points: list[StepComparison]

    @property
    def sizes(self) -> list[float]:
        """World sizes."""
        return [float(point.world_size) for point in self.points]


class ThroughputCurves(Plot[Validation]):
    """Throughput of a cluster's runs by the number of GPUs, measured as open circles."""

    kind = "throughput_curves"
    reads = Validation
    needs = "steps of one cluster at two world sizes or more"
    num_axes = 2

    def fits(self, study: Validation) -> bool:
        """Tell whether there is one cluster, with a curve."""
        return len(study.clusters) == 1 and bool(_curves(study))

    def draw(self, study: Validation, *axes: Axes) -> None:
        """Draw on two panels; see `Plot.draw`."""
        ax, bottom = axes
        every = _curves(study)
        curves = _shown(every)
        left_out = f"; {len(curves)} of {len(every)} curves" if len(curves) < len(every) else ""
        ax.set_title(f"Throughput on {study.clusters[0]}{left_out}")
        lines = [
            Line(curve.name, curve.sizes, [p.samples / p.simulated for p in curve.points], i, i)
            for i, curve in enumerate(curves)
        ]
        values = [y for line in lines for y in line.y]
        sizes = sorted({x for line in lines for x in line.x})
        for i, curve in enumerate(curves):
            values += _draw_measured(ax, curve, theme.look(i)[0])
            _draw_errors(bottom, curve, i, len(curves), sizes[-1] / sizes[0])
        ends = draw_lines(ax, lines)
        for panel in axes:
            _world_size_axis(panel, sizes)
        ax.tick_params(labelbottom=True)
        _error_axis(bottom)
        log_axis(ax, values)
        ax.yaxis.set_major_formatter(FuncFormatter(theme.short_number))
        ax.set_ylabel("Throughput [samples/s]")
        ax.legend(handles=_handles(), loc="upper left")
        label_ends(ax, ends)


def _curves(study: Validation) -> list[Curve]:
    """Sort points into curves of two world sizes or more, in the order of the scenarios."""
    groups: dict[tuple[str, str], list[StepComparison]] = {}
    for point in study.points:
        rest = repr({key: value for key, value in point.set.items() if key != AXIS})
        groups.setdefault((point.scenario, rest), []).append(point)
    long = {
        where: sorted(points, key=lambda point: point.world_size)
        for where, points in groups.items()
        if len({point.world_size for point in points}) > 1
    }
    several = len({scenario for scenario, _ in long}) > 1
    leave_out = [AXIS, *in_common([points[0].set for points in long.values()])] if long else []
    found = []
    for (scenario, _), points in long.items():
        short = scenario.removeprefix(study.clusters[0]).lstrip("-_.") or scenario
        said = setting(points[0].set, leave_out)
        name = ", ".join(filter(None, [short if several else "", said]))
        found.append(Curve(cut(name or scenario), points))
    return found


def _shown(curves: list[Curve]) -> list[Curve]:
    """Those with the most points, evenly where many have as many."""
    most = max(len(curve.points) for curve in curves)
    longest = [i for i, curve in enumerate(curves) if len(curve.points) == most]
    chosen = [longest[i] for i in evenly(len(longest), MAX_LINES)]
    others = sorted(set(range(len(curves))) - set(longest), key=lambda i: -len(curves[i].points))
    chosen += others[: MAX_LINES - len(chosen)]
    return [curves[i] for i in sorted(chosen)]


def _draw_measured(ax: Axes, curve: Curve, color: str) -> list[float]:
    """Draw what was measured, and the interval of what was simulated; return all values."""
    measured = [point.samples / point.measured for point in curve.points]
    slow = [point.samples / point.high for point in curve.points]
    fast = [point.samples / point.low if point.low else 0.0 for point in curve.points]
    ax.fill_between(curve.sizes, slow, fast, color=color, alpha=0.13, linewidth=0, zorder=1.5)
    ax.plot(
        curve.sizes,
        measured,
        "o",
        markersize=theme.MARKER_SIZE + 4,
        markerfacecolor="none",
        markeredgecolor=color,
        markeredgewidth=1.1,
        zorder=4,
    )
    return measured


def _draw_errors(ax: Axes, curve: Curve, number: int, num_curves: int, span: float) -> None:
    """Draw the errors of a curve with their intervals, a little beside those of the others.

    The largest world size is ``span`` times the smallest.
    """
    aside = span ** (ASIDE * (number - (num_curves - 1) / 2))
    color, marker = theme.look(number)
    x = [size * aside for size in curve.sizes]
    low = [100 * (point.low / point.measured - 1) for point in curve.points]
    high = [100 * (point.high / point.measured - 1) for point in curve.points]
    ax.vlines(x, low, high, color=color, linewidth=1.0, alpha=0.5, zorder=2.5)
    ax.plot(
        x,
        [100 * point.error for point in curve.points],
        marker,
        color=color,
        markersize=theme.MARKER_SIZE - 0.5,
        markeredgecolor="white",
        markeredgewidth=0.5,
        zorder=3,
    )


def _error_axis(ax: Axes) -> None:
    ax.axhspan(-100 * BAND, 100 * BAND, color=theme.FAINT, linewidth=0, zorder=1.5)
    ax.axhline(0, linestyle="--", color=theme.MUTED, linewidth=theme.THIN_WIDTH, zorder=2)
    ax.margins(y=0.08)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+.4g}" if value else "0"))
    ax.set_ylabel("Error of the step time [%]")
    ax.set_title(
        "Error at each point, with the 90 % interval",
        fontsize=theme.TEXT_SIZE,
        fontweight="normal",
    )


def _world_size_axis(ax: Axes, sizes: list[float]) -> None:
    ax.set_xscale("log", base=2)
    margin = (sizes[-1] / sizes[0]) ** 0.05
    ax.set_xlim(sizes[0] / margin, sizes[-1] * margin)
    ax.xaxis.set_major_locator(FixedLocator(sizes))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("World size [GPUs]")


def _handles() -> list[Line2D]:
    open_circle = {"marker": "o", "mfc": "none", "ms": theme.MARKER_SIZE + 4}
    return [
        Line2D([], [], color=theme.INK, ls="", label="measured", **open_circle),  # type: ignore[arg-type]
        Line2D([], [], color=theme.INK, marker="o", label="simulated"),
        Line2D([], [], color=theme.FAINT, linewidth=7, label="its 90 % interval"),
    ]
