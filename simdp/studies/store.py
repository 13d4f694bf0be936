"""Stores finished points and reuses them.

The key of a point covers all its inputs: the resolved scenario, the contents of its files, the
source of its modules, the other arguments, and the versions of simdp and NumPy. Only the main
process writes, as each point finishes.
"""

from __future__ import annotations

import io
import json
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from modulefinder import ModuleFinder
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, Self, TypeVar

import numpy as np
from pydantic import TypeAdapter, ValidationError

from simdp.arrays import Array
from simdp.family import OUTSIDE_MODULES
from simdp.files import INSTALLED, fingerprint, put_npz
from simdp.files.records import RecordFile, StoredRecord
from simdp.scenario.overrides import named_files
from simdp.scenario.root import Scenario
from simdp.studies.executor import CompletedItem, Failed, PointExecutor
from simdp.version import __version__

# Store --------------------------------------------------------------------------------------------

FILE = "points.sqlite"  # file name inside a folder


class Store:
    """Finished points in a file; a context manager, which closes it.

    Parameters
    ----------
    path : Path
        A file, or a folder for one; created when the first point is done.
    go_on : bool
        Whether stored points are reused; otherwise they are simulated again and replaced.

    Attributes
    ----------
    num_found : int
        Number of reused points.

    Raises
    ------
    ScenarioError
        If the file is damaged, not a store, or written in another layout.
    """

    def __init__(self, path: Path, go_on: bool = False) -> None:
        is_file = path.is_file() or (path.suffix and not path.is_dir())
        self.path = path if is_file else path / FILE
        self.go_on, self.num_found = go_on, 0
        self._records = RecordFile(self.path)

    @property
    def num_other(self) -> int:
        """Number of points of other versions of simdp, which are never reused."""
        return self._records.count(other_than=__version__)

    def get(self, key: str) -> dict[str, Any] | None:
        """Read a stored point; None where it is missing or damaged."""
        record = self._records.get(key) if self.go_on else None
        if record is None:
            return None
        try:
            stored = json.loads(zlib.decompress(record.value))
        except (zlib.error, ValueError):
            return None
        if not isinstance(stored, dict):
            return None
        self.num_found += 1
        return stored

    def arrays(self, key: str) -> dict[str, Array]:
        """Read the arrays of a stored point; empty where they are missing or damaged."""
        record = self._records.get(key) if self.go_on else None
        if record is None or record.more is None:
            return {}
        try:
            with np.load(io.BytesIO(record.more), allow_pickle=False) as file:
                return dict(file)
        except Exception:  # zipfile and NumPy raise all kinds of errors at damaged files
            return {}

    def put(
        self, key: str, value: Mapping[str, object], arrays: Mapping[str, Array] | None = None
    ) -> None:
        """Store a finished point at once: plain data, even infinities and NaN, and arrays.

        A ScenarioError if the file cannot be written.
        """
        more = None
        if arrays is not None:
            stream = io.BytesIO()
            put_npz(arrays, stream)
            more = stream.getvalue()
        record = StoredRecord(zlib.compress(json.dumps(value).encode(), 1), more)
        self._records.put(key, __version__, record)

    def close(self) -> None:
        """Close the file; points are safe without it."""
        self._records.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def key_of(point: Scenario, *more: object) -> str:
    """Hash a scenario, the contents of its files and other arguments."""
    return key_of_plain(point.resolved(), point.base, *more)


def key_of_plain(raw: Mapping[str, object], base: Path, *more: object) -> str:
    """Compute `key_of` from a scenario that is already resolved."""
    import hashlib  # only for studies of many runs

    named = named_files(dict(raw), base)
    named += [file for path in named if path.suffix == ".py" for file in sources(path.stem, path)]
    files = [*map(_print_of, named), *_print_of_modules(raw)]
    versions = [__version__, np.__version__]
    of = json.dumps([versions, *more, raw, files], sort_keys=True)
    return hashlib.sha256(of.encode()).hexdigest()[:32]


