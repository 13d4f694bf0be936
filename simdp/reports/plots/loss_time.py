"""Loss against time: what a faster step is worth that learns less, or later."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from simdp.arrays import Floats
from simdp.reports import theme
from simdp.reports.captions import about, about_point
from simdp.reports.plots.base import Plot
from simdp.reports.plots.headings import entitle
from simdp.reports.plots.labels import End, evenly, label_ends, point_names
from simdp.reports.plots.loss import MAX_RANKS, choose_scale, draw_line, floats, loss_label
from simdp.results.result import Result, Study

MAX_LINES = len(theme.SERIES)
"""Lines; of more points some are left out."""

LEAST_DIFFERENCE = 0.02
"""Part by which times and losses of points must differ for the plot to say more than `loss`."""


class LossTime(Plot[Study]):
    """How far the loss has fallen when: a line per point, or per rank where ranks do not wait."""

    kind = "loss_time"
    reads = Study
    needs = "points whose losses and times differ, or ranks that do not wait for each other"

    def fits(self, study: Study) -> bool:
        """Tell whether time orders losses differently than steps do."""
        points = _timed(study)
        if len(points) == 1 == len(study.points):
            return _is_apart(points[0])
        times = [float(_ends(point).max()) for point in points]
        losses = [float(floats(point.metrics["loss"])[-1]) for point in points]
        return len(points) > 1 and _differ(times) and _differ(losses)

    def draw(self, study: Study, *axes: Axes) -> None:
        """Draw on one panel; see `Plot.draw`."""
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
            loss = floats(point.metrics["loss"])
            instants = _ends(point).mean(axis=0)[: len(loss)] * per_second
            ends.append(draw_line(ax, instants, loss, name, number, len(points)))
        ax.set_xlim(0, longest * per_second * 1.03)
        choose_scale(ax, [floats(point.metrics["loss"]) for point in points])
        label_ends(ax, [end for end in ends if np.isfinite(end.y)])


def _timed(study: Study) -> list[Result]:
    return [point for point in study.points if point.metrics.get("loss") and _has_ends(point)]


def _has_ends(point: Result) -> bool:
    return point.step_ends is not None and point.step_ends.shape[1] > len(point.metrics["loss"])


def _ends(point: Result) -> Floats:
    """When ranks are done with each step, shape `(world_size, num_steps)` [s]."""
    assert point.step_ends is not None
    return point.step_ends[:, 1:]


def _is_apart(point: Result) -> bool:
    """Whether ranks end the last steps at times further apart than a step is long."""
    ends = _ends(point)
    step = float(point.metrics.get("step_time_s") or 0.0)
    return bool(np.ptp(ends[:, -1]) > 2 * step > 0)


def _differ(values: list[float]) -> bool:
    array = np.array(values)
    if not np.isfinite(array).all():
        return True
    return bool(np.ptp(array) > LEAST_DIFFERENCE * np.abs(array).max())


def _draw_ranks(ax: Axes, point: Result, per_second: float) -> list[End]:
    """Draw each rank's own loss when it was done with a step."""
    per_rank = floats(point.metrics.get("loss_per_rank") or [])
    if per_rank.ndim != 2 or per_rank.shape[1] < 2:
        return []
    n, ends = per_rank.shape[1], _ends(point)
    shown = evenly(n, MAX_RANKS)
    lines = [
        np.stack([ends[rank, : len(per_rank)] * per_second, per_rank[:, rank]], axis=1)
        for rank in shown
    ]
    color = theme.SERIES[2]
    thin = LineCollection(lines, colors=color, linewidths=theme.THIN_WIDTH, alpha=0.8)
    ax.add_collection(thin)
    last = max(lines, key=lambda line: float(line[-1, 0]))[-1]
    text = f"each of {n} ranks" if n <= MAX_RANKS else f"{MAX_RANKS} of {n} ranks"
    return [End(text, float(last[0]), float(last[1]), color)]
