"""Differences between two results for the terminal: a summary first, then side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from simdp.errors import joined
from simdp.keys import short_key, written
from simdp.reports import figures
from simdp.reports.figures import WIDTH, TableCell, number, percent, seconds, unit_of
from simdp.reports.sections import Table, num_texts, table_of
from simdp.reports.wide_table import narrow_tables
from simdp.results.comparison import Difference, Figure, KeyChange, PartChange, PointDifference
from simdp.results.metrics import PART_TITLES

# parts of a step in words
NAMES = {
    **PART_TITLES,
    "exposed_comm_s": "exposed communication",
    "compute_and_update_s": "compute and update",
}

LEAST = 1e-4  # least part of a step that is put into words
TINY = 1e-12  # largest rounding error of an unchanged time [s]
MAX_SHOWN = 40  # letters of a value beside its key
MAX_KEYS = 24  # keys of the table; the JSON has all
Columns = list[tuple[str, bool]]


def table(difference: Difference) -> RenderableType:
    """Write a difference of at least one point."""
    written = [
        line
        for paragraph in words(difference)
        for line in wrap(paragraph, WIDTH, subsequent_indent="    ")
    ]
    tables = [part for section in sections(difference) for part in narrow_tables(section)]
    foot = [
        line
        for paragraph in remarks(difference)
        for line in wrap(paragraph, WIDTH, subsequent_indent="  ")
    ]
    return Group(Text("\n".join(written)), *tables, *map(Text, foot))


def words(difference: Difference) -> list[str]:
    """Explain the difference, a line per cause, the largest first."""
    if len(difference.points) > 1:
        return [headline(difference), *map(_line_of_point, difference.points)]
    return [headline(difference), *explanation(difference.points[0])]


def headline(difference: Difference) -> str:
    """Write how much longer a step is in B."""
    names = f"{difference.a.name} -> {difference.b.name}"
    if len(difference.points) == 1:
        return f"{names}: step {_from_to(difference.points[0])}"
    longer = sum(point.seconds > LEAST * point.a_s for point in difference.points)
    shorter = sum(point.seconds < -LEAST * point.a_s for point in difference.points)
    same = len(difference.points) - longer - shorter
    counts = ((longer, "longer"), (shorter, "shorter"), (same, "the same"))
    counted = ", ".join(f"{count} {word}" for count, word in counts if count)
    return f"{names}: steps of {len(difference.points)} points: {counted}"


def explanation(point: PointDifference) -> list[str]:
    """Explain one point's change by the parts of its step."""
    lines = [
        "  " + part_in_words(part, point)
        for part in point.parts
        if abs(part.seconds) > LEAST * point.a_s
    ]
    if point.interval_s is not None:
        low, high = point.interval_s
        inside = "inside" if low <= point.b_s <= high else "outside"
        lines.append(
            f"  {seconds(point.b_s)} is {inside} the simulated 90 % interval, {seconds(low)} to "
            f"{seconds(high)}"
        )
    return lines or ["  no part of the step changed"]


def part_in_words(part: PartChange, point: PointDifference) -> str:
    """Write one part's change, with the keys or the evidence that explain it."""
    text = f"{NAMES[part.part]} {signed(part.seconds)}"
    changed = [change_in_words(change) for change in point.keys if change.key in part.keys]
    text += f" ({'; '.join(changed)})" if changed else ""
    return joined([text, *part.evidence])


def change_in_words(change: KeyChange) -> str:
    """Write a key with both values."""
    before, after = values(change)
    return f"{short_key(change.key)} {before} -> {after}"


def _line_of_point(point: PointDifference) -> str:
    line = f"  {label(point.set)}: {_from_to(point)}"
    first = point.parts[0]
    more = abs(first.seconds) > LEAST * point.a_s
    return line + (f": {part_in_words(first, point)}" if more else "")


def label(chosen: dict[str, Any]) -> str:
    """Name a point by the keys that it sets."""
    settings = [f"{short_key(key)}: {written(value)}" for key, value in chosen.items()]
    return ", ".join(settings) or "the run"


def _from_to(point: PointDifference) -> str:
    times = f"{seconds(point.a_s)} -> {seconds(point.b_s)}"
    if abs(point.seconds) <= LEAST * point.a_s:
        return f"{times}, the same"
    if point.a_s and point.b_s >= 2 * point.a_s:
        return f"{times}, {signed(point.seconds)} ({point.b_s / point.a_s:.3g} times as long)"
    word = "longer" if point.seconds > 0 else "shorter"
    return f"{times}, {signed(point.seconds)} ({percent(abs(point.seconds) / point.a_s)} {word})"


def signed(value: float) -> TableCell:
    """Write a time with its sign."""
    return figures.signed_seconds(value, TINY)


def sections(difference: Difference) -> Iterator[Table]:
    """Make the tables that have rows."""
    if len(difference.points) > 1:
        made = [_points(difference.points), _common_keys(difference.points)]
    else:
        (point,) = difference.points
        keys = _keys("keys that differ", point.keys, point.rest_s)
        made = [_parts(point), keys, _figures(point)]
    for title, columns, rows in made:
        if rows:
            yield table_of(title, columns, rows, num_keys=num_texts(columns) or 1)


