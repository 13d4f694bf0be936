"""Step time, throughput and efficiency against world size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from simdp.arrays import Floats
from simdp.reports import theme
from simdp.reports.captions import about
from simdp.reports.plots import labels
from simdp.reports.plots.labels import End, Plot, entitle, evenly, label_ends, point_names
from simdp.results.result import Result, Study

AXIS = "cluster.world_size"
MAX_LINES = 6  # lines; of more some are dropped
MAX_BANDS = 2  # most lines with bands of intervals
BESIDE = 0.008  # distance of two lines' bars at one world size, as a part of the axis
MOST_ABOVE = 2.5  # highest end of an interval, in longest steps


class Curve(NamedTuple):
    """Points of a sweep that differ in world size only, in its order."""

    name: str  # other settings
    world_size: Floats  # all arrays: shape `(num_points,)`
    step_time: Floats  # [s]
    throughput: Floats  # [samples/s]
    low: Floats  # of the step's 90 % interval [s]; NaN if unknown
    high: Floats  # likewise

    @property
    def has_interval(self) -> bool:
        """Return whether a point has an interval."""
        return bool(np.isfinite(self.high).any())

    @property
    def throughput_ends(self) -> tuple[Floats, Floats]:
        """Throughput at the ends of the steps' intervals, the lower one first [samples/s]."""
        samples, low = self.throughput * self.step_time, np.where(self.low > 0, self.low, np.nan)
        return np.asarray(samples / self.high), np.asarray(samples / low)

    @property
    def efficiency(self) -> Floats:
        """Throughput per rank over that of the smallest world size."""
        per_rank = self.throughput / self.world_size
        return np.asarray(per_rank / per_rank[0])

    @property
    def ideal_step_time(self) -> Floats:
        """Step time with linear scaling of throughput [s]."""
        return np.asarray(self.step_time * self.efficiency)

    @property
    def ideal_throughput(self) -> Floats:
        """Linear scaling from the smallest world size [samples/s]."""
        return np.asarray(self.throughput / self.efficiency)


class ScalingCurve(Plot[Study]):
    """Step time, throughput and scaling efficiency by world size, beside linear scaling."""

    kind = "scaling"
    reads = Study
    needs = f"a sweep over {AXIS} alone, or with three of its values or more"
    num_axes = 3

    def fits(self, study: Study) -> bool:
        return is_about_scaling(study, curves_of(study))

    def draw(self, study: Study, *axes: Axes) -> None:
        top, middle, bottom = axes
        every = [curve for curve in curves_of(study) if len(curve.world_size)]
        curves = [every[i] for i in evenly(len(every), MAX_LINES)]
        sizes = sorted({int(n) for curve in curves for n in curve.world_size})
        left_out = f"; {len(curves)} of {len(every)} lines" if len(curves) < len(every) else ""
        entitle(top, f"Scaling from {sizes[0]} to {sizes[-1]} GPUs{left_out}", about(study))
        for ax in axes:
            labels.log2_axis(ax, sizes, _apart(sizes, 24))
            ax.tick_params(labelbottom=True)
        longest = max(float(curve.step_time.max()) for curve in curves)
        unit, per_second = theme.time_unit(longest)
        top.set_ylabel(f"Step time [{unit}]")
        times = [curve.step_time * per_second for curve in curves]
        ideal = [curve.ideal_step_time * per_second for curve in curves]
        ends = _draw_curves(top, curves, times, ideal, min)
        scaled = [(curve.low * per_second, curve.high * per_second) for curve in curves]
        _draw_intervals(top, curves, scaled)
        highest = np.nanmax(
            [longest, *(np.nanmax(curve.high) for curve in curves if curve.has_interval)]
        )
        top.set_ylim(0, min(highest, MOST_ABOVE * longest) * per_second * 1.12)
        label_ends(top, ends)

        middle.set_ylabel("Throughput [samples/s]")
        rates = [curve.throughput for curve in curves]
        ideal = [curve.ideal_throughput for curve in curves]
        ends = _draw_curves(middle, curves, rates, ideal, max)
        _draw_intervals(middle, curves, [curve.throughput_ends for curve in curves])
        _throughput_axis(middle, curves)
        label_ends(middle, ends)

        bottom.set_title(
            f"Scaling efficiency: throughput per GPU over that of {sizes[0]}"
            f" GPU{'s' * (sizes[0] != 1)}",
            fontsize=theme.TEXT_SIZE,
            fontweight="normal",
        )
        bottom.set_ylabel("Scaling efficiency [%]")
        percents = [100 * curve.efficiency for curve in curves]
        ends = _draw_curves(bottom, curves, percents, [np.full_like(e, 100) for e in percents], max)
        bottom.set_ylim(0, max(100.0, *(float(each.max()) for each in percents)) * 1.12)
        bottom.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
        if len(curves) == 1:
            _label_efficiency(bottom, curves[0], percents[0], sizes)
        label_ends(bottom, ends)


def is_about_scaling(study: Study, curves: list[Curve]) -> bool:
    """Return whether a sweep's points make a scaling curve.

    Two world sizes are enough if nothing else is swept. Otherwise they compare one GPU, or one
    node, with several, which the plot `points` shows.
    """
    alone = all(len(point.set) == 1 for point in study.points)
    return any(len(curve.world_size) > (1 if alone else 2) for curve in curves)


