"""Pages of a sweep or run, and of a comparison."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import isfinite, nan

import numpy as np

from simdp.arrays import Floats
from simdp.keys import short_key, written
from simdp.reports import sweep_table, theme
from simdp.reports.captions import about, about_point, about_scenario
from simdp.reports.figures import PARTS, nbytes, percent, seconds, sentence, share, short
from simdp.reports.page import run
from simdp.reports.page.run import closing, loss, steps
from simdp.reports.plots.labels import cut, evenly, key_label, point_names
from simdp.reports.plots.scaling import AXIS, MAX_LINES, Curve, curves_of, is_about_scaling
from simdp.reports.plots.sweep import curves_of as curves_over
from simdp.reports.plots.sweep import key_of, lowered, place_at, places_of, second_of, timed
from simdp.reports.sections import Axis, Chart, Page, Section, Series, Summary, Table, Tile, Verdict
from simdp.results.comparison import ComparedPoint, Comparison, best_of
from simdp.results.metrics import Metrics
from simdp.results.result import Advice, Result, Study
from simdp.scenario.measured import MeasuredPoint


def comparison_page(found: Comparison, command: Sequence[str] = ()) -> Page:
    """Make the page of a comparison; at least one point ran."""
    points = sweep_table.grid(found)
    foot, *notes = sweep_table.remarks(found)
    sections = [
        *_verdict(found),
        *_summary(found),
        *[Verdict("Warnings", careful, "warning") for careful in [_careful(found)] if careful],
        replace(points, title="The points", note=f"{points.title.partition(', ')[2]}; {foot}"),
        steps(
            "Where a step's time goes",
            [point.label for point in found.ran],
            [point.metrics or {} for point in found.ran],
            said="A bar for each point; its parts add up to the step.",
        ),
        memory(found.ran),
        *[Verdict("Notes", notes) for _ in notes[:1]],
        *closing(found.scenario, found.version, "compare", command or _command(found)),
    ]
    return Page(
        f"{found.scenario['name']}: {' x '.join(map(short_key, found.over))} compared",
        about_scenario(found.scenario, found.over),
        sections,
        theme.footer(found),
    )


def _command(found: Comparison) -> list[str]:
    """Make the command that repeats the comparison of the scenario below."""
    over = [
        f"--over={key}={','.join(v if isinstance(v, str) else json.dumps(v) for v in values)}"
        for key, values in found.over.items()
    ]
    return ["compare", f"{found.scenario['name']}.yaml", *over]


def _verdict(found: Comparison) -> Iterator[Section]:
    best = best_of([point.metrics for point in found.points])
    if best is None:
        return
    point = found.points[best]
    assert point.metrics is not None
    rates = {
        one.label: one.metrics.throughput_samples_per_s
        for one in found.ran
        if one.metrics and one.metrics.throughput_samples_per_s
    }
    own, ties = rates.pop(point.label), sweep_table.tied(found)
    others = sorted(((rate, label) for label, rate in rates.items() if rate <= own), reverse=True)
    fits, is_first = point.metrics.fits_memory is not False, len(others) == len(rates)
    lead = "" if fits and is_first else "Of what fits, " if fits else "None fits; "
    said = f"{lead}{point.label} trains most samples per second"
    if others:
        compared = list[str]()
        for rate, label in (others[0], others[-1]):
            ratio = own / rate
            more = f"{percent(ratio - 1)} more than"
            compared.append(f"{more if ratio < 2 else f'{ratio:.3g} times as many as'} {label}")
        said += ": " + ", and ".join(dict.fromkeys(compared))
    m = point.metrics
    largest = max(PARTS, key=lambda key: m[key])
    whose = f"a step of {point.label}" if ties else "its step"
    part = "Most" if m[largest] > m.step_time_s / 2 else "The largest part"
    yield Verdict(
        "Verdict",
        [
            *(ties or [f"{said}."]),
            f"{part} of {whose}, {share(m[largest], m.step_time_s)}, is {PARTS[largest]}.",
        ],
        "warning" if not fits else "note" if ties else "good",
    )


def _summary(found: Comparison) -> Iterator[Section]:
    best = best_of([point.metrics for point in found.points])
    if best is None:
        return
    point = found.points[best]
    assert point.metrics is not None
    yield Summary(
        "Summary",
        [
            Tile("best", point.label),
            Tile("its step", seconds(point.metrics.step_time_s)),
            Tile("its memory", nbytes(point.device_bytes or 0.0), "of the fullest device"),
            Tile("points", str(len(found.points)), f"{len(found.ran)} of them ran"),
        ],
    )


def _careful(found: Comparison) -> list[str]:
    """List the points that do not fit or cannot run."""
    lines = [
        f"{point.label} does not fit: it needs {nbytes(point.device_bytes or 0.0)} of a device "
        f"with {nbytes(point.capacity_bytes or 0.0)}."
        for point in found.ran
        if point.metrics and point.metrics.fits_memory is False
    ]
    return lines + [f"{p.label} cannot run: {p.problems[0]}" for p in found.points if p.problems]


def memory(points: Sequence[ComparedPoint]) -> Section:
    """Draw the memory of the fullest device."""
    names = [point.label for point in points]
    sizes = [(point.device_bytes or 0.0) / 1e9 for point in points]
    rooms = {(point.capacity_bytes or 0.0) / 1e9 for point in points}
    room = f"; it has {rooms.pop():.3g} GB." if len(rooms) == 1 else "."
    return Chart(
        "Memory of the fullest device",
        Axis("", "category"),
        Axis("Memory [GB]", unit="GB"),
        [Series("at its peak", names, sizes, "bar", color=theme.HOST)],
        said="What the ranks of one device keep at their peaks" + room,
        sideways=True,
    )


def measured_times(study: Study, per_second: float) -> list[Series]:
    """Draw the measured step times of a sweep over world sizes; empty without any.

    ``per_second`` is the number of the axis' units in a second.
    """
    content = (study.scenario.get("measured") or {}).get("points") or []
    found: list[tuple[float, float]] = []
    for one in map(MeasuredPoint.model_validate, content):
        point = _like(study, one)
        if point is not None:
            rate = point.metrics.throughput_samples_per_s or 0.0
            samples = rate * point.metrics.step_time_s
            found.append((float(point.world_size), one.seconds(samples) * per_second))
    if not found:
        return []
    sizes, times = zip(*sorted(found), strict=True)
    return [Series("measured", list(sizes), list(times), "points", color=theme.STRAGGLER)]


def _like(study: Study, one: MeasuredPoint) -> Result | None:
    """Find the point of a sweep with the settings of a measured one."""
    for point in study.points:
        here = {AXIS: point.world_size, **point.set}
        if all(here.get(key) == value for key, value in one.set.items()) and AXIS in one.set:
            return point
    return None


MOST_BARS = 64  # points with a bar of their own; the table has all


def sections(study: Study) -> list[Section]:
    """Make the sections of a sweep, except those that every page has."""
    return [
        *verdict(study),
        summary(study),
        points_table(study),
        *scaling(study),
        *curves(study),
        sweep_bars(study),
    ]


def verdict(study: Study) -> list[Section]:
    """Write the verdict on the best point, and warnings."""
    points = study.points
    said_of = sweep_table.sweep_verdict(study)
    made: list[Section] = []
    if said_of.lines:
        made.append(Verdict("Verdict", said_of.lines, "good" if said_of.good else "note"))
    careful = [f"{row.label}: {row.text}" for row in sweep_table.sweep_feet(study)[1]]
    names = point_names(points, limit=200)
    careful += [
        f"The model does not fit at {name}."
        for name, point in zip(names, points, strict=True)
        if point.metrics.fits_memory is False
    ][:8]
    return made + [Verdict("Warnings", careful, "warning")] * bool(careful)


def summary(study: Study) -> Section:
    """Make the main figures of a sweep."""
    times = [p.metrics.step_time_s for p in study.points]
    best, rates, unit = sweep_table.best_point(study)
    tiles = [
        Tile("points", str(len(times)), ", ".join(map(short_key, study.scenario["sweep"]))),
        Tile("step time", f"{seconds(min(times))} to {seconds(max(times))}"),
    ]
    if best is not None and rates[best]:
        tiles.append(Tile("best throughput", f"{short(rates[best])} {unit}"))
    shares = [p.metrics.utilization for p in study.points if p.metrics.utilization]
    if shares:
        both = dict.fromkeys(percent(share) for share in (min(shares), max(shares)))
        tiles.append(Tile("compute", " to ".join(both), "of a step"))
    return Summary("Summary", tiles)


def points_table(study: Study) -> Section:
    """Make the table of every point, with all columns."""
    _, cells = sweep_table.sweep_cells(study)
    foot, _ = sweep_table.sweep_feet(study)
    title = sweep_table.sweep_title(study).partition(": ")[2]
    rows = list(zip(*cells.values(), strict=True))
    note = ". ".join(filter(None, [sentence(title), foot])) + "."
    return Table("Every point", [*cells], rows, note=note)


def of_last(section: Section, last: Result) -> Section:
    """Add the last point's settings to the title of a section about one run."""
    values = ", ".join(f"{short_key(key)} {written(value)}" for key, value in last.set.items())
    return replace(section, title=f"{section.title} at the last point: {cut(values)}")