def _parts(point: PointDifference) -> tuple[str, Columns, list[list[str]]]:
    unit, scale = unit_of([point.a_s, point.b_s])
    columns = [("per step", False), ("A", True), ("B", True), ("B - A", True), ("of it", True)]
    rows = [["step time", *_times(point.a_s, point.b_s, scale), ""]]
    order = list(NAMES)
    for part in sorted(point.parts, key=lambda part_change: order.index(part_change.part)):
        changed = min(abs(part.seconds), abs(point.seconds)) > TINY
        of = percent(part.seconds / point.seconds) if changed else "-"
        rows.append([f"  {NAMES[part.part]}", *_times(part.a, part.b, scale), of])
    return f"a steady step, times in {unit}", columns, rows


def _times(a: float, b: float, scale: float) -> list[str]:
    return [number(a / scale), number(b / scale), _change(b - a, scale)]


def _change(value: float, scale: float) -> TableCell:
    return number(value / scale, "+.4g") if abs(value) > TINY else TableCell("0", 0.0)


def _figures(point: PointDifference) -> tuple[str, Columns, list[list[str]]]:
    columns = [("", False), ("A", True), ("B", True), ("B / A", True)]
    rows = []
    for row in point.figures:
        ratio = row.b / row.a if row.a and row.b is not None else None
        rows.append([row.name, figure(row, row.a), figure(row, row.b), _times_as(ratio)])
    return "beside it", columns, rows


def figure(of: Figure, value: float | None) -> str:
    """Write a figure in its unit."""
    return figures.WRITERS.get(of.unit, figures.large_number)(value)


def _times_as(ratio: float | None) -> TableCell:
    return figures.figure(ratio, ".3g", "x")


def _keys(
    title: str, keys: Sequence[KeyChange], rest: float | None
) -> tuple[str, Columns, list[list[str]]]:
    columns: Columns = [("key", False), ("A", False), ("B", False)]
    known = any(change.seconds is not None for change in keys)
    columns += [("by itself", True)] * known
    rows = [
        [change.key, *values(change), *[by_itself(change)] * known] for change in keys[:MAX_KEYS]
    ]
    if rest is not None and len(keys) > 1:
        rows.append(["the rest", "", "", signed(rest)])
    return title, columns, rows


def by_itself(change: KeyChange) -> TableCell:
    """Write a key's own effect on a step; both estimates if they differ."""
    ways = [way for way in (change.from_a, change.to_b) if way is not None]
    effects = list(dict.fromkeys(map(signed, ways)))
    known = " or ".join(effects)
    value = effects[0].value if effects else None
    if not change.together:
        return TableCell(known or "-", value)
    words = [*[known] * bool(known), "with", ", ".join(map(short_key, change.together))]
    return TableCell(" ".join(words), value)


def _points(points: Sequence[PointDifference]) -> tuple[str, Columns, list[list[str]]]:
    unit, scale = unit_of(time for point in points for time in (point.a_s, point.b_s))
    keys = list(dict.fromkeys(key for point in points for key in point.set))
    columns: Columns = [(short_key(key), False) for key in keys]
    columns += [("A", True), ("B", True), ("B - A", True), ("B / A", True)]
    parts = [
        part for part in NAMES if any(part == part_change.part for part_change in points[0].parts)
    ]
    columns += [(PART_TITLES.get(part, NAMES[part]), True) for part in parts]
    rows = []
    for point in points:
        by_name = {part_change.part: part_change.seconds for part_change in point.parts}
        rows.append(
            [
                *(written(point.set.get(key)) for key in keys),
                *_times(point.a_s, point.b_s, scale),
                _times_as(point.b_s / point.a_s if point.a_s else None),
                *(_change(by_name[part], scale) for part in parts),
            ]
        )
    return f"steady steps, times in {unit}; parts: B - A", columns, rows


def _common_keys(points: Sequence[PointDifference]) -> tuple[str, Columns, list[list[str]]]:
    """List the keys that differ at every point in the same way, without effects."""
    shared = [
        KeyChange(change.key, change.a, change.b)
        for change in points[0].keys
        if all(
            (change.key, change.a, change.b) in [(k.key, k.a, k.b) for k in p.keys] for p in points
        )
    ]
    return _keys("keys that differ at every point", shared, None)


def remarks(difference: Difference) -> list[str]:
    """Explain the columns, and list notes."""
    lines = [f"A: {difference.a.name}; B: {difference.b.name}"]
    simulated = (
        k.seconds is not None for p in difference.points if len(p.keys) > 1 for k in p.keys
    )
    if len(difference.points) == 1 and any(simulated):
        lines.append(
            "by itself: what one key adds to a step, simulated both ways: A with the value of B "
            "less A, or B less B with the value of A; the rest: several together, and luck"
        )
    for side, only in ((difference.a, difference.only_a), (difference.b, difference.only_b)):
        if only:
            more = f" and {len(only) - 3} more" if len(only) > 3 else ""
            lines.append(f"only in {side.name}: {'; '.join(map(label, only[:3]))}{more}")
    most = max(len(point.keys) for point in difference.points)
    if most > MAX_KEYS:
        lines.append(f"{most} keys differ; all are in --json")
    return [*lines, *difference.notes]


def values(change: KeyChange) -> tuple[str, str]:
    """Write a key's two values; of different kinds or names only these."""
    a, b = change.a, change.b
    for key in ("kind", "name"):
        kinds = [value.get(key) if isinstance(value, dict) else None for value in (a, b)]
        if kinds[0] != kinds[1]:
            return str(kinds[0] or _shown(a)), str(kinds[1] or _shown(b))
    return _shown(a), _shown(b)


def _shown(value: Any) -> str:
    text = written(value)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 4]} ..."
