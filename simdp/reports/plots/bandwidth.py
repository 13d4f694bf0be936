"""Bus bandwidth of a collective against its size; where ``auto`` turns to another algorithm."""

from __future__ import annotations

from itertools import pairwise
from math import log2

from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke

from simdp.reports import theme
from simdp.reports.plots.base import Plot
from simdp.reports.plots.collective_curves import Line, draw_lines, log_axis, size_axis
from simdp.reports.plots.headings import entitle
from simdp.reports.plots.labels import End, evenly, label_ends
from simdp.results.collective import CollectiveCurve, CollectivePoint, CollectiveStudy

MAX_LINES = 6
"""Lines; of more world sizes some are left out."""

_POINTS = 72 * theme.WIDTH * 0.7
"""Width of the panel."""


class Bandwidth(Plot[CollectiveStudy]):
    """How well the links are used: a line per algorithm and world size."""

    kind = "bandwidth"
    reads = CollectiveStudy
    needs = "a collective that moves data, at two sizes or more"

    def fits(self, study: CollectiveStudy) -> bool:
        """Tell whether there are two bandwidths or more to join."""
        return any(len(line.x) > 1 for line in _lines(study))

    def draw(self, study: CollectiveStudy, *axes: Axes) -> None:
        """Draw on one panel; see `Plot.draw`."""
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
            thin = _candidates(study, auto)
            ends += _draw_thin(ax, thin)
            values += [value for line in thin for value in line.y]
        measured = _measured(study, curve)
        if measured is not None:
            ends.append(_draw_measured(ax, measured))
            values += measured.y
        size_axis(ax, sorted({nbytes for line in lines for nbytes in line.x}))
        shown = auto.crossovers() if auto else []
        log_axis(ax, values, above=0.16 if shown else 0.05)
        ax.set_ylabel("Bus bandwidth [GB/s]")
        label_ends(ax, ends)
        if auto is not None and shown:
            _mark_crossovers(ax, auto)


def _world_sizes(study: CollectiveStudy) -> list[int]:
    """World sizes that are shown: all, or some that are spread over them."""
    every = sorted({curve.world_size for curve in study.curves})
    num_algorithms = len(study.curves) // len(every)
    return [every[i] for i in evenly(len(every), max(MAX_LINES // num_algorithms, 1))]


def _said(study: CollectiveStudy) -> str:
    """What the title says of the world sizes."""
    shown, every = _world_sizes(study), {curve.world_size for curve in study.curves}
    if len(every) == 1:
        return f", {shown[0]} GPU{'s' * (shown[0] > 1)}"
    return f"; {len(shown)} of {len(every)} world sizes" if len(shown) < len(every) else ""


def _lines(study: CollectiveStudy) -> list[Line]:
    """A line per curve with bandwidths, coloured by what differs."""
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
) -> Line:
    found = [(nbytes, study.busbw(nbytes, seconds, world_size)) for nbytes, seconds in times]
    shown = [(float(nbytes), busbw / 1e9) for nbytes, busbw in found if busbw]
    return Line(name, [x for x, _ in shown], [y for _, y in shown], color, marker)


def _candidates(study: CollectiveStudy, curve: CollectiveCurve) -> list[Line]:
    """What each candidate was predicted to reach; too long ones are not predicted at all sizes."""
    names = dict.fromkeys(name for point in curve.points for name in point.candidates)
    return [
        _line(
            study,
            name,
            [(p.nbytes, p.candidates[name]) for p in curve.points if name in p.candidates],
            curve.world_size,
        )
        for name in names
    ]


def _draw_thin(ax: Axes, lines: list[Line]) -> list[End]:
    for line in lines:
        ax.plot(line.x, line.y, color=theme.WAIT, linewidth=theme.THIN_WIDTH * 1.5, zorder=2)
    return [End(line.name, line.x[-1], line.y[-1], theme.WAIT) for line in lines]


def _draw_interval(ax: Axes, study: CollectiveStudy, curve: CollectiveCurve) -> list[float]:
    """Shade the 90 % interval of the only line, and return its edges."""
    ends = [(p.nbytes, p.low, p.high) for p in curve.points if p.low and p.high]
    most, least = (
        _line(study, "", [(end[0], end[side]) for end in ends], curve.world_size) for side in (1, 2)
    )
    if not ends:
        return []
    ax.fill_between(least.x, least.y, most.y, color=theme.COMM, alpha=0.15, linewidth=0, zorder=1)
    ax.annotate(
        "90 % interval",
        (least.x[len(least.x) // 2], least.y[len(least.x) // 2]),
        (0, -4),
        textcoords="offset points",
        ha="left",
        va="top",
        fontsize=theme.SMALL_SIZE,
        color=theme.MUTED,
    )
    return least.y + most.y


def _measured(study: CollectiveStudy, curve: CollectiveCurve) -> Line | None:
    times = [(p.nbytes, p.measured) for p in curve.points if p.measured is not None]
    line = _line(study, "measured", times, curve.world_size)
    return line if line.x else None


def _draw_measured(ax: Axes, line: Line) -> End:
    """Draw open circles, over everything."""
    ax.plot(
        line.x,
        line.y,
        "o",
        color=theme.INK,
        markerfacecolor="none",
        markersize=theme.MARKER_SIZE + 1.5,
        markeredgewidth=1.3,
        zorder=4,
    )
    return End("measured", line.x[-1], line.y[-1], theme.INK, "o", is_open=True)


# Crossovers --------------------------------------------------------------------------------------


def _mark_crossovers(ax: Axes, curve: CollectiveCurve) -> None:
    """Draw a line where ``auto`` turns to another algorithm, and name those on top."""
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
        ax.text(
            (left * right) ** 0.5,
            0.985,
            text,
            transform=ax.get_xaxis_transform(),
            ha="center",
            va="top",
            fontsize=theme.SMALL_SIZE,
            color=theme.MUTED,
            path_effects=[withStroke(linewidth=2.5, foreground="white")],
            in_layout=False,
        )


def _fits(text: str, room: float) -> bool:
    return max(theme.text_width(part, theme.SMALL_SIZE) for part in text.split("\n")) + 4 <= room


def _meeting(before: CollectivePoint, after: CollectivePoint) -> float:
    """Size at which both algorithms take the same time, on straight lines between two sizes."""
    old, new = before.algorithm, after.algorithm
    if not all({old, new} <= {*point.candidates} for point in (before, after)):
        return float(after.nbytes)
    gain = [log2(p.candidates[old] / p.candidates[new]) for p in (before, after)]
    part = gain[0] / (gain[0] - gain[1]) if gain[0] < gain[1] else 1.0
    return float(before.nbytes * (after.nbytes / before.nbytes) ** part)
