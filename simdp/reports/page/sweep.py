"""Sections of a sweep: every point in a table, and curves over what is swept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isfinite, nan
from typing import Any

import numpy as np

from simdp.arrays import Floats
from simdp.reports import theme
from simdp.reports.figures import SHORT, percent, seconds, short
from simdp.reports.page.measured import measured_times
from simdp.reports.page.sections import (
    Axis,
    Cell,
    Chart,
    Section,
    Series,
    Summary,
    Table,
    Tile,
    Verdict,
)
from simdp.reports.page.step import steps
from simdp.reports.plots.labels import cut, evenly, key_label, point_names
from simdp.reports.plots.scaling import MAX_LINES, Curve, curves_of, is_about_scaling
from simdp.reports.plots.sweep import curves_of as curves_over
from simdp.reports.plots.sweep import key_of, lowered, place_at, places_of, second_of, timed
from simdp.reports.sweep_table import (
    INTERVAL,
    RATE,
    best_point,
    has_intervals,
    sweep_cells,
    sweep_feet,
    sweep_title,
    sweep_verdict,
)
from simdp.results.comparison import short_key, written
from simdp.results.result import Result, Study

MOST_BARS = 64
"""Points with a bar of their own; of more some are left out, and all are in the table."""

SORTED_BY: dict[str, Callable[[dict[str, Any]], float | None]] = {
    **{name: (lambda m, key=key: m[key]) for key, name in SHORT.items()},  # type: ignore[misc]
    INTERVAL: lambda m: (m.get("interval_s") or [None])[0],
    "samples/s": lambda m: m[RATE],
    "memory": lambda m: max(m["peak_memory_bytes"]),
}
"""What columns are sorted by whose texts are not plain numbers, or are rounded."""


def sections(study: Study) -> list[Section]:
    """Make the sections of a sweep, without those that every page has."""
    return [
        *verdict(study),
        summary(study),
        points_table(study),
        *scaling(study),
        *curves(study),
        bars(study),
    ]


def verdict(study: Study) -> list[Section]:
    """What the best point reaches and loses, and what to be careful of."""
    points = study.points
    said_of = sweep_verdict(study)
    made: list[Section] = []
    if said_of.lines:
        made.append(Verdict("Verdict", said_of.lines, "good" if said_of.good else "note"))
    careful = [f"{name}: {said}" for name, said in sweep_feet(study)[1]]
    names = point_names(points, limit=200)
    careful += [
        f"The model does not fit at {name}."
        for name, point in zip(names, points, strict=True)
        if point.metrics["fits_memory"] is False
    ][:8]
    return made + [Verdict("Warnings", careful, "warning")] * bool(careful)


def summary(study: Study) -> Section:
    """The range of the sweep in a few figures."""
    times = [p.metrics["step_time_s"] for p in study.points]
    best, rates, unit = best_point(study)
    tiles = [
        Tile("points", str(len(times)), ", ".join(map(short_key, study.scenario["sweep"]))),
        Tile("step time", f"{seconds(min(times))} to {seconds(max(times))}"),
    ]
    if best is not None and rates[best]:
        tiles.append(Tile("best throughput", f"{short(rates[best])} {unit}"))
    shares = [p.metrics["utilization"] for p in study.points if p.metrics["utilization"]]
    if shares:
        both = dict.fromkeys(percent(share) for share in (min(shares), max(shares)))
        tiles.append(Tile("compute", " to ".join(both), "of a step"))
    return Summary("Summary", tiles)


def points_table(study: Study) -> Section:
    """Every point, in the terminal's columns, all of them."""
    num_keys, cells = sweep_cells(study)
    columns = [
        column if place < num_keys else _figures(study, head, column)
        for place, (head, column) in enumerate(cells.items())
    ]
    foot, _ = sweep_feet(study)
    title = sweep_title(study).partition(": ")[2]
    rows = list(zip(*columns, strict=True))
    note = ". ".join(filter(None, [title[:1].upper() + title[1:], foot])) + "."
    return Table("Every point", [*cells], rows, note=note)


def _figures(study: Study, head: str, column: Sequence[str]) -> list[Cell | str]:
    if head in SORTED_BY:
        read = SORTED_BY[head]
        return [Cell(t, read(p.metrics)) for t, p in zip(column, study.points, strict=True)]
    return [Cell(text, _number(text)) for text in column]


def _number(text: str) -> float | None:
    """Read the figure that a text begins with; None where it does not."""
    word = text.replace(",", "").split(" ")[0].rstrip("x*%")
    try:
        return float(word)
    except ValueError:
        return None


def of_last(section: Section, last: Result) -> Section:
    """Name the point that a section of what happens within a run is of: the last one."""
    values = ", ".join(f"{short_key(key)} {written(value)}" for key, value in last.set.items())
    return replace(section, title=f"{section.title} at the last point: {cut(values)}")


