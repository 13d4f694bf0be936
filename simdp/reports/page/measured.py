"""What a real machine did at points of a sweep over world sizes, beside the simulated curves."""

from __future__ import annotations

from simdp.reports import theme
from simdp.reports.page.sections import Series
from simdp.reports.plots.scaling import AXIS
from simdp.results.result import Result, Study
from simdp.scenario.measured import MeasuredPoint


def measured_times(study: Study, per_second: float) -> list[Series]:
    """Make points of the measured step times that belong to points of a sweep.

    Parameters
    ----------
    study : Study
        A sweep over world sizes, whose scenario may have ``measured``.
    per_second : float
        How many units of the axis make a second.

    Returns
    -------
    list of Series
        One, or none where nothing was measured.
    """
    content = (study.scenario.get("measured") or {}).get("points") or []
    found: list[tuple[float, float]] = []
    for one in map(MeasuredPoint.model_validate, content):
        point = _like(study, one)
        if point is not None:
            rate = point.metrics.get("throughput_samples_per_s") or 0.0
            samples = rate * point.metrics["step_time_s"]
            found.append((float(point.world_size), one.seconds(samples) * per_second))
    if not found:
        return []
    sizes, times = zip(*sorted(found), strict=True)
    return [Series("measured", list(sizes), list(times), "points", color=theme.STRAGGLER)]


def _like(study: Study, one: MeasuredPoint) -> Result | None:
    """The point of a sweep that sets what a measured one sets."""
    for point in study.points:
        here = {AXIS: point.world_size, **point.set}
        if all(here.get(key) == value for key, value in one.set.items()) and AXIS in one.set:
            return point
    return None
