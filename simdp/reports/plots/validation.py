"""Plots of validations."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator

from simdp.reports import theme
from simdp.reports.plots import labels
from simdp.reports.plots.bandwidth import BandwidthLine, draw_lines, log_axis
from simdp.reports.plots.labels import Plot, cut, entitle, evenly, label_ends
from simdp.reports.validation import in_common, setting
from simdp.results.calibration import StepCalibration
from simdp.results.validation import (
    LEVELS,
    StepComparison,
    TimeComparison,
    Validation,
    coverage,
    num_series,
)

STEP_FIT_BAND = 0.05  # error that the band marks


class StepFit(Plot[StepCalibration]):
    """Measured steps against fitted constants, with errors."""

    kind = "step_fit"
    reads = StepCalibration
    needs = "two measured steps"
    num_axes = 2

    def fits(self, study: StepCalibration) -> bool:
        return len(study.points) > 1

    def draw(self, study: StepCalibration, *axes: Axes) -> None:
        ax, bottom = axes
        unit, per_second = theme.time_unit(max(point.measured for point in study.points))
        measured = [point.measured * per_second for point in study.points]
        fitted = [point.fitted * per_second for point in study.points]
        low, high = min(measured + fitted) / 1.1, max(measured + fitted) * 1.1
        ends = [low, high]
        least, most = ([end * (1 + sign * STEP_FIT_BAND) for end in ends] for sign in (-1, 1))
        ax.fill_between(ends, least, most, color=theme.FAINT, linewidth=0)
        ax.plot(ends, ends, color=theme.MUTED, linewidth=theme.THIN_WIDTH)
        ax.plot(measured, fitted, "o", color=theme.SERIES[0])
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_ylim(low, high)
        ax.set_xlabel(f"Measured step time [{unit}]")
        ax.set_ylabel(f"Fitted step time [{unit}]")
        said = (
            f"fitted with {study.residual * 100:.1f} % RMS error; band: {STEP_FIT_BAND * 100:.0f} %"
        )
        entitle(ax, f"Steps of {study.name}", said)
        bottom.axhspan(-100 * STEP_FIT_BAND, 100 * STEP_FIT_BAND, color=theme.FAINT, linewidth=0)
        bottom.axhline(0.0, color=theme.MUTED, linewidth=theme.THIN_WIDTH)
        errors = [100 * point.error for point in study.points]
        bottom.plot(measured, errors, "o", color=theme.SERIES[0])
        reach = max(100 * STEP_FIT_BAND, *map(abs, errors)) * 1.15
        bottom.set_ylim(-reach, reach)
        bottom.set_xscale("log")
        bottom.set_xlim(low, high)
        bottom.set_xlabel(f"Measured step time [{unit}]")
        bottom.set_ylabel("Error [%]")
        for axis in (ax.xaxis, ax.yaxis, bottom.xaxis):
            labels.ticks(axis, LogLocator(10, subs=(1, 1.5, 2, 3, 5, 7)), "{:,.4g}".format)


NUM_RELIABILITY_ROWS = 13  # height, in rows of bars
LEAST = 5  # least points of a level
RELIABILITY_ASIDE = 0.35  # distance of the bands of steps and of collectives [%]


class Reliability(Plot[Validation]):
    """Observed against nominal coverage of the simulated intervals."""

    kind = "reliability"
    reads = Validation
    needs = "five predicted points with intervals"

    def fits(self, study: Validation) -> bool:
        return bool(_reliability_groups(study))

    def num_rows(self, study: Validation) -> int:
        return NUM_RELIABILITY_ROWS

    def draw(self, study: Validation, *axes: Axes) -> None:
        (ax,) = axes
        groups = _reliability_groups(study)
        ends = [100 * LEVELS[0] - 3, 100.0]
        ideal: dict[str, Any] = {"color": theme.MUTED, "linewidth": theme.THIN_WIDTH, "ls": "--"}
        ax.plot(ends, ends, **ideal)
        shown = [100 * level for level in LEVELS]
        handles, lowest = [], ends[0]
        for number, (name, points) in enumerate(groups.items()):
            color, marker = theme.look(number)
            found = coverage(points)
            x = [level + RELIABILITY_ASIDE * (2 * number - len(groups) + 1) for level in shown]
            low, high = [100 * one.low for one in found], [100 * one.high for one in found]
            ax.vlines(x, low, high, color=color, alpha=0.3, linewidth=6)
            y = [100 * one.observed for one in found]
            ax.plot(x, y, marker=marker, color=color)
            lowest = min([lowest, *y, *low])
            handles.append(Line2D([], [], color=color, marker=marker, label=_said(name, points)))
        handles.append(Line2D([], [], label="as nominal", **ideal))
        band = "90 % of what so many independent series would show"
        handles.append(Line2D([], [], color=theme.MUTED, alpha=0.3, linewidth=6, label=band))
        ax.set_xticks(shown, [f"{level:.0f}" for level in shown])
        ax.set_xlim(ends[0], ends[1] + 1)
        ax.set_ylim(lowest - 3, 101)
        ax.set_xlabel("Nominal coverage of the interval [%]")
        ax.set_ylabel("Measured times inside [%]")
        said = "other levels than 90 %: log-normal on each side of the simulated time"
        entitle(ax, "How sure predictions are, and how sure they say they are", said)
        ax.legend(handles=handles, loc="upper left")


def _reliability_groups(study: Validation) -> dict[str, Sequence[TimeComparison]]:
    """Group predicted steps and collectives, each with enough intervals."""
    every: dict[str, Sequence[TimeComparison]] = {"steps": study.points, "collectives": study.rows}
    found = {name: [p for p in points if p.is_predicted] for name, points in every.items()}
    return {
        name: points
        for name, points in found.items()
        if sum(point.low < point.high for point in points) >= LEAST
    }


def _said(name: str, points: Sequence[TimeComparison]) -> str:
    """Write the legend of a line."""
    series = "scenario" if name == "steps" else "table"
    count = num_series(points)
    return f"{name}: {len(points)} in {count} {series}{'s' * (count > 1)}"


AXIS = "cluster.world_size"
ASIDE = 0.009  # distance of the errors of two curves, as a part of the axis
BAND = 0.10  # error that the band marks
MAX_LINES = 6  # lines; of more those with the most points are kept


class ThroughputCurve(NamedTuple):
    """Points that differ in world size only, in its order."""

    name: str
    points: list[StepComparison]

    @property
    def sizes(self) -> list[float]:
        """World sizes."""
        return [float(point.world_size) for point in self.points]


class ThroughputCurves(Plot[Validation]):
    """Throughput by world size of a cluster's runs, simulated and measured, with errors."""

    kind = "throughput_curves"
    reads = Validation
    needs = "steps of one cluster at two world sizes or more"
    num_axes = 2

    def fits(self, study: Validation) -> bool:
        return len(study.clusters) == 1 and bool(_curves(study))

    def draw(self, study: Validation, *axes: Axes) -> None:
        ax, bottom = axes
        every = _curves(study)
        curves = _shown(every)
        left_out = f"; {len(curves)} of {len(every)} curves" if len(curves) < len(every) else ""
        ax.set_title(f"Throughput on {study.clusters[0]}{left_out}")
        lines = [
            BandwidthLine(c.name, c.sizes, [p.samples / p.simulated for p in c.points], i, i)
            for i, c in enumerate(curves)
        ]
        values = [y for line in lines for y in line.y]
        sizes = sorted({x for line in lines for x in line.x})
        for i, curve in enumerate(curves):
            values += _draw_measured(ax, curve, theme.look(i)[0])
            _draw_errors(bottom, curve, i, len(curves), sizes[-1] / sizes[0])
        ends = draw_lines(ax, lines)
        for panel in axes:
            labels.log2_axis(panel, sizes, sizes)
        ax.tick_params(labelbottom=True)
        _error_band(bottom, "{:+.4g}")
        bottom.margins(y=0.08)
        bottom.set_ylabel("Error of the step time [%]")
        title = "Error at each point, with the 90 % interval"
        bottom.set_title(title, fontsize=theme.TEXT_SIZE, fontweight="normal")
        log_axis(ax, values)
        ax.yaxis.set_major_formatter(FuncFormatter(theme.short_number))
        ax.set_ylabel("Throughput [samples/s]")
        ax.legend(handles=_handles(), loc="upper left")
        label_ends(ax, ends)