def _print_of_modules(value: object) -> list[str]:
    """Fingerprint of every module that a scenario as plain data names."""
    names = {OUTSIDE_MODULES[text] for text in _texts(value) if text in OUTSIDE_MODULES}
    return [_print_of_module(sys.modules[name]) for name in sorted(names)]


@lru_cache(maxsize=256)
def _print_of_module(module: ModuleType) -> str:
    """Fingerprint of a module as it was imported; without a file, one of this process alone."""
    if getattr(module, "__file__", None) is None:
        return str(id(module))
    return " ".join(map(fingerprint, sources(module.__name__, Path(str(module.__file__)))))


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)


def sources(name: str, file: Path) -> list[Path]:
    """Files of a module, and of all that it imports from the folder that its name starts from.

    Of an installed package all files, and none of others.
    """
    path = file.resolve()
    name = path.stem if name == "__main__" else name
    folder = path.parents[name.count(".") + (path.stem == "__init__")]
    if INSTALLED.intersection(folder.parts):
        package = folder / name.partition(".")[0]
        return sorted(package.rglob("*.py")) if package.is_dir() else [path]
    finder = ModuleFinder([str(folder)], excludes=["simdp"])
    with suppress(ImportError, SyntaxError):  # in a file that is imported later, if at all
        finder.import_hook(name)
    files = [getattr(module, "__file__", None) for module in finder.modules.values()]
    return sorted({path, *map(Path, filter(None, files))})


def _print_of(path: Path) -> str:
    """Fingerprint of a file, cached until the file changes; empty where it is missing."""
    try:
        about = path.stat()
    except OSError:
        return ""
    return _print_known(path, about.st_mtime_ns, about.st_size)


@lru_cache(maxsize=256)
def _print_known(path: Path, changed: int, nbytes: int) -> str:
    return fingerprint(path)


def key_of_all(keys: Sequence[str], *more: object) -> str:
    """Hash the keys of several points and other arguments."""
    import hashlib  # as above

    return hashlib.sha256(json.dumps([keys, *more], sort_keys=True).encode()).hexdigest()[:32]


T = TypeVar("T")
R = TypeVar("R")


def done_in_order(
    function: Callable[[T], R],
    items: Sequence[T],
    *,
    executor: PointExecutor,
    keep: ResultCache[T, R] | None = None,
) -> Iterator[R]:
    """Apply a function to many items; yield the results in the order of the items.

    ``keep`` stores results and provides those of earlier runs. The exception of the first item that
    fails is raised when its turn comes.
    """
    results: dict[int, R | Failed] = {} if keep is None else keep.stored(items)
    waiting = [number for number in range(len(items)) if number not in results]
    outcomes = executor.each(function, [items[number] for number in waiting])
    for wanted in range(len(items)):
        while wanted not in results:
            place, outcome = next(outcomes)
            number = waiting[place]
            results[number] = outcome if isinstance(outcome, Failed) else outcome.value
            if keep is not None and isinstance(outcome, CompletedItem):
                keep.put(items[number], outcome.value)
        result = results.pop(wanted)
        if isinstance(result, Failed):
            raise result.error
        yield result


class ResultCache(Generic[T, R]):
    """Stores results of one type, dataclasses or named tuples.

    ``key`` hashes an item by all inputs of its result; ``adapter`` reads what is stored.
    """

    def __init__(self, store: Store, key: Callable[[T], str], adapter: TypeAdapter[R]) -> None:
        self.store, self.key = store, key
        self._adapter = adapter

    def stored(self, items: Sequence[T]) -> dict[int, R | Failed]:
        """Read the stored results, by item number."""
        results: dict[int, R | Failed] = {}
        for number, item in enumerate(items):
            kept = self.store.get(self.key(item))
            if kept is None:
                continue
            try:
                results[number] = self._adapter.validate_python(kept["value"])
            except (ValidationError, KeyError):
                self.store.num_found -= 1
        return results

    def put(self, item: T, value: R) -> None:
        """Store a result."""
        self.store.put(self.key(item), {"value": self._adapter.dump_python(value)})
