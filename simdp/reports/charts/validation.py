"""Charts of validations: simulated against measured times, errors, and coverage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from simdp.reports import theme
from simdp.reports.charts.bandwidth import BAND, MAX_ERROR, cut_error, error_band
from simdp.reports.charts.chart import Axis, Chart, Picture, Series
from simdp.reports.charts.names import cut, evenly
from simdp.reports.figures import percent
from simdp.reports.validation import in_common, setting
from simdp.results.calibration import StepCalibration
from simdp.results.validation import (
    LEVELS,
    StepComparison,
    TimeComparison,
    Validation,
    coverage,
    num_series,
)

STEP_FIT_BAND = 0.05  # error that the band of fitted steps marks


def equal_times(name: str, low: float, high: float, band: float) -> Series:
    """Draw equal times, with the band of an error."""
    ends = [low, high]
    least, most = ([end * (1 + sign * band) for end in ends] for sign in (-1, 1))
    return Series(name, ends, ends, low=least, high=most, dashed=True)


def step_fit(study: StepCalibration) -> Picture | None:
    """Show measured steps against fitted constants, with errors."""
    if len(study.points) < 2:
        return None
    unit, per_second = theme.time_unit(max(point.measured for point in study.points))
    measured = [point.measured * per_second for point in study.points]
    fitted = [point.fitted * per_second for point in study.points]
    errors = [100 * point.error for point in study.points]
    low, high = min(measured + fitted) / 1.1, max(measured + fitted) * 1.1
    over = Axis(f"Measured step time [{unit}]", "log", unit, ends=(low, high))
    reach = max(100 * STEP_FIT_BAND, *map(abs, errors)) * 1.15
    look = Series("", measured, fitted, "points", color=theme.SERIES[0], marker="o", is_filled=True)
    charts = [
        Chart(
            "Steps",
            over,
            Axis(f"Fitted step time [{unit}]", "log", unit, ends=(low, high)),
            [equal_times("", low, high, STEP_FIT_BAND), look],
        ),
        Chart(
            "Error",
            over,
            Axis("Error [%]", ends=(-reach, reach), is_signed=True),
            [error_band([low, high], STEP_FIT_BAND), look._replace(y=errors)],
        ),
    ]
    text = f"fitted with {percent(study.residual)} RMS error; band: {percent(STEP_FIT_BAND, '.0f')}"
    return Picture(f"Steps of {study.name}", text, charts)


LEAST = 5  # least points of a level
RELIABILITY_ASIDE = 0.35  # distance of the lines of steps and of collectives [%]


def reliability(study: Validation) -> Picture | None:
    """Show observed against nominal coverage of the simulated intervals."""
    groups = _predicted_with_intervals(study)
    if not groups:
        return None
    shown = [100 * level for level in LEVELS]
    ends = [shown[0] - 3, 100.0]
    series, lowest = [Series("as nominal", ends, ends, dashed=True)], ends[0]
    for number, (name, points) in enumerate(groups.items()):
        levels = coverage(points)
        color, marker = theme.look(number)
        aside = RELIABILITY_ASIDE * (2 * number - len(groups) + 1)
        rows = [(level.observed, level.low, level.high) for level in levels]
        y, low, high = (100 * np.array(rows).T).tolist()
        x = [level + aside for level in shown]
        count, of = num_series(points), "scenario" if name == "steps" else "table"
        text = f"{name}: {len(points)} in {count} {of}{'s' * (count > 1)}"
        series.append(Series(text, x, y, "line", low, high, color=color, marker=marker))
        lowest = min([lowest, *y, *low])
    chart = Chart(
        "Reliability",
        Axis("Nominal coverage of the interval [%]", ends=(ends[0], 101.0),
             ticks={level: f"{level:.0f}" for level in shown}),
        Axis("Measured times inside [%]", ends=(lowest - 3, 101.0)),
        series,
        names_at="above",
    )  # fmt: skip
    text = (
        "bands: 90 % of what so many independent series would show; other levels than 90 %: "
        "log-normal on each side of the simulated time"
    )
    return Picture("How sure predictions are, and how sure they say they are", text, [chart])


def _predicted_with_intervals(study: Validation) -> dict[str, Sequence[TimeComparison]]:
    """Group predicted steps and collectives, each with enough intervals."""
    every: dict[str, Sequence[TimeComparison]] = {"steps": study.points, "collectives": study.rows}
    predicted = {name: [p for p in group if p.is_predicted] for name, group in every.items()}
    return {
        name: group
        for name, group in predicted.items()
        if sum(point.low < point.high for point in group) >= LEAST
    }


AXIS = "cluster.world_size"
ASIDE = 0.009  # distance of the errors of two curves, as a part of the axis
MAX_LINES = 6  # lines; of more those with the most points are kept


class ThroughputCurve(NamedTuple):
    """Points that differ in world size only, in its order."""

    name: str
    points: list[StepComparison]


def throughput_curves(study: Validation) -> Picture | None:
    """Show throughput by world size of a cluster's runs, simulated and measured, with errors."""
    every = _curves(study) if len(study.clusters) == 1 else []
    if not every:
        return None
    curves = _most_points(every)
    sizes = sorted({float(point.world_size) for curve in curves for point in curve.points})
    lines, circles, errors = list[Series](), list[Series](), list[Series]()
    for number, (name, points) in enumerate(curves):
        color, marker = theme.look(number)
        at = [float(point.world_size) for point in points]
        aside = (sizes[-1] / sizes[0]) ** (ASIDE * (number - (len(curves) - 1) / 2))
        slow = [point.samples / point.high for point in points]
        fast = [point.samples / point.low if point.low else 0.0 for point in points]
        times = [point.samples / point.simulated for point in points]
        measured = [point.samples / point.measured for point in points]
        lines.append(Series(name, at, times, "line", slow, fast, color=color, marker=marker))
        circles.append(Series("", at, measured, "points", color=color, marker="o"))
        low, high = (
            [100 * (end / point.measured - 1) for end, point in zip(ends, points, strict=True)]
            for ends in ([p.low for p in points], [p.high for p in points])
        )
        x, y = [size * aside for size in at], [100 * point.error for point in points]
        error = Series("", x, y, "points", low, high, color=color, marker=marker, is_filled=True)
        errors.append(error)
    over = Axis("World size [GPUs]", "log2", ticks={size: f"{size:.0f}" for size in sizes})
    charts = [
        Chart("Throughput", over, Axis("Throughput [samples/s]", "log"), [*lines, *circles]),
        Chart(
            "Error at each point, with the 90 % interval",
            over,
            Axis("Error of the step time [%]", is_signed=True),
            [error_band([sizes[0], sizes[-1]], BAND), *errors],
        ),
    ]
    left_out = f"; {len(curves)} of {len(every)} curves" if len(curves) < len(every) else ""
    text = "simulated lines with their 90 % intervals; open circles: measured"
    return Picture(f"Throughput on {study.clusters[0]}{left_out}", text, charts)


