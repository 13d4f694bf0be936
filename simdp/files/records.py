"""SQLite records, and Parquet or CSV columns.

Each record is written separately and at once, so that a killed process loses none. Of two processes
that write the same file each waits for the other.
"""

from __future__ import annotations

import csv
import io
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from simdp.errors import ScenarioError
from simdp.files.documents import check_outputs, refuse_special

SIGN = 0x53694D64
"""By which a file of ours is known: SQLite's application_id."""

LAYOUT = 1
"""How such a file is laid out: its user_version."""

PATIENCE = 60.0
"""How long one waits for another that writes [s]."""

TABLE = """
create table records (key text primary key, version text not null, value blob not null, more blob)
without rowid
"""


class StoredRecord(NamedTuple):
    """Record of a key."""

    value: bytes
    """Its values."""
    more: bytes | None = None
    """Large values, stored separately."""


class RecordFile:
    """A file of records.

    Parameters
    ----------
    path : Path
        Made, with its folder, when the first record is written.

    Raises
    ------
    ScenarioError
        If the file exists and is of another kind or layout, or damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open: sqlite3.Connection | None = None
        if path.is_dir():
            raise ScenarioError([f"{path}: is a folder; name a file to keep points in."])
        refuse_special(path)
        check_outputs(path)
        if path.exists() and path.stat().st_size:
            with self._blamed():
                self._check(self._connected())

    def get(self, key: str) -> StoredRecord | None:
        """Record of a key; None without one."""
        if self._open is None:
            return None
        with self._blamed():
            row = self._open.execute("select value, more from records where key = ?", (key,))
            record = row.fetchone()
        return None if record is None else StoredRecord(*record)

    def put(self, key: str, version: str, record: StoredRecord) -> None:
        """Store a record, replacing the previous one."""
        with self._blamed():
            if self._open is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._lay_out(self._connected())
            self._connected().execute(
                "insert or replace into records values (?, ?, ?, ?)", (key, version, *record)
            )

    def count(self, other_than: str) -> int:
        """How many records are of another version."""
        if self._open is None:
            return 0
        with self._blamed():
            counted = self._open.execute(
                "select count(*) from records where version != ?", (other_than,)
            )
            return int(counted.fetchone()[0])

    def close(self) -> None:
        """Close the file; it is whole without this, too."""
        if self._open is not None:
            with suppress(sqlite3.Error):
                self._open.close()
            self._open = None

    def _connected(self) -> sqlite3.Connection:
        if self._open is None:
            self._open = sqlite3.connect(self.path, timeout=PATIENCE, isolation_level=None)
        return self._open

    def _check(self, connection: sqlite3.Connection) -> None:
        (sign,) = connection.execute("pragma application_id").fetchone()
        (layout,) = connection.execute("pragma user_version").fetchone()
        if sign != SIGN:
            self.close()
            raise ScenarioError(
                [f"{self.path}: is no file of finished points; name another, or remove it."]
            )
        if layout != LAYOUT:
            self.close()
            raise ScenarioError(
                [
                    f"{self.path}: was written by another version of simdp, in layout {layout}, "
                    f"and this one reads layout {LAYOUT}; name another file, or remove this one."
                ]
            )
        self._settle(connection)
        connection.execute(f"pragma user_version = {LAYOUT}")  # an error if it is read-only

    def _lay_out(self, connection: sqlite3.Connection) -> None:
        """Make the table, unless another process has made it meanwhile."""
        self._settle(connection)
        connection.execute("begin immediate")
        (sign,) = connection.execute("pragma application_id").fetchone()
        if sign != SIGN:
            connection.execute(f"pragma application_id = {SIGN}")
            connection.execute(f"pragma user_version = {LAYOUT}")
            connection.execute(TABLE)
        connection.execute("commit")

    def _settle(self, connection: sqlite3.Connection) -> None:
        """Write ahead, where the disk can: a process that is killed then loses nothing."""
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma synchronous = normal")

    @contextmanager
    def _blamed(self) -> Iterator[None]:
        """Describe the defect of the file in a line."""
        try:
            yield
        except sqlite3.OperationalError as error:
            self.close()
            raise ScenarioError([f"{self.path}: cannot be written to: {error}."]) from None
        except sqlite3.Error as error:
            self.close()
            raise ScenarioError(
                [
                    f"{self.path}: is damaged, or no file of finished points ({error}); "
                    "name another, or remove it."
                ]
            ) from None
        except OSError as error:
            why = error.strerror or error
            raise ScenarioError([f"{self.path}: cannot be written to: {why}."]) from None


# Columns ------------------------------------------------------------------------------------------

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