def scaling(study: Study) -> list[Section]:
    """Draw step time, throughput and efficiency against world size."""
    every = [curve for curve in curves_of(study) if len(curve.world_size) > 1]
    if not is_about_scaling(study, every):
        return []
    chosen = [every[i] for i in evenly(len(every), MAX_LINES)]
    unit, per_second = theme.time_unit(max(float(curve.step_time.max()) for curve in chosen))
    over = Axis("World size [GPUs]", "log2")
    steps, rates, efficiencies = list[Series](), list[Series](), list[Series]()
    for i, one in enumerate(chosen):
        ends = one.low * per_second, one.high * per_second
        steps.append(_line(one, i, one.step_time * per_second, ends))
        rates.append(_line(one, i, one.throughput, one.throughput_ends))
        ideal = f"linear scaling{f' of {one.name}' if one.name else ''}"
        rates.append(_line(one, i, one.ideal_throughput)._replace(name=ideal, dashed=True))
        efficiencies.append(_line(one, i, 100 * one.efficiency))
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
            rates,
            said=f"{said} Dashed: linear scaling from the smallest.",
        ),
        Chart(
            "Scaling efficiency by world size",
            over,
            Axis("Scaling efficiency [%]", unit="%"),
            efficiencies,
            said="Throughput per GPU over that of the smallest world size.",
        ),
    ]