def _curves(study: Validation) -> list[ThroughputCurve]:
    """Group points into curves of two world sizes or more, in the order of the scenarios."""
    groups: dict[tuple[str, str], list[StepComparison]] = {}
    for point in study.points:
        rest = repr({key: value for key, value in point.set.items() if key != AXIS})
        groups.setdefault((point.scenario, rest), []).append(point)
    long = {
        where: sorted(points, key=lambda point: point.world_size)
        for where, points in groups.items()
        if len({point.world_size for point in points}) > 1
    }
    several = len({scenario for scenario, _ in long}) > 1
    leave_out = [AXIS, *in_common([points[0].set for points in long.values()])] if long else []
    curves = []
    for (scenario, _), points in long.items():
        short = scenario.removeprefix(study.clusters[0]).lstrip("-_.") or scenario
        of = setting(points[0].set, leave_out)
        name = ", ".join(filter(None, [short if several else "", of]))
        curves.append(ThroughputCurve(cut(name or scenario), points))
    return curves


def _most_points(curves: Sequence[ThroughputCurve]) -> list[ThroughputCurve]:
    """Choose the curves with the most points, evenly among equal ones."""
    most = max(len(curve.points) for curve in curves)
    longest = [i for i, curve in enumerate(curves) if len(curve.points) == most]
    chosen = [longest[i] for i in evenly(len(longest), MAX_LINES)]
    others = sorted(set(range(len(curves))) - set(longest), key=lambda i: -len(curves[i].points))
    chosen += others[: MAX_LINES - len(chosen)]
    return [curves[i] for i in sorted(chosen)]


MAX_CLUSTERS = 8  # clusters with a colour each; more are grouped by the class of their network

# names of the classes of `simdp.collectives.costs.nccl` in the legend
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


