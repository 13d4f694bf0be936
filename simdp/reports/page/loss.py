"""The section of how the loss falls: the mean over ranks in their range, or a line per point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from simdp.arrays import Floats
from simdp.reports.figures import number
from simdp.reports.page.sections import Axis, Chart, Series
from simdp.reports.plots.labels import evenly, point_names
from simdp.reports.plots.loss import LOG_RATIO, MAX_LINES, floats, loss_label
from simdp.results.result import Result, Study


def loss(study: Study) -> list[Chart]:
    """Make the section; none without numerics."""
    points = [point for point in study.points if point.metrics.get("loss")]
    if not points:
        return []
    chosen = evenly(len(points), MAX_LINES)
    names = point_names(points)
    series = [_line(points[i], names[i], len(points) == 1) for i in chosen]
    left_out = len(points) - len(chosen)
    return [
        Chart(
            "Loss",
            Axis("Step [number, from 1]"),
            Axis(loss_label(study), _scale(points)),
            series,
            said=_said(points),
            note=f"{left_out} of {len(points)} points are left out." if left_out else "",
        )
    ]


def _said(points: Sequence[Result]) -> str:
    if len(points) > 1:
        return f"How the loss falls at {len(points)} points."
    first, last = (points[0].metrics["loss"][at] for at in (0, -1))
    text = f"The mean over ranks, from {number(first)} to {number(last)}"
    return text + "; the band reaches over all ranks." * bool(points[0].metrics["loss_per_rank"])


def _line(point: Result, name: str, alone: bool) -> Series:
    values = point.metrics["loss"]
    low: list[float | None] = []
    high: list[float | None] = []
    if alone and point.metrics.get("loss_per_rank"):
        ranks = floats(point.metrics["loss_per_rank"])
        there = np.isfinite(ranks).any(axis=1)
        low, high = (_where(np.where(there, ends, np.nan)) for ends in _ends(ranks))
    steps = list(range(1, len(values) + 1))
    return Series(name or "mean over ranks", steps, _where(floats(values)), low=low, high=high)


def _ends(ranks: Floats) -> tuple[Floats, Floats]:
    """The least and the most of each step, of those that are finite."""
    least = np.where(np.isfinite(ranks), ranks, np.inf).min(axis=1)
    most = np.where(np.isfinite(ranks), ranks, -np.inf).max(axis=1)
    return least, most


def _where(values: Floats) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]


def _scale(points: Sequence[Result]) -> Literal["value", "log"]:
    """A loss that falls far has a logarithmic axis, as in the picture of it."""
    values = np.concatenate([floats(point.metrics["loss"]) for point in points])
    values = values[np.isfinite(values)]
    falls_far = len(values) and values.min() > 0 and values.max() / values.min() >= LOG_RATIO
    return "log" if falls_far else "value"
