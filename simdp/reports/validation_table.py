"""Tables of a validation for the terminal: every point, and what they say of each cluster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from simdp.reports import validation_words as words
from simdp.reports.validation_words import Column
from simdp.results.validation import Validation


def tables(validation: Validation) -> RenderableType:
    """Write a table per cluster, then one that sums up steps, and one collectives."""
    parts: list[RenderableType] = []
    for name in validation.clusters:
        points = validation.of(name).points
        if points:
            parts.append(_table(name, words.STEP_COLUMNS, map(words.step_cells, points)))
    steps = words.summary_rows(validation)
    if steps:
        parts.append(_table("Step times", words.SUMMARY_COLUMNS, steps))
    collectives = words.table_rows(validation)
    if collectives:
        parts.append(_table("Collectives", words.TABLE_COLUMNS, collectives))
    return Group(*parts, Text(words.EXPLAINED))


def _table(title: str, columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(title=Text(title), box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in columns:
        side = "right" if column.is_number else "left"
        table.add_column(column.head, justify=side, no_wrap=True)  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*map(Text, row))
    # As wide as it is: on a narrow terminal a number that is cut off is worse than a long line.
    wide = Console(width=1000)
    table.width = Measurement.get(wide, wide.options, table).maximum
    return table
