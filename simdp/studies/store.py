"""Stores finished points and reuses them.

A point is kept under all that it depends on: the scenario as resolved, what is in the files that it
names, what was asked for beside it, and the versions of simdp and NumPy. So it is never taken for
another one, whatever was changed meanwhile. Only the process that asks for points writes, as soon
as one is done.
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import numpy as np
from pydantic import TypeAdapter, ValidationError

import simdp
from simdp.arrays import Array
from simdp.files import fingerprint, put_npz
from simdp.files.records import RecordFile, StoredRecord
from simdp.scenario import Scenario
from simdp.scenario.overrides import named_files
from simdp.studies.executor import CompletedItem, Failed, PointExecutor

# Store --------------------------------------------------------------------------------------------

FILE = "points.sqlite"
"""What the file is called in a folder that is named."""


class Store:
    """Finished points; a context manager, which closes the file.

    Parameters
    ----------
    path : Path
        A file, or a folder that gets one. Made when the first point is done.
    go_on : bool
        Whether points that are there are taken, of this study or an earlier one; else all are
        played anew, and replace them.

    Attributes
    ----------
    num_found : int
        How many were taken so far.

    Raises
    ------
    ScenarioError
        If the file is damaged, of something else, or laid out by another version of simdp.
    """

    def __init__(self, path: Path, go_on: bool = False) -> None:
        is_file = path.is_file() or (path.suffix and not path.is_dir())
        self.path = path if is_file else path / FILE
        self.go_on, self.num_found = go_on, 0
        self._records = RecordFile(self.path)

    @property
    def num_other(self) -> int:
        """Points that other versions of simdp have left here, which are never taken."""
        return self._records.count(other_than=simdp.__version__)

    def get(self, key: str) -> dict[str, Any] | None:
        """Take a point that is there; None where there is none, or its record is damaged."""
        record = self._records.get(key) if self.go_on else None
        if record is None:
            return None
        try:
            found = json.loads(zlib.decompress(record.value))
        except (zlib.error, ValueError):
            return None
        if not isinstance(found, dict):
            return None
        self.num_found += 1
        return found

    def arrays(self, key: str) -> dict[str, Array]:
        """Arrays of a point that is there; none where it has none, or they are damaged."""
        record = self._records.get(key) if self.go_on else None
        if record is None or record.more is None:
            return {}
        try:
            with np.load(io.BytesIO(record.more), allow_pickle=False) as file:
                return dict(file)
        except Exception:  # zipfile and NumPy raise all kinds of errors at damaged files
            return {}

    def put(
        self, key: str, value: Mapping[str, Any], arrays: Mapping[str, Array] | None = None
    ) -> None:
        """Keep a point that is done, at once.

        Parameters
        ----------
        key : str
            From `key_of`.
        value : mapping
            Plain data; what is not finite stays so.
        arrays : mapping of str to ndarray, optional
            What is too large for that.

        Raises
        ------
        ScenarioError
            If the file cannot be written to.
        """
        more = None
        if arrays is not None:
            stream = io.BytesIO()
            put_npz(arrays, stream)
            more = stream.getvalue()
        record = StoredRecord(zlib.compress(json.dumps(value).encode(), 1), more)
        self._records.put(key, simdp.__version__, record)

    def close(self) -> None:
        """Close the file; points are safe without this, too."""
        self._records.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def key_of(point: Scenario, *more: object) -> str:
    """Name a point by all that it depends on.

    Parameters
    ----------
    point : Scenario
        What is in its files counts, too.
    *more : value
        What was asked for beside it.
    """
    return key_of_plain(point.resolved(), point.base, *more)


def key_of_plain(raw: Mapping[str, Any], base: Path, *more: object) -> str:
    """As `key_of`, of a scenario that is resolved already."""
    import hashlib  # which only studies of many runs need

    files = [_print_of(path) for path in named_files(dict(raw), base)]
    versions = [simdp.__version__, np.__version__]
    of = json.dumps([versions, *more, raw, files], sort_keys=True)
    return hashlib.sha256(of.encode()).hexdigest()[:32]


def _print_of(path: Path) -> str:
    """What is in a file; read once, until it changes."""
    try:
        about = path.stat()
    except OSError:
        return ""
    return _print_known(path, about.st_mtime_ns, about.st_size)


@lru_cache(maxsize=256)
def _print_known(path: Path, changed: int, nbytes: int) -> str:
    return fingerprint(path)


def key_of_all(keys: Sequence[str], *more: object) -> str:
    """Name what depends on several points, by their keys and what was asked for beside them."""
    import hashlib  # as above

    of = json.dumps([keys, *more], sort_keys=True)
    return hashlib.sha256(of.encode()).hexdigest()[:32]


T = TypeVar("T")
R = TypeVar("R")


def done_in_order(
    function: Callable[[T], R],
    items: Sequence[T],
    *,
    executor: PointExecutor,
    keep: Keep[T, R] | None = None,
) -> Iterator[R]:
    """Do many things of any kind; results come in the order of the items.

    Parameters
    ----------
    function, items
        As of `Executor.each`.
    executor : Executor
        Who does them.
    keep : Keep, optional
        Where each result is written when it is there, and taken from.

    Raises
    ------
    Exception
        That of the first item that fails, when its turn comes.
    """
    found: dict[int, R | Failed] = {} if keep is None else keep.taken(items)
    waiting = [number for number in range(len(items)) if number not in found]
    outcomes = executor.each(function, [items[number] for number in waiting])
    for wanted in range(len(items)):
        while wanted not in found:
            place, outcome = next(outcomes)
            number = waiting[place]
            found[number] = outcome if isinstance(outcome, Failed) else outcome.value
            if keep is not None and isinstance(outcome, CompletedItem):
                keep.put(items[number], outcome.value)
        one = found.pop(wanted)
        if isinstance(one, Failed):
            raise one.error
        yield one


class Keep(Generic[T, R]):
    """How results of some kind are kept in a store.

    Parameters
    ----------
    store : Store
        Where.
    key : callable
        Names an item by all that its result depends on.
    kind : type
        Of the results: dataclasses, named tuples and what they consist of.
    """

    def __init__(self, store: Store, key: Callable[[T], str], kind: Any) -> None:
        self.store, self.key = store, key
        self._adapter: TypeAdapter[R] = TypeAdapter(kind)

    def taken(self, items: Sequence[T]) -> dict[int, R | Failed]:
        """Results that are there, by the numbers of their items."""
        found: dict[int, R | Failed] = {}
        for number, item in enumerate(items):
            kept = self.store.get(self.key(item))
            if kept is None:
                continue
            try:
                found[number] = self._adapter.validate_python(kept["value"])
            except (ValidationError, KeyError):
                self.store.num_found -= 1
        return found

    def put(self, item: T, value: R) -> None:
        """Keep a result."""
        self.store.put(self.key(item), {"value": self._adapter.dump_python(value)})