def _curves(study: Validation) -> list[ThroughputCurve]:
    """Group points into curves of two world sizes or more, in the order of the scenarios."""
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
        found.append(ThroughputCurve(cut(name or scenario), points))
    return found


def _shown(curves: list[ThroughputCurve]) -> list[ThroughputCurve]:
    """Choose the curves with the most points, evenly among equal ones."""
    most = max(len(curve.points) for curve in curves)
    longest = [i for i, curve in enumerate(curves) if len(curve.points) == most]
    chosen = [longest[i] for i in evenly(len(longest), MAX_LINES)]
    others = sorted(set(range(len(curves))) - set(longest), key=lambda i: -len(curves[i].points))
    chosen += others[: MAX_LINES - len(chosen)]
    return [curves[i] for i in sorted(chosen)]


def _draw_measured(ax: Axes, curve: ThroughputCurve, color: str) -> list[float]:
    """Draw measured points and the interval of simulated ones; return all values."""
    measured = [point.samples / point.measured for point in curve.points]
    slow = [point.samples / point.high for point in curve.points]
    fast = [point.samples / point.low if point.low else 0.0 for point in curve.points]
    ax.fill_between(curve.sizes, slow, fast, color=color, alpha=0.13, linewidth=0, zorder=1.5)
    size = theme.MARKER_SIZE + 4
    ax.plot(curve.sizes, measured, "o", ms=size, mfc="none", mec=color, mew=1.1, zorder=4)
    return measured


