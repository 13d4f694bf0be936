"""Tables for the terminal that are as wide as they are: a number that is cut off helps nobody."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text


def wide_table(
    title: str, columns: Sequence[tuple[str, bool]], rows: Iterable[Sequence[str]]
) -> Table:
    """Make a table.

    Parameters
    ----------
    title : str
        Above it.
    columns : sequence of (str, bool)
        The head of each, and whether it holds numbers, which stand to the right.
    rows : iterable of sequence of str
        Cells.
    """
    table = Table(title=Text(title), box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for head, is_number in columns:
        table.add_column(head, justify="right" if is_number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    widen(table)
    return table


def widen(table: Table) -> None:
    """Let a table be as wide as its cells are, whatever the terminal is."""
    wide = Console(width=1000)
    table.width = Measurement.get(wide, wide.options, table).maximum
