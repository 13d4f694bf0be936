"""Told: tables of the terminal as sections, whose figures sort by what they say."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from simdp.reports.figures import LONG_UNITS, UNITS
from simdp.reports.money_rows import DURATIONS, ENERGIES
from simdp.reports.page.sections import Cell, Table

SIZES = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))

SCALES = {
    **dict((*UNITS, *LONG_UNITS, *SIZES, *ENERGIES)),
    **{unit: scale for unit, scale, _ in DURATIONS},
    "%": 0.01,
    "x": 1.0,
    "USD": 1.0,
    "": 1.0,
}
"""What a figure's unit makes of it; within a column all are of one dimension."""

FIGURE = re.compile(r"[+-]?[\d,]*\.?\d+(?:e[+-]?\d+)?")
UNIT = re.compile(r" ?([A-Za-z%]*)(?:/s)?\*?")


def value_of(text: str) -> float | None:
    """Read the figure that a cell begins with, in the unit that all of its column are brought to.

    None for a text that begins with no figure, or one whose unit is unknown.
    """
    text = text.strip()
    found = FIGURE.match(text)
    if found is None:
        return None
    unit = UNIT.match(text, found.end())
    scale = None if unit is None else SCALES.get(unit[1])
    return None if scale is None else float(found[0].replace(",", "")) * scale


def told(
    title: str,
    columns: Sequence[tuple[str, bool]],
    rows: Iterable[Sequence[str]],
    note: str = "",
) -> Table:
    """Make a table of what the terminal shows.

    Parameters
    ----------
    title : str
        Above it.
    columns : sequence of (str, bool)
        The head of each, and whether it holds figures.
    rows : iterable of sequence of str
        Cells, as the terminal shows them.
    note : str
        Below it.
    """
    numeric = [is_number for _, is_number in columns]
    cells = [
        [
            Cell(text.strip(), value_of(text) if is_number else None)
            for text, is_number in zip(row, numeric, strict=True)
        ]
        for row in rows
    ]
    return Table(title, [head for head, _ in columns], cells, note=note)