def _draw_errors(
    ax: Axes, curve: ThroughputCurve, number: int, num_curves: int, span: float
) -> None:
    """Draw the errors of a curve with their intervals, beside those of the others.

    The largest world size is ``span`` times the smallest.
    """
    aside = span ** (ASIDE * (number - (num_curves - 1) / 2))
    color, marker = theme.look(number)
    x = [size * aside for size in curve.sizes]
    low = [100 * (point.low / point.measured - 1) for point in curve.points]
    high = [100 * (point.high / point.measured - 1) for point in curve.points]
    ax.vlines(x, low, high, color=color, linewidth=1.0, alpha=0.5, zorder=2.5)
    y, size = [100 * point.error for point in curve.points], theme.MARKER_SIZE - 0.5
    ax.plot(x, y, marker, color=color, ms=size, mec="white", mew=0.5, zorder=3)


def _error_band(ax: Axes, digits: str) -> None:
    """Mark small errors, and write the vertical axis with signs."""
    ax.axhspan(-100 * BAND, 100 * BAND, color=theme.FAINT, linewidth=0, zorder=1.5)
    ax.axhline(0, linestyle="--", color=theme.MUTED, linewidth=theme.THIN_WIDTH, zorder=2)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: digits.format(v) if v else "0"))


def _handles() -> list[Line2D]:
    open_circle = {"marker": "o", "mfc": "none", "ms": theme.MARKER_SIZE + 4}
    return [
        Line2D([], [], color=theme.INK, ls="", label="measured", **open_circle),  # type: ignore[arg-type]
        Line2D([], [], color=theme.INK, marker="o", label="simulated"),
        Line2D([], [], color=theme.FAINT, linewidth=7, label="its 90 % interval"),
    ]


NUM_ROWS = 18  # height, in rows of bars
MAX_ENTRIES = 18  # lines of the legend that the upper panel has room for
MAX_CLUSTERS = 8  # clusters with a colour each; more are grouped by the class of their network

# names of the classes of `simdp.collectives.costs.nccl` in the legend
NETWORKS = {
    "": "one GPU",
    "nvlink": "one node, NVLink or xGMI",
    "pcie": "one node, PCIe peer-to-peer",
    "host": "one node, through host memory",
    "rdma": "nodes, InfiniBand or RoCE",
    "roce": "nodes, RDMA on shared PCIe",
    "libfabric": "nodes, EFA or Slingshot",
    "staged": "nodes, RDMA through host memory",
    "tcp": "nodes, TCP",
}

MAX_ERROR = 0.5  # largest error of the lower panel; larger ones are drawn at its edge


