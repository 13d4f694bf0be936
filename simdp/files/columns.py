"""Tables of plain values that other programs read: CSV, and Parquet where pyarrow is installed."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from simdp.errors import ScenarioError

Write = Callable[[Mapping[str, Sequence[Any]], BinaryIO], None]


def table_writer(path: Path) -> Write:
    """Choose how a table is written, by how its file's name ends, before there is a table.

    Returns
    -------
    callable
        Takes values by column, and a binary stream.

    Raises
    ------
    ScenarioError
        If the name ends otherwise, or the library is missing.
    """
    if path.suffix == ".csv":
        return _put_csv
    if path.suffix != ".parquet":
        raise ScenarioError(
            [f"{path}: a table's name ends with .csv or .parquet; name it so, as sweep.csv."]
        )
    try:
        import pyarrow  # noqa: F401  an extra, which few have
    except ImportError:
        raise ScenarioError(
            [f"{path}: needs pyarrow; pip install 'simdp[table]', or write .csv."]
        ) from None
    return _put_parquet


def _put_csv(columns: Mapping[str, Sequence[Any]], stream: BinaryIO) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*map(_cells, columns.values()), strict=True))
    stream.write(text.getvalue().encode())


def _cells(values: Sequence[Any]) -> list[Any]:
    """True and false as JSON has them; None is empty."""
    words = {True: "true", False: "false"}
    return [words[value] if isinstance(value, bool) else value for value in values]


def _put_parquet(columns: Mapping[str, Sequence[Any]], stream: BinaryIO) -> None:
    import pyarrow
    import pyarrow.parquet

    arrays = {name: pyarrow.array(values) for name, values in columns.items()}
    pyarrow.parquet.write_table(pyarrow.table(arrays), stream)
