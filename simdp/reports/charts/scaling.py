"""Charts of step time, throughput and efficiency against world size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simdp.arrays import Floats
from simdp.reports import theme
from simdp.reports.captions import about
from simdp.reports.charts.chart import Axis, Chart, Note, Picture, Series
from simdp.reports.charts.names import evenly, point_names
from simdp.reports.figures import percent
from simdp.results.result import Result, Study
from simdp.scenario.measured import MeasuredPoint

AXIS = "cluster.world_size"
MAX_LINES = 6  # lines; of more some are dropped
UNKNOWN = (np.nan, np.nan)  # ends of an interval
MAX_TEXTS = 14  # efficiencies that are written below their points


class Curve(NamedTuple):
    """Points of a sweep that differ in world size only, in its order."""

    name: str  # other settings
    world_size: Floats  # all arrays: shape `(num_points,)`
    step_time: Floats  # [s]
    throughput: Floats  # [samples/s]
    low: Floats  # of the step's 90 % interval [s]; NaN if unknown
    high: Floats  # likewise

    @property
    def efficiency(self) -> Floats:
        """Throughput per rank over that of the smallest world size."""
        per_rank = self.throughput / self.world_size
        return np.asarray(per_rank / per_rank[0])


def scaling(study: Study) -> Picture | None:
    """Show step time, throughput and scaling efficiency by world size, beside linear scaling."""
    charts = scaling_charts(study)
    if not charts:
        return None
    every, chosen = _curves(study)
    sizes = [n for curve in chosen for n in curve.world_size]
    left_out = f"; {len(chosen)} of {len(every)} lines" if len(chosen) < len(every) else ""
    title = f"Scaling from {min(sizes):.0f} to {max(sizes):.0f} GPUs{left_out}"
    return Picture(title, about(study), charts)


def _curves(study: Study) -> tuple[list[Curve], list[Curve]]:
    """Group the points into curves; also those that are shown."""
    every = curves_of(study)
    return every, [every[i] for i in evenly(len(every), MAX_LINES)]


def scaling_charts(study: Study) -> list[Chart]:
    """Draw step time, throughput and efficiency against world size.

    Two world sizes are enough if nothing else is swept. Otherwise they compare one GPU, or one
    node, with several, which the chart `points` shows.
    """
    every, curves = _curves(study)
    alone = all(len(point.set) == 1 for point in study.points)
    if not any(len(curve.world_size) > (1 if alone else 2) for curve in every):
        return []
    unit, per_second = theme.time_unit(max(float(curve.step_time.max()) for curve in curves))
    over = Axis("World size [GPUs]", "log2")
    times, rates, efficiencies = _lines(curves, per_second)
    written = [
        Note(f"{share:.0f} %", size, share, "below")
        for size, share in zip(curves[0].world_size, 100 * curves[0].efficiency, strict=True)
    ]
    last = percent(float(curves[0].efficiency[-1])), int(curves[0].world_size[-1])
    return [
        Chart(
            "Step time by world size",
            over,
            Axis(f"Step time [{unit}]", unit=unit),
            [*times, *measured_times(study, per_second)],
            caption="The band is the 90 % interval, where it is known; open circles were measured.",
        ),
        Chart(
            "Throughput by world size",
            over,
            Axis("Throughput [samples/s]", "log", "samples/s"),
            rates,
            caption=f"Scaling efficiency at {last[1]} GPUs: {last[0]}. "
            "Dashed: linear scaling from the smallest.",
        ),
        Chart(
            "Scaling efficiency by world size",
            over,
            Axis("Scaling efficiency [%]", unit="%"),
            efficiencies,
            caption="Throughput per GPU over that of the smallest world size.",
            notes=written if len(curves) == 1 and len(written) <= MAX_TEXTS else (),
        ),
    ]


def _lines(curves: Sequence[Curve], per_second: float) -> list[list[Series]]:
    """Draw step times, throughputs and efficiencies, each with those of linear scaling."""
    series: tuple[list[Series], ...] = [], [], []
    ideals: tuple[list[Floats], ...] = [], [], []
    for number, curve in enumerate(curves):
        low, high, samples = curve.low, curve.high, curve.throughput * curve.step_time
        seconds, shares = curve.step_time * per_second, curve.efficiency
        line = Series(
            curve.name or "simulated", curve.world_size, seconds, color=theme.look(number)[0]
        )
        slow, fast = samples / high, samples / np.where(low > 0, low, np.nan)
        drawn = (
            line._replace(low=low * per_second, high=high * per_second),
            line._replace(y=curve.throughput, low=slow, high=fast),
            line._replace(y=100 * shares),
        )
        for panel, of_panel in zip(series, drawn, strict=True):
            panel.append(of_panel)
        ideal = seconds * shares, curve.throughput / shares, np.full(len(shares), 100.0)
        for panel_ideals, values in zip(ideals, ideal, strict=True):
            panel_ideals.append(values)
    return [[*panel, *_ideal(panel, values)] for panel, values in zip(series, ideals, strict=True)]


def _ideal(lines: Sequence[Series], ideals: Sequence[Floats]) -> list[Series]:
    """Draw linear scaling: a line in the colour of each, or one for all if they coincide."""
    first = ideals[0]
    if all(len(ideal) == len(first) and np.allclose(ideal, first, 1e-9) for ideal in ideals):
        lines, ideals = [lines[0]._replace(color=theme.MUTED)], [first]
    return [
        Series("linear scaling", line.x, ideal, color=line.color, dashed=True)
        for line, ideal in zip(lines, ideals, strict=True)
    ]


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
    return [_curve(names[rest], group) for rest, group in groups.items()]


def _curve(name: str, group: dict[int, Result]) -> Curve:
    sizes = sorted(group)
    metrics = [group[size].metrics for size in sizes]
    rows = [
        (size, m.step_time_s, m.throughput_samples_per_s, *(m.interval_s or UNKNOWN))
        for size, m in zip(sizes, metrics, strict=True)
    ]
    return Curve(name, *np.array(rows, dtype=np.float64).T)


def measured_times(study: Study, per_second: float) -> list[Series]:
    """Draw the measured step times of a sweep over world sizes; empty without any.

    ``per_second`` is the number of the axis' units in a second.
    """
    content = (study.scenario.get("measured") or {}).get("points") or []
    times: list[tuple[float, float]] = []
    for measured in map(MeasuredPoint.model_validate, content):
        point = _same_settings(study, measured)
        if point is not None:
            rate = point.metrics.throughput_samples_per_s or 0.0
            samples = rate * point.metrics.step_time_s
            times.append((float(point.world_size), measured.seconds(samples) * per_second))
    if not times:
        return []
    sizes, seconds = zip(*sorted(times), strict=True)
    return [Series("measured", sizes, seconds, "points", color=theme.STRAGGLER, marker="o")]


def _same_settings(study: Study, measured: MeasuredPoint) -> Result | None:
    """Find the point of a sweep with the settings of a measured one."""
    for point in study.points:
        settings = {AXIS: point.world_size, **point.set}
        if AXIS in measured.set and all(settings.get(k) == v for k, v in measured.set.items()):
            return point
    return None
