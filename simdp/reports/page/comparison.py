"""The page of a comparison: points side by side."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from simdp.reports import compare_table, theme
from simdp.reports.captions import about_scenario
from simdp.reports.figures import PARTS, nbytes, percent, seconds, share
from simdp.reports.page.closing import closing
from simdp.reports.page.sections import (
    Axis,
    Chart,
    Page,
    Section,
    Series,
    Summary,
    Tile,
    Verdict,
)
from simdp.reports.page.step import steps as bars
from simdp.reports.page.told import told
from simdp.results.comparison import ComparedPoint, Comparison, best_of, short_key


def page(found: Comparison, command: Sequence[str] = ()) -> Page:
    """Make the page of a comparison.

    Parameters
    ----------
    found : Comparison
        With at least one point that ran.
    command : sequence of str
        As for `simdp.reports.page.study.page`.
    """
    title, heads, rows = compare_table.grid(found)
    foot, *notes = compare_table.remarks(found)
    sections = [
        *_verdict(found),
        *_summary(found),
        *[Verdict("Warnings", careful, "warning") for careful in [_careful(found)] if careful],
        told("The points", heads, rows, f"{title.partition(', ')[2]}; {foot}"),
        steps("Where a step's time goes", found.ran),
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
    """What makes the same comparison of the scenario at the end of the page."""
    over = [f"--over={key}={_listed(values)}" for key, values in found.over.items()]
    return ["compare", f"{found.scenario['name']}.yaml", *over]


def _listed(values: Sequence[object]) -> str:
    return ",".join(one if isinstance(one, str) else json.dumps(one) for one in values)


def _verdict(found: Comparison) -> Iterator[Section]:
    best = best_of([point.metrics for point in found.points])
    if best is None:
        return
    point = found.points[best]
    assert point.metrics is not None
    rates = {
        one.label: one.metrics["throughput_samples_per_s"]
        for one in found.ran
        if one.metrics and one.metrics["throughput_samples_per_s"]
    }
    own, ties = rates.pop(point.label), compare_table.tied(found)
    said = f"{point.label} trains most samples per second"
    others = sorted(((rate, label) for label, rate in rates.items()), reverse=True)
    if others:
        told = [f"{_more(own / rate)} {label}" for rate, label in (others[0], others[-1])]
        said += ": " + ", and ".join(dict.fromkeys(told))
    m = point.metrics
    largest = max(PARTS, key=lambda key: m[key])
    whose = f"a step of {point.label}" if ties else "its step"
    yield Verdict(
        "Verdict",
        [
            *(ties or [f"{said}."]),
            f"Most of {whose}, {share(m[largest], m['step_time_s'])}, is {PARTS[largest]}.",
        ],
        "note" if ties else "good",
    )


def _more(ratio: float) -> str:
    return f"{percent(ratio - 1)} more than" if ratio < 2 else f"{ratio:.3g} times as many as"


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
            Tile("its step", seconds(point.metrics["step_time_s"])),
            Tile("its memory", nbytes(point.device_bytes or 0.0), "of the fullest device"),
            Tile("points", str(len(found.points)), f"{len(found.ran)} of them ran"),
        ],
    )


def _careful(found: Comparison) -> list[str]:
    """What does not fit, and what cannot run."""
    lines = [
        f"{point.label} does not fit: it needs {nbytes(point.device_bytes or 0.0)} of a device "
        f"with {nbytes(point.capacity_bytes or 0.0)}."
        for point in found.ran
        if point.metrics and point.metrics["fits_memory"] is False
    ]
    return lines + [f"{p.label} cannot run: {p.problems[0]}" for p in found.points if p.problems]


def steps(title: str, points: Sequence[ComparedPoint]) -> Section:
    """What a step of each point is made of, as bars that lie."""
    return bars(
        title,
        [point.label for point in points],
        [point.metrics or {} for point in points],
        said="A bar for each point; its parts add up to the step.",
    )


def memory(points: Sequence[ComparedPoint]) -> Section:
    """How full the fullest device is."""
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
