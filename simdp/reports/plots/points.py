"""Points of a sweep side by side, where no axis has a place for what they set."""

from __future__ import annotations

from matplotlib.axes import Axes

from simdp.reports.captions import about
from simdp.reports.plots.base import Plot
from simdp.reports.plots.headings import entitle
from simdp.reports.plots.labels import key_label, point_names, wrapped
from simdp.reports.plots.memory_parts import capacity, device_ranks
from simdp.reports.plots.scaling import ScalingCurve
from simdp.reports.plots.step_parts import MAX_ROWS, draw_points, shown_points
from simdp.reports.plots.sweep import SweepCurve
from simdp.results.comparison import ComparedPoint, written
from simdp.results.result import Result, Study

MOST_LETTERS = 400
"""Letters of a name that is broken into lines; only longer ones are cut."""


class PointBars(Plot[Study]):
    """Every point's step in parts, and beside it the memory of its fullest device."""

    kind = "points"
    reads = Study
    needs = "a sweep over other keys than numbers and cluster.world_size"
    num_axes = 2
    widths = (1.9, 1.0)

    def fits(self, study: Study) -> bool:
        """Tell whether there are points that no other plot of sweeps shows."""
        timed = [point for point in study.points if point.metrics.get("step_time_s")]
        shown = ScalingCurve().fits(study) or SweepCurve().fits(study)
        return len(timed) > 1 and not shown

    def num_rows(self, study: Study) -> int:
        """Count the points that are shown; names of three lines and more need higher rows."""
        lines = max(name.count("\n") + 1 for name in _names(study))
        return min(len(study.points), MAX_ROWS) * -(-lines // 2)

    def draw(self, study: Study, *axes: Axes) -> None:
        """Draw on two panels; see `Plot.draw`."""
        left, right = axes
        every = [_compared(point) for point in study.points]
        points = shown_points(every)
        names = _names(study)
        chosen = [names[every.index(point)] for point in points]
        hidden = len(every) - len(points)
        said = f"{len(points)} of {len(every)} points are shown" if hidden else ""
        draw_points(left, right, points, chosen, said)
        keys = study.points[0].set
        left.set_ylabel(", ".join(dict.fromkeys(key_label(k, study.scenario) for k in keys)))
        entitle(left, "What a step is made of", about(study), rows=1)


def _names(study: Study) -> list[str]:
    """Name the rows, whole: the axis names a single key."""
    if len(study.points[0].set) == 1:
        return [wrapped(written(*point.set.values())) for point in study.points]
    return [wrapped(name or "-") for name in point_names(study.points, limit=MOST_LETTERS)]


def _compared(point: Result) -> ComparedPoint:
    """Read a point; of devices the one that has the least room left for its size."""
    peaks = point.metrics["peak_memory_bytes"]
    held = {
        (sum(peaks[r] for r in device_ranks(point, rank)), capacity(point, rank))
        for rank in _unlike(point, peaks)
    }
    kept, room = max(held, key=lambda pair: pair[0] / pair[1])
    return ComparedPoint(
        point.set,
        world_size=point.world_size,
        metrics=point.metrics,
        device_bytes=kept,
        capacity_bytes=room,
    )


def _unlike(point: Result, peaks: list[int]) -> list[int]:
    """First rank of each device, but of those that keep the same on equal ones only one."""
    firsts = [r for r in range(point.world_size) if device_ranks(point, r)[0] == r]
    if isinstance(point.scenario["cluster"].get("device"), list):
        return firsts
    kept = {sum(peaks[r] for r in device_ranks(point, first)): first for first in firsts}
    return [kept[max(kept)]]
