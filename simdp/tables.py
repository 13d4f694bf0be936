"""Tables of names and numbers, written as CSV."""

from __future__ import annotations

import csv
import math
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from simdp.errors import ScenarioError, shown, unknown_name
from simdp.files import read_text

LARGEST = 1e15
"""Largest number in a table: a petabyte, or thirty years in microseconds."""


class NamedRow(NamedTuple):
    """A line of a table: its number in the file, its name, and its numbers by column."""

    line: int
    name: str
    numbers: dict[str, float]


class TableLine(NamedTuple):
    """A line of a table: its number in the file, and the text of each column."""

    number: int
    cells: dict[str, str]


class SampleTable(NamedTuple):
    """Samples of a table."""

    values: array[float]
    """Features of the first sample, of the second, and so on."""
    labels: list[str]
    """Text in the column of labels, never empty."""
    lines: list[int]
    """The line of each sample in the file."""


def parse_samples(
    text: str, where: str, label: str, features: Sequence[str] | None = None
) -> SampleTable:
    """Read samples from a text; lines that begin with # are comments.

    Parameters
    ----------
    text : str
        CSV; the first line that is no comment names the columns.
    where : str
        Leads the errors, for example the file.
    label : str
        A column.
    features : sequence of str, optional
        Columns of finite numbers; all but ``label`` if left out.

    Raises
    ------
    ScenarioError
        With the line, the column and the reason.
    """
    lines = ("" if line.startswith("#") else line for line in text.splitlines())
    reader = csv.reader(lines, strict=True)
    columns, chosen, at_label = list[str](), list[tuple[str, int]](), 0
    samples = SampleTable(array("d"), [], [])
    try:
        for cells in reader:
            if not any(map(str.strip, cells)):
                continue
            if not columns:
                columns = [cell.strip() for cell in cells]
                wanted = [*(features or [column for column in columns if column != label]), label]
                counts = Counter(columns)
                places = {name: place for place, name in enumerate(columns)}
                chosen = [(name, _place(places, counts, name)) for name in wanted]
                at_label = chosen.pop()[1]
                continue
            if len(cells) != len(columns):
                raise ValueError(f"has {len(cells)} cells for {len(columns)} columns.")
            samples.values.extend([_finite(name, cells[place]) for name, place in chosen])
            if not (cell := cells[at_label].strip()):
                raise ValueError(f"{label} is empty; leave the line out.")
            samples.labels.append(cell)
            samples.lines.append(reader.line_num)
    except csv.Error as error:
        raise ScenarioError([f"{where}:{reader.line_num}: is not valid CSV: {error}."]) from None
    except ValueError as error:
        raise ScenarioError([f"{where}:{reader.line_num}: {error}"]) from None
    if not samples.labels or not chosen:
        lacks = "columns of features" if samples.labels else "rows below its columns"
        raise ScenarioError([f"{where}: has no {lacks if columns else 'lines'}."])
    return samples


def _place(places: Mapping[str, int], counts: Counter[str], name: str) -> int:
    """Find a column.

    Raises
    ------
    ValueError
        If it is not there, or twice.
    """
    if name not in places:
        hint = ""
        if len(places) == 1 and any(sign in next(iter(places)) for sign in ";\t"):
            hint = " Separate the columns by commas."
        raise ValueError(f"{unknown_name('column', name, list(places))}{hint}")
    if counts[name] > 1:
        raise ValueError(f"the column {name} is there twice.")
    return places[name]


