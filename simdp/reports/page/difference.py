"""The page of a difference: what changed between two results, and what explains it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simdp.reports import difference_table, theme
from simdp.reports.figures import seconds
from simdp.reports.page.sections import Axis, Chart, Page, Section, Series, Summary, Tile, Verdict
from simdp.reports.page.told import told
from simdp.reports.plots.step_parts import PARTS as FILLS
from simdp.results.difference import Difference, PointDifference

LOOKS = {
    **FILLS,
    "compute_and_update_s": (difference_table.NAMES["compute_and_update_s"], FILLS["compute_s"][1]),
}
"""Names and fills of the parts of a step."""


def page(found: Difference, command: Sequence[str] = ()) -> Page:
    """Make the page of what changed.

    Parameters
    ----------
    found : Difference
        With at least one point.
    command : sequence of str
        Not shown: both sides are files of the reader's.
    """
    notes = [*difference_table.remarks(found)]
    lines = [line.strip() for line in difference_table.words(found)]
    longest = max(point.seconds for point in found.points)
    sections: list[Section] = [
        Verdict("What explains it", lines[1:], "note" if longest > 0 else "good"),
        *_summary(found),
        bars(found),
        *(
            told(name.capitalize(), heads, rows)
            for name, heads, rows in difference_table.grids(found)
            if rows
        ),
        *[Verdict("Notes", notes) for _ in notes[:1]],
    ]
    return Page(
        f"{found.a.name} and {found.b.name}: what changed",
        difference_table.headline(found),
        sections,
        f"{found.a.name}: {_made(found.a.version)} · {found.b.name}: {_made(found.b.version)} · "
        f"compared by simdp {found.version}",
    )


def _made(version: str | None) -> str:
    return "a real run" if version is None else f"simdp {version}"


def _summary(found: Difference) -> Iterator[Section]:
    if len(found.points) > 1:
        return
    (point,) = found.points
    first = point.parts[0]
    yield Summary(
        "Summary",
        [
            Tile("step of A", seconds(point.a_s), found.a.name),
            Tile("step of B", seconds(point.b_s), found.b.name),
            Tile(
                "B - A",
                difference_table.signed(point.seconds),
                f"{point.b_s / point.a_s:.3g} x as long",
            ),
            Tile(
                "most of it",
                difference_table.NAMES[first.part],
                difference_table.signed(first.seconds),
            ),
        ],
    )


def bars(found: Difference) -> Section:
    """Steps of both sides in parts, of each point two bars."""
    unit, per_second = theme.time_unit(max(max(p.a_s, p.b_s) for p in found.points))
    names = [name for point in found.points for name in _names(point, found)]
    present = [part for part in LOOKS if any(part == p.part for p in found.points[0].parts)]
    series = []
    for key in present:
        values = [
            value * per_second
            for point in found.points
            for part in point.parts
            if part.part == key
            for value in (part.a, part.b)
        ]
        name, fill = LOOKS[key]
        series.append(
            Series(name, names, values, "bar", color=fill.color, hatch=fill.hatch, stack="step")
        )
    return Chart(
        "Where a step's time goes",
        Axis("", "category"),
        Axis(f"Time [{unit}], mean over ranks", unit=unit),
        series,
        said="Two bars for each point, A above B; their parts add up to the steps.",
        sideways=True,
    )


def _names(point: PointDifference, found: Difference) -> list[str]:
    lead = f"{difference_table.label(point.set)}: " if len(found.points) > 1 else ""
    return [f"{lead}A", f"{lead}B"]
