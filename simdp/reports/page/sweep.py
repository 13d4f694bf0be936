"""Pages of a sweep or run, and of a comparison."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

from simdp.keys import short_key, written
from simdp.reports import sweep_table, theme
from simdp.reports.captions import about, about_point, about_scenario
from simdp.reports.charts.loss import loss_by_step
from simdp.reports.charts.names import cut, evenly, point_names
from simdp.reports.charts.scaling import scaling_charts
from simdp.reports.charts.sweep import fullest_devices, steps, sweep_charts
from simdp.reports.figures import nbytes, percent, seconds, sentence, share, short
from simdp.reports.page import run
from simdp.reports.page.run import closing
from simdp.reports.sections import Page, Section, Summary, Table, Tile, Verdict
from simdp.results.comparison import Comparison, best_of
from simdp.results.metrics import PART_TITLES
from simdp.results.result import Advice, Result, Study


def comparison_page(comparison: Comparison, command: Sequence[str] = ()) -> Page:
    """Make the page of a comparison; at least one point ran."""
    points = sweep_table.grid(comparison)
    foot, *notes = sweep_table.remarks(comparison)
    sections = [
        *_verdict(comparison),
        *_summary(comparison),
        *[Verdict("Warnings", careful, "warning") for careful in [_careful(comparison)] if careful],
        replace(points, title="The points", note=f"{points.title.partition(', ')[2]}; {foot}"),
        steps(
            "Where a step's time goes",
            [point.label for point in comparison.ran],
            [point.metrics or {} for point in comparison.ran],
            caption="A bar for each point; its parts add up to the step.",
        ),
        fullest_devices(comparison.ran),
        *[Verdict("Notes", notes) for _ in notes[:1]],
        *closing(
            comparison.scenario,
            comparison.version,
            "compare",
            command or _command(comparison),
        ),
    ]
    return Page(
        f"{comparison.scenario['name']}: {' x '.join(map(short_key, comparison.over))} compared",
        about_scenario(comparison.scenario, comparison.over),
        sections,
        theme.footer(comparison),
    )


def _command(comparison: Comparison) -> list[str]:
    """Make the command that repeats the comparison of the scenario below."""
    over = [
        f"--over={key}={','.join(v if isinstance(v, str) else json.dumps(v) for v in values)}"
        for key, values in comparison.over.items()
    ]
    return ["compare", f"{comparison.scenario['name']}.yaml", *over]


def _verdict(comparison: Comparison) -> Iterator[Section]:
    best = best_of([point.metrics for point in comparison.points])
    if best is None:
        return
    point = comparison.points[best]
    assert point.metrics is not None
    rates = {
        ran.label: ran.metrics.throughput_samples_per_s
        for ran in comparison.ran
        if ran.metrics and ran.metrics.throughput_samples_per_s
    }
    own, ties = rates.pop(point.label), sweep_table.tied(comparison)
    others = sorted(((rate, label) for label, rate in rates.items() if rate <= own), reverse=True)
    fits, is_first = point.metrics.fits_memory is not False, len(others) == len(rates)
    lead = "" if fits and is_first else "Of what fits, " if fits else "None fits; "
    answer = f"{lead}{point.label} trains most samples per second"
    if others:
        compared = list[str]()
        for rate, label in (others[0], others[-1]):
            ratio = own / rate
            more = f"{percent(ratio - 1)} more than"
            compared.append(f"{more if ratio < 2 else f'{ratio:.3g} times as many as'} {label}")
        answer += ": " + ", and ".join(dict.fromkeys(compared))
    m = point.metrics
    largest = max(PART_TITLES, key=lambda key: m[key])
    whose = f"a step of {point.label}" if ties else "its step"
    part = "Most" if m[largest] > m.step_time_s / 2 else "The largest part"
    yield Verdict(
        "Verdict",
        [
            *(ties or [f"{answer}."]),
            f"{part} of {whose}, {share(m[largest], m.step_time_s)}, is {PART_TITLES[largest]}.",
        ],
        "warning" if not fits else "note" if ties else "good",
    )


def _summary(comparison: Comparison) -> Iterator[Section]:
    best = best_of([point.metrics for point in comparison.points])
    if best is None:
        return
    point = comparison.points[best]
    assert point.metrics is not None
    yield Summary(
        "Summary",
        [
            Tile("best", point.label),
            Tile("its step", seconds(point.metrics.step_time_s)),
            Tile("its memory", nbytes(point.device_bytes or 0.0), "of the fullest device"),
            Tile(
                "points",
                str(len(comparison.points)),
                f"{len(comparison.ran)} of them ran",
            ),
        ],
    )


def _careful(comparison: Comparison) -> list[str]:
    """List the points that do not fit or cannot run."""
    lines = [
        f"{point.label} does not fit: it needs {nbytes(point.device_bytes or 0.0)} of a device "
        f"with {nbytes(point.capacity_bytes or 0.0)}."
        for point in comparison.ran
        if point.metrics and point.metrics.fits_memory is False
    ]
    return lines + [
        f"{p.label} cannot run: {p.problems[0]}" for p in comparison.points if p.problems
    ]


MOST_BARS = 64  # points with a bar of their own; the table has all


def sections(study: Study) -> list[Section]:
    """Make the sections of a sweep, except those that every page has."""
    return [
        *verdict(study),
        summary(study),
        points_table(study),
        *scaling_charts(study),
        *sweep_charts(study),
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
        of, shown = about(study), sections(study)
        within = [of_last(section, last) for section in run.pictures(last)]
    else:
        of, shown = about_point(last), run.sections(last, advice)
        within = run.pictures(last)
    return Page(
        str(study.scenario.get("name", "scenario")),
        of,
        [
            *shown,
            *loss_by_step(study),
            *within,
            *closing(study.scenario, study.version, "run", command),
        ],
        theme.footer(study),
    )