def _line(curve: Curve, number: int, values: Floats, ends: Sequence[Floats] = ()) -> Series:
    """Make a line over world sizes, with the ends of its band."""
    color, (low, high) = theme.look(number)[0], map(_known, ends) if ends else ((), ())
    at = curve.world_size.tolist(), values.tolist()
    return Series(curve.name or "simulated", *at, low=low, high=high, color=color)


def _known(ends: Floats) -> list[float | None]:
    """Replace unknown ends of intervals by None; empty if all are unknown."""
    found = [end if isfinite(end) else None for end in ends.tolist()]
    return found if any(end is not None for end in found) else []


def curves(study: Study) -> list[Section]:
    """Draw the step time, and its trade-off, against the swept number with the most values."""
    key = key_of(study)
    if key is None:
        return []
    points = timed(study)
    place = places_of([point.set[key] for point in points]) or {}
    found = curves_over(points, key, place)
    unit, per_second = theme.time_unit(max(p.metrics.step_time_s for p in points))
    second = second_of(points)
    label, texts = key_label(key, study.scenario), {value: text for text, value in place.items()}
    over = Axis(label, "category" if any(" " in text for text in place) else "value")

    def lines(read: Callable[[Metrics], float]) -> list[Series]:
        made = []
        for name, at in found.items():
            spots = [place_at(point, key, place) for point in at]
            x = [texts[spot] for spot in spots] if over.scale == "category" else spots
            made.append(Series(name or "simulated", x, [read(point.metrics) for point in at]))
        return made

    return [
        Chart(
            f"Step time by {lowered(label)}",
            over,
            Axis(f"Step time [{unit}]", unit=unit),
            [
                _with_intervals(line, at, per_second)
                for line, at in zip(
                    lines(lambda m: m.step_time_s * per_second), found.values(), strict=True
                )
            ][:MAX_LINES],
            said="The band is the 90 % interval." if sweep_table.has_intervals(study) else "",
        ),
        Chart(
            f"{second.title} by {lowered(label)}",
            over,
            Axis(second.label),
            lines(second.read)[:MAX_LINES],
        ),
    ]


def _with_intervals(line: Series, points: Sequence[Result], per_second: float) -> Series:
    """Add the intervals of the points to a line of step times."""
    both = [point.metrics.interval_s or (nan, nan) for point in points]
    low, high = (np.array(ends, dtype=np.float64) * per_second for ends in zip(*both, strict=True))
    return line._replace(low=_known(low), high=_known(high))


def sweep_bars(study: Study) -> Section:
    """Draw the parts of each point's step."""
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


def study_page(study: Study, command: Sequence[str] = (), advice: Advice | None = None) -> Page:
    """Make the page of a study.

    ``command`` is the command line that made it, from the subcommand on, such as ``("run",
    "a.yaml")``; ``advice`` lists changes that make the run faster.
    """
    last = study.points[-1]
    if study.scenario.get("sweep"):
        said, found = about(study), sections(study)
        within = [of_last(section, last) for section in run.pictures(last)]
    else:
        said, found = about_point(last), run.sections(last, advice)
        within = run.pictures(last)
    return Page(
        str(study.scenario.get("name", "scenario")),
        said,
        [*found, *loss(study), *within, *closing(study.scenario, study.version, "run", command)],
        theme.footer(study),
    )