def scaling(study: Study) -> list[Section]:
    """Step time, with its interval and what was measured, and throughput against world size."""
    every = [curve for curve in curves_of(study) if len(curve.world_size) > 1]
    if not is_about_scaling(study, every):
        return []
    chosen = [every[i] for i in evenly(len(every), MAX_LINES)]
    unit, per_second = theme.time_unit(max(float(curve.step_time.max()) for curve in chosen))
    over = Axis("World size [GPUs]", "log2")
    steps = [_steps(curve, number, per_second) for number, curve in enumerate(chosen)]
    rates = [_rates(curve, number) for number, curve in enumerate(chosen)]
    last = chosen[0].efficiency[-1], int(chosen[0].world_size[-1])
    said = f"Scaling efficiency at {last[1]} GPUs: {percent(float(last[0]))}."
    return [
        Chart(
            "Step time by world size",
            over,
            Axis(f"Step time [{unit}]", unit=unit),
            [*steps, *measured_times(study, per_second)],
            said="The band is the 90 % interval, where it is known; open circles were measured.",
        ),
        Chart(
            "Throughput by world size",
            over,
            Axis("Throughput [samples/s]", "log", "samples/s"),
            [one for pair in rates for one in pair],
            said=f"{said} Dashed: linear scaling from the smallest.",
        ),
        Chart(
            "Scaling efficiency by world size",
            over,
            Axis("Scaling efficiency [%]", unit="%"),
            [_efficiency(curve, number) for number, curve in enumerate(chosen)],
            said="Throughput per GPU over that of the smallest world size.",
        ),
    ]


def _efficiency(curve: Curve, number: int) -> Series:
    return Series(
        curve.name or "simulated",
        curve.world_size.tolist(),
        (100 * curve.efficiency).tolist(),
        color=theme.look(number)[0],
    )


def _steps(curve: Curve, number: int, per_second: float) -> Series:
    return Series(
        curve.name or "simulated",
        curve.world_size.tolist(),
        (curve.step_time * per_second).tolist(),
        low=_known(curve.low * per_second),
        high=_known(curve.high * per_second),
        color=theme.look(number)[0],
    )


def _known(ends: Floats) -> list[float | None]:
    """Ends of intervals, None where one is not known; empty where none is."""
    found = [end if isfinite(end) else None for end in ends.tolist()]
    return found if any(end is not None for end in found) else []


def _rates(curve: Curve, number: int) -> tuple[Series, Series]:
    name, color = curve.name or "simulated", theme.look(number)[0]
    sizes = curve.world_size.tolist()
    ideal = f"linear scaling{f' of {curve.name}' if curve.name else ''}"
    low, high = (_known(ends) for ends in curve.throughput_ends)
    return (
        Series(name, sizes, curve.throughput.tolist(), low=low, high=high, color=color),
        Series(ideal, sizes, curve.ideal_throughput.tolist(), color=color, dashed=True),
    )


def curves(study: Study) -> list[Section]:
    """Step time, and what it costs or gains besides, over the key that has most numbers."""
    key = key_of(study)
    if key is None:
        return []
    points = timed(study)
    place = places_of([point.set[key] for point in points]) or {}
    found = curves_over(points, key, place)
    unit, per_second = theme.time_unit(max(p.metrics["step_time_s"] for p in points))
    second = second_of(points)
    texts = [text for text, _ in sorted(place.items(), key=lambda pair: pair[1])]
    label = key_label(key, study.scenario)
    over = Axis(label, "category" if any(" " in text for text in texts) else "value")

    def lines(read: Callable[[dict[str, Any]], float]) -> list[Series]:
        return [_curve(name, at, read, key, place, over) for name, at in found.items()]

    return [
        Chart(
            f"Step time by {lowered(label)}",
            over,
            Axis(f"Step time [{unit}]", unit=unit),
            [
                _with_intervals(line, at, per_second)
                for line, at in zip(
                    lines(lambda m: m["step_time_s"] * per_second), found.values(), strict=True
                )
            ][:MAX_LINES],
            said="The band is the 90 % interval." if has_intervals(study) else "",
        ),
        Chart(
            f"{second.title} by {lowered(label)}",
            over,
            Axis(second.label),
            lines(second.read)[:MAX_LINES],
        ),
    ]


def _with_intervals(line: Series, points: Sequence[Result], per_second: float) -> Series:
    """A line of step times with the intervals of its points."""
    both = [point.metrics.get("interval_s") or (nan, nan) for point in points]
    low, high = (np.array(ends, dtype=np.float64) * per_second for ends in zip(*both, strict=True))
    return line._replace(low=_known(low), high=_known(high))


def _curve(
    name: str,
    points: Sequence[Result],
    read: Callable[[dict[str, Any]], float],
    key: str,
    place: dict[str, float],
    over: Axis,
) -> Series:
    texts = {value: text for text, value in place.items()}
    spots = [place_at(point, key, place) for point in points]
    y = [read(point.metrics) for point in points]
    if over.scale == "category":
        return Series(name or "simulated", [texts[spot] for spot in spots], y)
    return Series(name or "simulated", spots, y)


def bars(study: Study) -> Section:
    """What each point's step is made of."""
    chosen = evenly(len(study.points), MOST_BARS)
    names = point_names(study.points)
    points = [study.points[i] for i in chosen]
    left = len(study.points) - len(points)
    return steps(
        "What a step is made of",
        [names[i] or "the step" for i in chosen],
        [point.metrics for point in points],
        axis="Point",
        note=f"{left} of {len(study.points)} points are left out; all are in the table."
        if left
        else "",
    )
