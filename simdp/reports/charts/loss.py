"""Charts of losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from simdp.arrays import Floats
from simdp.reports import theme
from simdp.reports.captions import about, about_point
from simdp.reports.charts.chart import Axis, Chart, Picture, Series
from simdp.reports.charts.names import differ, evenly, point_names
from simdp.reports.figures import number
from simdp.results.metrics import PerStep
from simdp.results.result import Result, Study

MAX_LINES, MAX_RANKS = len(theme.SERIES), 64  # lines of a sweep; thin lines of ranks
SKIPPED_GLYPH = "✖"  # steps whose gradients were not finite are crossed out
NEVER = ": never finite"  # end of the title without finite losses
LOG_RATIO = 30.0  # fall of the loss from which on the axis is logarithmic
_UNITS = {"cross_entropy": "nats", "mse": "target units squared"}


def loss(study: Study) -> Picture | None:
    """Show the loss by step."""
    charts = loss_by_step(study)
    if not charts:
        return None
    points = [point for point in study.points if point.metrics.loss]
    num_steps = max(len(point.metrics.loss or ()) for point in points)
    finite = any(np.isfinite(floats(point.metrics.loss)).any() for point in points)
    title = f"Loss over {num_steps} step{'s' * (num_steps != 1)}{NEVER * (not finite)}"
    if len(points) > MAX_LINES:
        title += f": {MAX_LINES} of {len(points)} points"
    if any(point.metrics.skipped_steps for point in points):
        title += f"; {SKIPPED_GLYPH} marks skipped ones"
    return Picture(title, about_point(points[0]) if len(points) == 1 else about(study), charts)


def loss_by_step(study: Study) -> list[Chart]:
    """Draw the loss; nothing without numerics."""
    points = [point for point in study.points if point.metrics.loss]
    if not points:
        return []
    chosen, names = evenly(len(points), MAX_LINES), point_names(points)
    left_out = len(points) - len(chosen)
    series = []
    for i in chosen:
        steps = np.arange(1.0, len(points[i].metrics.loss or ()) + 1)
        ranks = np.broadcast_to(steps, (points[i].world_size, len(steps)))
        series.append(_line(points[i], names[i], steps, ranks if len(points) == 1 else None))
    longest = max(len(line.x) for line in series)
    margin = 0.05 * max(longest - 1, 1)
    chart = Chart(
        "Loss",
        Axis("Step [number, from 1]", ends=(1 - margin, longest + margin)),
        _axis(study, points),
        series,
        caption=_sentence(points),
        note=f"{left_out} of {len(points)} points are left out." if left_out else "",
    )
    return [chart]


def _sentence(points: Sequence[Result]) -> str:
    if len(points) > 1:
        return f"How the loss falls at {len(points)} points."
    first, last = ((points[0].metrics.loss or [None])[at] for at in (0, -1))
    text = f"The mean over ranks, from {number(first)} to {number(last)}"
    return text + "; the band reaches over all ranks." * bool(points[0].metrics.loss_per_rank)


def _line(point: Result, name: str, at: Floats, at_ranks: Floats | None) -> Series:
    """Draw a point's mean loss; given the instants of each rank, with a line per rank below it.

    Skipped steps are crossed out, on the line or in its gap.
    """
    values, per_rank = (
        floats(point.metrics.loss),
        floats(point.metrics.loss_per_rank or []),
    )
    finite = np.flatnonzero(np.isfinite(values))
    has_ranks = at_ranks is not None and per_rank.ndim == 2 and per_rank.shape[1] > 1
    name = name or ("mean over ranks" if has_ranks else "")
    if len(finite) and finite[-1] + 1 < len(values):
        name += f"{', ' * bool(name)}not finite after step {finite[-1] + 1}"
    skipped = np.array(point.metrics.skipped_steps or [], dtype=np.int64)
    crosses = []
    if len(skipped) and len(finite):
        heights = np.interp(skipped - 1, finite, values[finite])
        crosses = list(zip(at[skipped - 1].tolist(), heights.tolist(), strict=True))
    line = Series(name, at, values, crosses=crosses)
    if at_ranks is None or not has_ranks:
        return line
    there, n = np.isfinite(per_rank).any(axis=1), per_rank.shape[1]
    low, high = (
        np.where(there, end, np.nan)
        for end in (
            np.where(np.isfinite(per_rank), per_rank, np.inf).min(axis=1),
            np.where(np.isfinite(per_rank), per_rank, -np.inf).max(axis=1),
        )
    )
    shown = f"each of {n}" if n <= MAX_RANKS else f"{MAX_RANKS} of {n}"
    lines = [
        np.stack([at_ranks[rank, : len(per_rank)], per_rank[:, rank]], axis=1)
        for rank in evenly(n, MAX_RANKS)
    ]
    return line._replace(low=low, high=high, members=lines, of_members=f"{shown} ranks")


def log_span(losses: Sequence[Floats]) -> float:
    """Return the ratio of the largest loss to the smallest if its axis is logarithmic, else 0."""
    values = np.concatenate(losses)
    values = values[np.isfinite(values)]
    if not len(values) or values.min() <= 0:
        return 0.0
    span = float(values.max() / values.min())
    return span if span >= LOG_RATIO else 0.0


def _axis(study: Study, points: Sequence[Result]) -> Axis:
    """Make the axis of losses, logarithmic if they fall far, with the unit of their kind."""
    content = study.scenario.get("workload", {}).get("loss")
    kind = content.get("kind") if isinstance(content, dict) else content
    label = f"Loss ({kind}) [{_UNITS[kind]}]" if kind in _UNITS else "Loss [the loss's own unit]"
    is_log = log_span([floats(point.metrics.loss) for point in points])
    scale: Literal["log", "value"] = "log" if is_log else "value"
    return Axis(label, scale, is_near=True)


def floats(values: PerStep | Sequence[PerStep]) -> Floats:
    """Make an array with NaN for None and infinite losses."""
    array = np.array(values or (), dtype=object).astype(np.float64)
    return np.where(np.isfinite(array), array, np.nan)


LEAST_DIFFERENCE = 0.02  # least relative difference of times and losses


def loss_time(study: Study) -> Picture | None:
    """Show the loss over time: a line per point, or per rank if ranks do not wait."""
    every = [
        point
        for point in study.points
        if (losses := point.metrics.loss) and point.step_ends is not None
        if point.step_ends.shape[1] > len(losses)
    ]
    if not _differ(study, every):
        return None
    chosen, names = evenly(len(every), MAX_LINES), point_names(every)
    points = [every[i] for i in chosen]
    longest = max(float(_ends(point).max()) for point in points)
    unit, per_second = theme.time_unit(longest)
    series = []
    for i, point in zip(chosen, points, strict=True):
        ends = _ends(point) * per_second
        at = ends.mean(axis=0)[: len(point.metrics.loss or ())]
        line = _line(point, names[i] or "mean over ranks", at, ends if len(points) == 1 else None)
        series.append(line._replace(crosses=()))
    chart = Chart(
        "Loss by time",
        Axis(f"Simulated time [{unit}]", unit=unit, from_zero=True),
        _axis(study, points),
        series,
    )
    left_out = f"; {len(points)} of {len(every)} points" if len(points) < len(every) else ""
    of = about_point(points[0]) if len(every) == 1 else about(study)
    return Picture(f"Loss by the time that it took{left_out}", of, [chart])


def _ends(point: Result) -> Floats:
    """Return the ends of each rank's steps, shape `(world_size, num_steps)` [s]."""
    assert point.step_ends is not None
    return point.step_ends[:, 1:]


def _differ(study: Study, points: Sequence[Result]) -> bool:
    """Return whether losses over time are not the losses by step again.

    Either points differ in times and losses, or the ranks of the only one end the last step more
    than two step times apart.
    """
    if len(points) == 1 == len(study.points):
        step = float(points[0].metrics.step_time_s or 0.0)
        return bool(np.ptp(_ends(points[0])[:, -1]) > 2 * step > 0)
    times = [float(_ends(point).max()) for point in points]
    losses = [float(floats(point.metrics.loss)[-1]) for point in points]
    both = (differ(values, LEAST_DIFFERENCE, True) for values in (times, losses))
    return len(points) > 1 and all(both)
