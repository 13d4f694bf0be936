"""Tables of failures: CSV files whose times have their unit in the column's name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic_core import PydanticCustomError

from simdp.errors import ScenarioError
from simdp.files import read_text
from simdp.spec import problem
from simdp.tables import Line, parse_cell, parse_lines


def lines_of(path: Path, required: Sequence[str], optional: Sequence[str] = ()) -> list[Line]:
    """Read a table, as `parse_lines` does; what is wrong is raised as a validator's problem."""
    try:
        return parse_lines(read_text(path, "a table is CSV"), str(path), required, optional)
    except ScenarioError as error:
        raise problem(str(error)) from None


def numbers(path: Path, lines: Sequence[Line], column: str) -> list[float]:
    """Read a column of numbers of 0 or more."""
    return [number(path, line, column) for line in lines]


def number(path: Path, line: Line, column: str) -> float:
    """Read a number of 0 or more."""
    try:
        return parse_cell(column, line.cells[column])
    except ValueError as error:
        raise at(path, line, str(error)) from None


def at(path: Path, line: Line, message: str) -> PydanticCustomError:
    """The problem with a line of a file."""
    return problem(f"{path}:{line.number}: {message}")