def _finite(column: str, cell: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        raise ValueError(
            f"{column} {shown(cell)} is not a number; give one, or list other features."
        ) from None
    if not math.isfinite(value):
        raise ValueError(f"{column} {cell} is not finite; give a finite number.")
    return value


def parse_lines(
    text: str, where: str, required: Sequence[str], optional: Sequence[str] = ()
) -> list[TableLine]:
    """Read a table of any cells from a text; lines that begin with # are comments.

    Parameters
    ----------
    text : str
        CSV; the first line that is no comment names the columns, in any order.
    where : str
        Leads the errors, for example the file.
    required, optional : sequence of str
        Columns that must be there, and that may.

    Returns
    -------
    list of Line
        In the order of the text; at least one.

    Raises
    ------
    ScenarioError
        With the line and the reason.
    """
    uncommented = ("" if line.startswith("#") else line for line in text.splitlines())
    reader = csv.reader(uncommented, strict=True)
    lines, columns = list[TableLine](), list[str]()
    try:
        for cells in reader:
            cells = [cell.strip() for cell in cells]
            if not columns and any(cells):
                columns = _columns(cells, required, optional)
            elif any(cells):
                if len(cells) != len(columns):
                    raise ValueError(f"has {len(cells)} cells for {len(columns)} columns.")
                lines.append(TableLine(reader.line_num, dict(zip(columns, cells, strict=True))))
    except csv.Error as error:
        raise ScenarioError([f"{where}:{reader.line_num}: is not valid CSV: {error}."]) from None
    except ValueError as error:
        raise ScenarioError([f"{where}:{reader.line_num}: {error}"]) from None
    if not lines:
        lacks = "rows below its columns" if columns else f"lines; begin with {','.join(required)}"
        raise ScenarioError([f"{where}: has no {lacks}."])
    return lines


def parse_csv(
    text: str, where: str, required: Sequence[str], optional: Sequence[str] = ()
) -> list[NamedRow]:
    """Read a table from a text; lines that begin with # are comments.

    Parameters
    ----------
    text : str
        CSV; the first line that is no comment names the columns, in any order.
    where : str
        Leads the errors, for example the file.
    required : sequence of str
        Required columns. The first one names the rows uniquely; the others, and those of
        ``optional``, hold finite numbers of 0 or more.
    optional : sequence of str
        Columns that may be there.

    Returns
    -------
    list of Row
        In the order of the text; at least one.

    Raises
    ------
    ScenarioError
        With the line and the reason.
    """
    rows: list[NamedRow] = []
    first_line = dict[str, int]()
    for line in parse_lines(text, where, required, optional):
        try:
            row = _row(line, required[0])
            if row.name in first_line:
                raise ValueError(f"{row.name!r} is in line {first_line[row.name]} already.")
        except ValueError as error:
            raise ScenarioError([f"{where}:{line.number}: {error}"]) from None
        first_line[row.name] = row.line
        rows.append(row)
    return rows


def read_csv(path: Path, required: Sequence[str], optional: Sequence[str] = ()) -> list[NamedRow]:
    """Read a table of names and numbers from a CSV file, as `parse_csv` does.

    Raises
    ------
    ScenarioError
        With the file, the line and the reason.
    """
    return parse_csv(read_text(path, "a table is CSV"), str(path), required, optional)


def _columns(cells: list[str], required: Sequence[str], optional: Sequence[str]) -> list[str]:
    known = [*required, *optional]
    for column, count in Counter(cells).items():
        if column not in known:
            raise ValueError(unknown_name("column", column, known))
        if count > 1:
            raise ValueError(f"the column {column} is there twice.")
    for column in required:
        if column not in cells:
            raise ValueError(f"the column {column} is missing; given: {', '.join(cells)}.")
    return cells


def _row(line: TableLine, name: str) -> NamedRow:
    if not line.cells[name]:
        raise ValueError(f"{name} is empty.")
    columns = [column for column in line.cells if column != name]
    numbers = {column: parse_cell(column, line.cells[column]) for column in columns}
    return NamedRow(line.number, line.cells[name], numbers)


def parse_cell(column: str, cell: str) -> float:
    """Read a finite number of 0 or more from a table.

    Raises
    ------
    ValueError
        With the column and the reason.
    """
    try:
        value = float(cell)
    except ValueError:
        raise ValueError(f"{column} {cell!r} is not a number.") from None
    if not 0 <= value < float("inf"):
        raise ValueError(f"{column} {cell} is out of range; it must be >= 0 and finite.")
    if value > LARGEST:
        raise ValueError(f"{column} {cell} is out of range; it must be <= {LARGEST:g}.")
    return value