def against(study: Validation) -> list[Chart]:
    """Draw simulated over measured times with intervals, by cluster."""
    charts = []
    for what, every in (("steps", study.points), ("collectives", study.rows)):
        if not every:
            continue
        groups = {name: [p for p in every if p.cluster == name] for name in study.clusters}
        unit, per_second = theme.time_unit(max(point.measured for point in every))
        ends = [end(point.measured for point in every) * per_second for end in (min, max)]
        charts.append(
            Chart(
                f"Simulated against measured {what}",
                Axis(f"Measured [{unit}]", "log", unit),
                Axis(f"Simulated [{unit}]", "log", unit),
                [
                    *(
                        _group(name, points, per_second)
                        for name, points in groups.items()
                        if points
                    ),
                    equal_times("within 10 %", ends[0], ends[1], BAND),
                ],
                caption="A point for each measured time; its bar is the 90 % interval of the "
                "simulation.",
            )
        )
    return charts


def _group(name: str, points: Sequence[TimeComparison], per_second: float) -> Series:
    """Draw simulated over measured times with intervals."""
    columns = ((p.measured, p.simulated, p.low, p.high) for p in points)
    x, y, low, high = (
        [time * per_second for time in times] for times in zip(*columns, strict=True)
    )
    return Series(name, x, y, "points", low, high)


def simulated_against_measured(study: Validation) -> Picture | None:
    """Show simulated against measured times, by cluster, with errors."""
    every: Sequence[TimeComparison] = (*study.points, *study.rows)
    if not every:
        return None
    unit, per_second = theme.time_unit(max(point.measured for point in every))
    times = [time * per_second for p in every for time in (p.measured, p.simulated)]
    ends = min(times) / 1.3, max(times) * 1.3
    groups = _groups(study, every)
    means = _mean_errors(study, groups)
    upper, lower = [equal_times("", *ends, BAND)], [error_band(ends, BAND)]
    for number, (name, group) in enumerate(groups.items()):
        color, marker = theme.look(number)
        for is_predicted in (True, False):
            points = [p for p in group if p.is_predicted == is_predicted]
            if not points:
                continue
            series = _group(name + means[name], points, per_second)
            series = series._replace(
                color=color, marker=marker, low=(), high=(), is_filled=is_predicted,
                name=series.name if is_predicted or len(points) == len(group) else "",
            )  # fmt: skip
            upper.append(series)
            lower.append(series._replace(y=[cut_error(p.error) for p in points]))
    if not all(point.is_predicted for point in every):
        upper.append(Series("calibration", (), (), "points", color=theme.MUTED, marker="o"))
    upper.append(Series(f"within {percent(BAND, '.0f')}", (), (), "bar", color=theme.FAINT))
    over = Axis(f"Measured time [{unit}]", "log", unit, ends=ends)
    most = max([BAND, *(abs(cut_error(point.error)) / 100 for point in every)]) * 110
    charts = [
        Chart(
            "Times",
            over,
            Axis(f"Simulated time [{unit}]", "log", unit, ends=ends),
            upper,
            names_at="above",
        ),
        Chart(
            "Errors; larger ones lie at the edge" if most > 109 * MAX_ERROR else "Errors",
            over,
            Axis("Error of the simulated time [%]", ends=(-most, most), is_signed=True),
            [series._replace(name="") for series in lower],
        ),
    ]
    what = [kind for kind, rows in (("step", study.points), ("collective", study.rows)) if rows]
    return Picture(f"Simulated against measured {' and '.join(what)} times", "", charts)


def _groups(study: Validation, every: Sequence[TimeComparison]) -> dict[str, list[TimeComparison]]:
    """Group points by cluster, or if there are many by network, the fastest first."""
    names = [name for name in study.clusters if any(p.cluster == name for p in every)]
    if len(names) <= MAX_CLUSTERS:
        return {name: [p for p in every if p.cluster == name] for name in names}
    groups = {name: [p for p in every if p.joined == key] for key, name in NETWORKS.items()}
    return {name: points for name, points in groups.items() if points}


def _mean_errors(
    study: Validation, groups: Mapping[str, Sequence[TimeComparison]]
) -> dict[str, str]:
    """Write the mean error of each group's predicted points behind its name."""
    summaries = [*study.collective_summaries(), *study.step_summaries()]
    means = {summary.name: summary.mean_error for summary in summaries}
    texts = {}
    for name, points in groups.items():
        errors = [abs(point.error) for point in points if point.is_predicted]
        own = sum(errors) / len(errors) if errors else None
        mean = means.get(name, own)
        texts[name] = "" if mean is None else f": {percent(mean)}"
    return texts