def curves_of(study: Study) -> list[Curve]:
    """Group a sweep's points over world sizes into curves, in the order of the sweep."""
    points = [
        point
        for point in study.points
        if AXIS in point.set
        and point.metrics.step_time_s
        and point.metrics.throughput_samples_per_s
    ]
    groups: dict[str, dict[int, Result]] = {}
    names: dict[str, str] = {}
    for point, name in zip(points, point_names(points, leave_out=AXIS), strict=True):
        rest = repr({key: value for key, value in point.set.items() if key != AXIS})
        groups.setdefault(rest, {})[point.world_size] = point
        names[rest] = name
    return [
        Curve(
            names[rest],
            np.array(sorted(group), dtype=np.float64),
            _column(group, "step_time_s"),
            _column(group, "throughput_samples_per_s"),
            *_ends(group),
        )
        for rest, group in groups.items()
    ]


def _column(group: dict[int, Result], metric: str) -> Floats:
    return np.array([group[n].metrics[metric] for n in sorted(group)], dtype=np.float64)


def _ends(group: dict[int, Result]) -> tuple[Floats, Floats]:
    """Read both ends of the 90 % intervals of some points' steps [s]."""
    ends = [group[n].metrics.interval_s or (np.nan, np.nan) for n in sorted(group)]
    low, high = np.array(ends, dtype=np.float64).T
    return low, high


def _draw_intervals(ax: Axes, curves: list[Curve], ends: Sequence[tuple[Floats, Floats]]) -> None:
    """Draw intervals of step times or throughputs, bars of several lines beside each other."""
    span = max(float(curve.world_size[-1] / curve.world_size[0]) for curve in curves)
    middle = (len(curves) - 1) / 2
    bars = [curve.world_size * span ** (BESIDE * (i - middle)) for i, curve in enumerate(curves)]
    draw_intervals(ax, [curve.world_size for curve in curves], bars, ends)


def draw_intervals(
    ax: Axes,
    places: Sequence[Floats],
    bars: Sequence[Floats],
    ends: Sequence[tuple[Floats, Floats]],
) -> None:
    """Draw a bar at each point with an interval, and a band for few lines.

    ``places`` are those of the points of each line, ``bars`` those of their bars; ``ends`` are NaN
    if unknown.
    """
    if not any(np.isfinite(high).any() for _, high in ends):
        return
    is_banded = len(places) <= MAX_BANDS
    for number, (x, at, (low, high)) in enumerate(zip(places, bars, ends, strict=True)):
        color = theme.look(number)[0]
        if is_banded:
            ax.fill_between(x, low, high, color=color, alpha=0.13, linewidth=0, zorder=1)
        ax.vlines(at, low, high, colors=color, linewidth=1.1, zorder=2.5)
        for end in (low, high):
            ax.plot(at, end, "_", color=color, markersize=6, markeredgewidth=1.1, zorder=2.5)
    text = f"{'band' if is_banded else 'bars'}: 90 % interval"
    ax.text(0.012, 0.97, text, transform=ax.transAxes, va="top", zorder=6, **labels.PALE)


def _draw_curves(
    ax: Axes,
    curves: list[Curve],
    simulated: list[Floats],
    ideal: list[Floats],
    best: Callable[..., End],
) -> list[End]:
    """Draw simulated lines, solid with markers, over linear scaling, dashed."""
    ends, drawn = [], []
    one_ideal = all(
        len(line) == len(ideal[0]) and np.allclose(line, ideal[0], rtol=1e-9) for line in ideal
    )
    for number, (curve, line) in enumerate(zip(curves, ideal, strict=True)):
        if one_ideal and number:
            break
        color = theme.MUTED if one_ideal else theme.look(number)[0]
        ax.plot(curve.world_size, line, "--", color=color, linewidth=1.2, zorder=2)
        drawn.append(End("linear scaling", curve.world_size[-1], line[-1], color, dashed=True))
    # Ideals that differ have their line's colour; one label at the best of them names them all.
    ends.append(best(drawn, key=lambda end: end.y))
    for number, (curve, line) in enumerate(zip(curves, simulated, strict=True)):
        color, marker = theme.look(number)
        covered = sum(_coincide(line, later) for later in simulated[number + 1 :])
        ax.plot(
            curve.world_size, line, color=color, marker=marker, **theme.line_style(number, covered)
        )
        ends.append(End(curve.name or "simulated", curve.world_size[-1], line[-1], color, marker))
    return ends


def _coincide(a: Floats, b: Floats) -> bool:
    return len(a) == len(b) and np.allclose(a, b, rtol=0.01, atol=0)


def _apart(sizes: list[int], parts: int) -> list[int]:
    """Choose sizes, from the largest down, at least a part of the axis away from each other."""
    kept = sizes[-1:]
    for size in reversed(sizes[:-1]):
        if np.log2(kept[-1] / size) * parts >= np.log2(sizes[-1] / sizes[0]):
            kept.append(size)
    return kept[::-1]


def _throughput_axis(ax: Axes, curves: list[Curve]) -> None:
    """Make a log axis, on which linear scaling is a straight line."""
    values = np.concatenate(
        [
            *(curve.throughput for curve in curves),
            *(curve.ideal_throughput for curve in curves),
            *(end for curve in curves for end in curve.throughput_ends),
        ]
    )
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    margin = (high / low) ** 0.08
    low, high = low / margin, high * margin
    ax.set_yscale("log")
    ax.set_ylim(low, high)
    labels.ticks(ax.yaxis, labels.log_places(high / low), theme.short_number)


def _label_efficiency(ax: Axes, curve: Curve, percents: Floats, sizes: list[int]) -> None:
    """Write the efficiency below each point that has room for it."""
    look: dict[str, Any] = {"ha": "center", "va": "center", "path_effects": labels.HALO}
    for size in _apart(sizes, 14):
        (place,) = np.flatnonzero(curve.world_size == size)
        at, by = (size, float(percents[place])), (0.0, -1.3 * theme.SMALL_SIZE - 2)
        labels.note(ax, f"{percents[place]:.0f} %", at, by, zorder=5, **look)
