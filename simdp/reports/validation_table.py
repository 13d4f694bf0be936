"""Tables of a validation for the terminal: every point, and what they say of each cluster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import fill

from rich.console import Group, RenderableType
from rich.text import Text

from simdp.reports import left_out_words
from simdp.reports import validation_words as words
from simdp.reports.figures import WIDTH
from simdp.reports.validation_words import Column
from simdp.reports.wide_table import narrow_tables
from simdp.results.left_out import LeftOut
from simdp.results.validation import Validation


def tables(validation: Validation) -> RenderableType:
    """Write a table per cluster, then one that sums up steps, and one collectives."""
    parts: list[RenderableType] = []
    for name in validation.clusters:
        points = validation.of(name).points
        if points:
            parts += _tables(name, words.STEP_COLUMNS, map(words.step_cells, points))
        exposed = words.exposed_rows(validation.of(name))
        if exposed:
            title = f"{name}: waiting for gradients when backward is over"
            parts += _tables(title, words.EXPOSED_COLUMNS, exposed)
    steps = words.summary_rows(validation)
    if steps:
        parts += _tables("Step times", words.SUMMARY_COLUMNS, steps)
    collectives = words.table_rows(validation)
    if collectives:
        parts += _tables("Collectives", words.TABLE_COLUMNS, collectives)
    wins = words.ring_wins(validation)
    if wins:
        parts.append(Text("\n".join([f"{words.RING_WINS}:", *(f"  {line}" for line in wins)])))
    parts += [
        Text(fill(line[:1].upper() + line[1:], WIDTH))
        for line in words.narrow_intervals(validation)
    ]
    explained = "\n".join(fill(line, WIDTH) for line in words.EXPLAINED.splitlines())
    return Group(*parts, Text(explained))


def fold_tables(found: LeftOut) -> RenderableType:
    """Write a table of the folds of steps, and one of those of collectives."""
    parts: list[RenderableType] = []
    for title, rows in left_out_words.titles(found):
        parts += _tables(title, left_out_words.FOLD_COLUMNS, rows)
    return Group(*parts, Text(fill(left_out_words.EXPLAINED, WIDTH)))


def _tables(
    title: str, columns: Sequence[Column], rows: Iterable[Sequence[str]]
) -> list[RenderableType]:
    """Write rows, by columns that a terminal has room for; texts lead, and say what a row is."""
    heads = [(column.head, column.is_number) for column in columns]
    num_keys = next((place for place, (_, number) in enumerate(heads) if number), len(heads))
    return [*narrow_tables(title, heads, list(rows), num_keys)]
