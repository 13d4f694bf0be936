"""Plots of losses."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.ticker import FixedLocator, MaxNLocator

from simdp.arrays import Floats, Ints
from simdp.reports import theme
from simdp.reports.captions import about, about_point
from simdp.reports.plots import labels
from simdp.reports.plots.labels import End, Plot, entitle, evenly, label_ends, point_names
from simdp.results.result import Result, Study

# lines of a sweep; thin lines of ranks; markers on a line
MAX_LINES, MAX_RANKS, MAX_MARKERS = len(theme.SERIES), 64, 12
# marker of a step whose gradients were not finite, and its letter
SKIPPED, SKIPPED_GLYPH = "X", "✖"
NEVER = ": never finite"  # end of the title without finite losses
LOG_RATIO = 30.0  # fall of the loss from which on the axis is logarithmic
_UNITS = {"cross_entropy": "nats", "mse": "target units squared"}


class LossCurve(Plot[Study]):
    """Loss by step."""

    kind = "loss"
    reads = Study
    needs = "a loss, that is, numerics"

    def fits(self, study: Study) -> bool:
        return any(point.metrics.loss for point in study.points)

    def draw(self, study: Study, *axes: Axes) -> None:
        (ax,) = axes
        points = [point for point in study.points if point.metrics.loss]
        num_steps = max(len(point.metrics.loss or ()) for point in points)
        finite = any(np.isfinite(floats(point.metrics.loss)).any() for point in points)
        title = f"Loss over {num_steps} step{'s' * (num_steps != 1)}{NEVER * (not finite)}"
        if len(points) > MAX_LINES:
            title += f": {MAX_LINES} of {len(points)} points"
        if any(point.metrics.skipped_steps for point in points):
            title += f"; {SKIPPED_GLYPH} marks skipped ones"
        entitle(ax, title, about_point(points[0]) if len(points) == 1 else about(study))
        ax.set_xlabel("Step [number, from 1]")
        ax.set_ylabel(loss_label(study))
        ends = _draw_one(ax, points[0]) if len(points) == 1 else _draw_sweep(ax, points)
        choose_scale(ax, [floats(point.metrics.loss) for point in points])
        _step_axis(ax, num_steps)
        label_ends(ax, [end for end in ends if end.text])


def _step_axis(ax: Axes, num_steps: int) -> None:
    """Show every step from 1 on, also those without a loss."""
    margin = 0.05 * max(num_steps - 1, 1)
    ax.set_xlim(1 - margin, num_steps + margin)
    ticks = MaxNLocator(8, integer=True, steps=[1, 2, 5, 10]).tick_values(1, num_steps)
    ax.xaxis.set_major_locator(FixedLocator([tick for tick in ticks if 1 <= tick <= num_steps]))


def _draw_one(ax: Axes, point: Result) -> list[End]:
    """Draw the mean over thin lines of the ranks."""
    mean, ends = floats(point.metrics.loss), []
    per_rank = floats(point.metrics.loss_per_rank or [])
    if per_rank.ndim == 2 and per_rank.shape[1] > 1:
        n = per_rank.shape[1]
        shown = per_rank[:, evenly(n, MAX_RANKS)]
        steps = np.broadcast_to(np.arange(1, len(shown) + 1)[:, np.newaxis], shown.shape)
        lines = np.stack([steps, shown], axis=2).swapaxes(0, 1)
        name = _draw_thin(ax, list(lines), n)
        last = shown[-1][np.isfinite(shown[-1])]
        if len(last):
            ends.append(End(name, len(shown), float(last.max()), theme.SERIES[2]))
    ends.append(draw_line(ax, _steps(mean), mean, "mean over ranks" if ends else ""))
    _mark_skipped(ax, point, mean, theme.SERIES[0])
    ax.autoscale_view()
    return [end for end in ends if np.isfinite(end.y)]


def _draw_thin(ax: Axes, lines: list[Floats], num_ranks: int) -> str:
    """Draw thin lines of ranks; return their name."""
    look = {"linewidths": theme.THIN_WIDTH, "alpha": 0.8}
    ax.add_collection(LineCollection(lines, colors=theme.SERIES[2], **look))
    shown = f"each of {num_ranks}" if num_ranks <= MAX_RANKS else f"{MAX_RANKS} of {num_ranks}"
    return f"{shown} ranks"


def _draw_sweep(ax: Axes, points: list[Result]) -> list[End]:
    """Draw a line per point; the markers of lines that coincide alternate."""
    chosen, names = evenly(len(points), MAX_LINES), point_names(points)
    losses = [floats(points[i].metrics.loss) for i in chosen]
    ends = []
    for number, loss in enumerate(losses):
        ends.append(draw_line(ax, _steps(loss), loss, names[chosen[number]], number, len(losses)))
        _mark_skipped(ax, points[chosen[number]], loss, theme.look(number)[0])
    return [end for end in ends if np.isfinite(end.y)]


def _steps(loss: Floats) -> Ints:
    return np.arange(1, len(loss) + 1)


def draw_line(
    ax: Axes, x: Floats | Ints, loss: Floats, name: str, number: int = 0, num_lines: int = 1
) -> End:
    """Draw one line of losses, with markers between those of the other lines."""
    color, marker = theme.look(number)
    every = max(-(-len(loss) // MAX_MARKERS), min(num_lines, len(loss)))
    marked = number * max(1, every // num_lines) % every, every
    look: dict[str, Any] = {"mec": "white", "mew": 0.6, "zorder": 3 + 0.01 * number}
    ax.plot(x, loss, color=color, marker=marker, markevery=marked, **look)
    finite = np.flatnonzero(np.isfinite(loss))
    last = int(finite[-1]) if len(finite) else 0
    if last + 1 < len(loss):
        name = f"{name + ', ' * bool(name)}not finite after step {last + 1}"
    return End(name, float(x[last]), float(loss[last]), color, marker)


def _mark_skipped(ax: Axes, point: Result, loss: Floats, color: str) -> None:
    """Cross out the steps without an update, on the line or in its gap."""
    skipped = np.array(point.metrics.skipped_steps or [], dtype=np.int64)
    finite = np.flatnonzero(np.isfinite(loss))
    if not len(skipped) or not len(finite):
        return
    y = np.interp(skipped - 1, finite, loss[finite])
    look: dict[str, Any] = {"ms": 1.6 * theme.MARKER_SIZE, "mec": "white", "mew": 0.6, "zorder": 4}
    ax.plot(skipped, y, color=color, marker=SKIPPED, ls="", **look)


def log_span(losses: list[Floats]) -> float:
    """Return the ratio of the largest loss to the smallest if its axis is logarithmic, else 0."""
    values = np.concatenate(losses)
    values = values[np.isfinite(values)]
    if not len(values) or values.min() <= 0:
        return 0.0
    span = float(values.max() / values.min())
    return span if span >= LOG_RATIO else 0.0


def choose_scale(ax: Axes, losses: list[Floats]) -> None:
    """Make the axis logarithmic if the loss falls far."""
    if span := log_span(losses):
        ax.set_yscale("log")
        labels.ticks(ax.yaxis, labels.log_places(span), "{:g}".format)


def loss_label(study: Study) -> str:
    """Write the axis label of losses, with the unit of their kind."""
    loss = study.scenario.get("workload", {}).get("loss")
    kind = loss.get("kind") if isinstance(loss, dict) else loss
    return f"Loss ({kind}) [{_UNITS[kind]}]" if kind in _UNITS else "Loss [the loss's own unit]"


def floats(values: Any) -> Floats:
    """Make an array with NaN for None and infinite losses."""
    array = np.array(values, dtype=object)
    array[array == None] = np.nan  # noqa: E711
    array = array.astype(np.float64)
    array[~np.isfinite(array)] = np.nan
    return array


LEAST_DIFFERENCE = 0.02  # least relative difference of times and losses


class LossTime(Plot[Study]):
    """The loss over time: a line per point, or per rank if ranks do not wait."""

    kind = "loss_time"
    reads = Study
    needs = "points with different losses and times, or ranks that do not wait for each other"

    def fits(self, study: Study) -> bool:
        points = _timed(study)
        if len(points) == 1 == len(study.points):
            return _is_apart(points[0])
        times = [float(_ends(point).max()) for point in points]
        losses = [float(floats(point.metrics.loss)[-1]) for point in points]
        both = (labels.differ(values, LEAST_DIFFERENCE, True) for values in (times, losses))
        return len(points) > 1 and all(both)

    def draw(self, study: Study, *axes: Axes) -> None:
        (ax,) = axes
        every = _timed(study)
        chosen = evenly(len(every), MAX_LINES)
        points, names = [every[i] for i in chosen], point_names(every)
        longest = max(float(_ends(point).max()) for point in points)
        unit, per_second = theme.time_unit(longest)
        left_out = f"; {len(points)} of {len(every)} points" if len(points) < len(every) else ""
        of = about_point(points[0]) if len(every) == 1 else about(study)
        entitle(ax, f"Loss by the time that it took{left_out}", of)
        ax.set_xlabel(f"Simulated time [{unit}]")
        ax.set_ylabel(loss_label(study))
        ends = []
        if len(points) == 1:
            ends += _draw_ranks(ax, points[0], per_second)
        for number, point in enumerate(points):
            name = names[chosen[number]] or "mean over ranks"
            loss = floats(point.metrics.loss)
            instants = _ends(point).mean(axis=0)[: len(loss)] * per_second
            ends.append(draw_line(ax, instants, loss, name, number, len(points)))
        ax.set_xlim(0, longest * per_second * 1.03)
        choose_scale(ax, [floats(point.metrics.loss) for point in points])
        label_ends(ax, [end for end in ends if np.isfinite(end.y)])


def _timed(study: Study) -> list[Result]:
    return [
        point
        for point in study.points
        if (loss := point.metrics.loss) and point.step_ends is not None
        if point.step_ends.shape[1] > len(loss)
    ]


def _ends(point: Result) -> Floats:
    """Return the ends of each rank's steps, shape `(world_size, num_steps)` [s]."""
    assert point.step_ends is not None
    return point.step_ends[:, 1:]


def _is_apart(point: Result) -> bool:
    """Return whether ranks end the last step more than two step times apart."""
    ends = _ends(point)
    step = float(point.metrics.step_time_s or 0.0)
    return bool(np.ptp(ends[:, -1]) > 2 * step > 0)


def _draw_ranks(ax: Axes, point: Result, per_second: float) -> list[End]:
    """Draw each rank's own loss at the ends of its steps."""
    per_rank = floats(point.metrics.loss_per_rank or [])
    if per_rank.ndim != 2 or per_rank.shape[1] < 2:
        return []
    n, ends = per_rank.shape[1], _ends(point)
    lines = [
        np.stack([ends[rank, : len(per_rank)] * per_second, per_rank[:, rank]], axis=1)
        for rank in evenly(n, MAX_RANKS)
    ]
    last = max(lines, key=lambda line: float(line[-1, 0]))[-1]
    return [End(_draw_thin(ax, lines, n), float(last[0]), float(last[1]), theme.SERIES[2])]
