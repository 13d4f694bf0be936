"""Tables of a validation for the terminal: every point, and what they say of each cluster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from simdp.reports import validation_words as words
from simdp.reports.validation_words import Column
from simdp.reports.wide_table import wide_table
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
    return wide_table(title, [(column.head, column.is_number) for column in columns], rows)
