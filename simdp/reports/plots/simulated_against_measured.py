"""Every simulated time against the measured one, and its error."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from simdp.reports import theme
from simdp.reports.plots.base import Plot
from simdp.results.validation import Comparison, Validation

BAND = 0.10
"""The error that the band marks."""

NUM_ROWS = 18
"""Its height, in rows of bars."""

MAX_ENTRIES = 18
"""Lines of the legend that the upper panel is high enough for."""

MAX_CLUSTERS = 8
"""Clusters that have a colour each; more are grouped by the class of their network."""

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
"""Names of the classes of `simdp.collectives.costs.pool`, as the legend shows them."""

MAX_ERROR = 0.5
"""Largest error of the lower panel; what is beyond is drawn at its edge."""


class SimulatedAgainstMeasured(Plot[Validation]):
    """How far simulated times lie from measured ones, by cluster."""

    kind = "simulated_against_measured"
    reads = Validation
    needs = "a measured point"
    num_axes = 2

    def fits(self, study: Validation) -> bool:
        """Tell whether there is a point."""
        return bool(study.points or study.rows)

    def num_rows(self, study: Validation) -> int:
        """Count as many as make the upper panel as high as it is wide, nearly."""
        return NUM_ROWS

    def draw(self, study: Validation, *axes: Axes) -> None:
        """Draw on two panels; see `Plot.draw`."""
        ax, bottom = axes
        every: Sequence[Comparison] = (*study.points, *study.rows)
        unit, per_second = theme.time_unit(max(point.measured for point in every))
        values = [time * per_second for p in every for time in (p.measured, p.simulated)]
        low, high = min(values) / 1.3, max(values) * 1.3
        _draw_band(ax, low, high)
        groups = _groups(study, every)
        for number, here in enumerate(groups.values()):
            measured = [point.measured * per_second for point in here]
            _draw(ax, here, measured, [p.simulated * per_second for p in here], _look(number))
            _draw(bottom, here, measured, [_percent(p.error) for p in here], _look(number))
        what = "step" if study.points else "collective"
        what = "step and collective" if study.points and study.rows else what
        ax.set_title(f"Simulated against measured {what} times")
        _error_axis(bottom, every)
        bottom.set_xscale("log")
        for axis, word in (
            (ax.xaxis, "Measured"),
            (bottom.xaxis, "Measured"),
            (ax.yaxis, "Simulated"),
        ):
            axis.set_major_locator(LogLocator(10, subs=(1,) if high / low > 500 else (1, 2, 5)))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
            axis.set_minor_locator(NullLocator())
            axis.set_label_text(f"{word} time [{unit}]")
        ax.tick_params(labelbottom=True)
        handles = _handles(study, groups)
        ax.legend(
            handles=handles,
            loc="upper left",
            bbox_to_anchor=(1.01, 1.0),
            borderaxespad=0.0,
            ncols=ceil(len(handles) / MAX_ENTRIES),
            columnspacing=1.0,
        )


def _groups(study: Validation, every: Sequence[Comparison]) -> dict[str, list[Comparison]]:
    """Points by cluster; of many clusters by what joins their ranks, the fastest first."""
    names = [name for name in study.clusters if any(p.cluster == name for p in every)]
    if len(names) <= MAX_CLUSTERS:
        return {name: [p for p in every if p.cluster == name] for name in names}
    groups = {name: [p for p in every if p.joined == key] for key, name in NETWORKS.items()}
    return {name: points for name, points in groups.items() if points}


def _look(number: int) -> tuple[str, str]:
    """Colour and marker of a cluster; both change from one to the next."""
    return theme.look(number)


def _draw_band(ax: Axes, low: float, high: float) -> None:
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(low, high)
    ax.set_ylim(low, high)
    ends = [low, high]
    ax.fill_between(
        ends,
        [x * (1 - BAND) for x in ends],
        [x * (1 + BAND) for x in ends],
        color=theme.FAINT,
        linewidth=0,
        zorder=1.5,
    )
    ax.plot(ends, ends, "--", color=theme.MUTED, linewidth=theme.THIN_WIDTH, zorder=2)


def _percent(error: float) -> float:
    return 100 * min(max(error, -MAX_ERROR), MAX_ERROR)


def _error_axis(ax: Axes, points: Sequence[Comparison]) -> None:
    most = max([BAND, *(abs(_percent(point.error)) / 100 for point in points)]) * 110
    ax.axhspan(-100 * BAND, 100 * BAND, color=theme.FAINT, linewidth=0, zorder=1.5)
    ax.axhline(0, linestyle="--", color=theme.MUTED, linewidth=theme.THIN_WIDTH, zorder=2)
    ax.set_ylim(-most, most)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+.0f}" if value else "0"))
    ax.set_ylabel("Error of the simulated time [%]")


def _draw(
    ax: Axes,
    points: Sequence[Comparison],
    x: Sequence[float],
    y: Sequence[float],
    look: tuple[str, str],
) -> None:
    """Draw points of a cluster: those that are predicted filled, above those of the calibration."""
    color, marker = look
    for is_predicted in (False, True):
        chosen = [i for i, point in enumerate(points) if point.is_predicted == is_predicted]
        ax.plot(
            [x[i] for i in chosen],
            [y[i] for i in chosen],
            marker,
            color=color,
            markersize=theme.MARKER_SIZE - (0.0 if is_predicted else 1.0),
            markerfacecolor=color if is_predicted else "white",
            markeredgecolor="white" if is_predicted else color,
            markeredgewidth=0.4 if is_predicted else 0.7,
            zorder=4 if is_predicted else 3,
        )


def _handles(study: Validation, groups: dict[str, list[Comparison]]) -> list[Line2D]:
    """Name each group with its mean error, then hollow markers and the band."""
    handles = []
    means = {found.name: found.mean_error for found in study.collective_summaries()}
    means |= {found.name: found.mean_error for found in study.step_summaries()}
    for number, (name, points) in enumerate(groups.items()):
        color, marker = _look(number)
        errors = [abs(point.error) for point in points if point.is_predicted]
        mean = means[name] if name in means else sum(errors) / len(errors) if errors else None
        text = "" if mean is None else f": {mean:.1%}".replace("%", " %")
        handles.append(Line2D([], [], color=color, marker=marker, ls="", label=f"{name}{text}"))
    if not all(point.is_predicted for points in groups.values() for point in points):
        handles.append(
            Line2D([], [], color=theme.MUTED, marker="o", mfc="white", ls="", label="calibration")
        )
    band = f"within {BAND:.0%}".replace("%", " %")
    handles.append(Line2D([], [], color=theme.FAINT, linewidth=7, label=band))
    return handles