class SimulatedAgainstMeasured(Plot[Validation]):
    """Simulated against measured times, by cluster, with errors."""

    kind = "simulated_against_measured"
    reads = Validation
    needs = "a measured point"
    num_axes = 2

    def fits(self, study: Validation) -> bool:
        return bool(study.points or study.rows)

    def num_rows(self, study: Validation) -> int:
        return NUM_ROWS

    def draw(self, study: Validation, *axes: Axes) -> None:
        ax, bottom = axes
        every: Sequence[TimeComparison] = (*study.points, *study.rows)
        unit, per_second = theme.time_unit(max(point.measured for point in every))
        values = [time * per_second for p in every for time in (p.measured, p.simulated)]
        low, high = min(values) / 1.3, max(values) * 1.3
        _draw_band(ax, low, high)
        groups = _groups(study, every)
        for number, here in enumerate(groups.values()):
            measured = [point.measured * per_second for point in here]
            look = theme.look(number)
            _draw(ax, here, measured, [p.simulated * per_second for p in here], look)
            _draw(bottom, here, measured, [_percent(p.error) for p in here], look)
        what = "step" if study.points else "collective"
        what = "step and collective" if study.points and study.rows else what
        ax.set_title(f"Simulated against measured {what} times")
        most = max([BAND, *(abs(_percent(point.error)) / 100 for point in every)]) * 110
        _error_band(bottom, "{:+.0f}")
        bottom.set_ylim(-most, most)
        bottom.set_ylabel("Error of the simulated time [%]")
        bottom.set_xscale("log")
        subs = (1,) if high / low > 500 else (1, 2, 5)
        for axis in (ax.xaxis, bottom.xaxis, ax.yaxis):
            labels.ticks(axis, LogLocator(10, subs=subs), "{:,.6g}".format)
            axis.set_label_text(f"{'Simulated' if axis is ax.yaxis else 'Measured'} time [{unit}]")
        ax.tick_params(labelbottom=True)
        handles = _measured_handles(study, groups)
        place: dict[str, Any] = {"bbox_to_anchor": (1.01, 1.0), "borderaxespad": 0.0}
        place |= {"ncols": ceil(len(handles) / MAX_ENTRIES), "columnspacing": 1.0}
        ax.legend(handles=handles, loc="upper left", **place)


def _groups(study: Validation, every: Sequence[TimeComparison]) -> dict[str, list[TimeComparison]]:
    """Group points by cluster, or if there are many by network, the fastest first."""
    names = [name for name in study.clusters if any(p.cluster == name for p in every)]
    if len(names) <= MAX_CLUSTERS:
        return {name: [p for p in every if p.cluster == name] for name in names}
    groups = {name: [p for p in every if p.joined == key] for key, name in NETWORKS.items()}
    return {name: points for name, points in groups.items() if points}


def _draw_band(ax: Axes, low: float, high: float) -> None:
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(low, high)
    ax.set_ylim(low, high)
    ends = [low, high]
    least, most = [x * (1 - BAND) for x in ends], [x * (1 + BAND) for x in ends]
    ax.fill_between(ends, least, most, color=theme.FAINT, linewidth=0, zorder=1.5)
    ax.plot(ends, ends, "--", color=theme.MUTED, linewidth=theme.THIN_WIDTH, zorder=2)


def _percent(error: float) -> float:
    return 100 * min(max(error, -MAX_ERROR), MAX_ERROR)


def _draw(
    ax: Axes,
    points: Sequence[TimeComparison],
    x: Sequence[float],
    y: Sequence[float],
    look: tuple[str, str],
) -> None:
    """Draw a cluster's points: predicted ones filled, above those of the calibration."""
    color, marker = look
    full: dict[str, Any] = {"ms": theme.MARKER_SIZE, "mfc": color, "mec": "white", "mew": 0.4}
    hollow = {"ms": theme.MARKER_SIZE - 1.0, "mfc": "white", "mec": color, "mew": 0.7}
    for is_predicted, markers in ((False, hollow | {"zorder": 3}), (True, full | {"zorder": 4})):
        chosen = [i for i, point in enumerate(points) if point.is_predicted == is_predicted]
        at = [x[i] for i in chosen], [y[i] for i in chosen]
        ax.plot(*at, marker, color=color, **markers)


def _measured_handles(study: Validation, groups: dict[str, list[TimeComparison]]) -> list[Line2D]:
    """Make the legend: groups with mean errors, hollow markers, and the band."""
    handles = []
    means = {found.name: found.mean_error for found in study.collective_summaries()}
    means |= {found.name: found.mean_error for found in study.step_summaries()}
    for number, (name, points) in enumerate(groups.items()):
        color, marker = theme.look(number)
        errors = [abs(point.error) for point in points if point.is_predicted]
        mean = means[name] if name in means else sum(errors) / len(errors) if errors else None
        text = "" if mean is None else f": {mean:.1%}".replace("%", " %")
        handles.append(Line2D([], [], color=color, marker=marker, ls="", label=f"{name}{text}"))
    if not all(point.is_predicted for points in groups.values() for point in points):
        look: dict[str, Any] = {"marker": "o", "mfc": "white", "ls": ""}
        handles.append(Line2D([], [], color=theme.MUTED, label="calibration", **look))
    band = f"within {BAND:.0%}".replace("%", " %")
    handles.append(Line2D([], [], color=theme.FAINT, linewidth=7, label=band))
    return handles
