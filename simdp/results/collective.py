"""Typed results of collectives, nccl-tests logs, and bus bandwidth.

Two formats are read: the text output of ``all_reduce_perf`` and its siblings, with any output of a
job around it, and CSV with the columns ``size_bytes`` and ``time_us``. Times are those of the
out-of-place operation.

References
----------
NVIDIA, nccl-tests, doc/PERFORMANCE.md and, for the counts and gather and scatter, src/*.cu.
"""

from __future__ import annotations

import json
import re
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from simdp.arrays import grouped
from simdp.errors import ScenarioError
from simdp.files import read_text

# Bandwidth ----------------------------------------------------------------------------------------

ITEMSIZE = {
    "int8": 1,
    "uint8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "half": 2,
    "bfloat16": 2,
    "int32": 4,
    "uint32": 4,
    "float": 4,
    "int64": 8,
    "uint64": 8,
    "double": 8,
}
"""Bytes per element of each type of nccl-tests."""

IN_PIECES = ("all_gather", "all_to_all", "gather", "reduce_scatter", "scatter")
"""Collectives with one piece of the buffer per rank; their count is that of one piece."""

REDUCING = ("all_reduce", "reduce", "reduce_scatter")
ROOTED = ("broadcast", "gather", "reduce", "scatter")


def bus_bandwidth_factor(collective: str, world_size: int) -> float | None:
    """Return the factor from algbw to the bandwidth of the links (busbw).

    ``2 (n - 1) / n`` for an all_reduce, ``(n - 1) / n`` with a piece per rank, 1 for broadcast and
    reduce; None for a barrier, which has no bandwidth.

    Raises
    ------
    ValueError
        If ``world_size < 1``.
    """
    if world_size < 1:
        raise ValueError(f"world_size must be >= 1, got {world_size}")
    if collective == "barrier":
        return None
    if collective == "all_reduce":
        return 2 * (world_size - 1) / world_size
    return (world_size - 1) / world_size if collective in IN_PIECES else 1.0


def count(collective: str, nbytes: int, world_size: int, dtype: str) -> int:
    """Return the elements of a buffer, or of one rank's piece of it, rounded down."""
    pieces = world_size if collective in IN_PIECES else 1
    return nbytes // (ITEMSIZE[dtype] * pieces)


def redop(collective: str) -> str:
    """Return the reduction over the ranks: ``"sum"`` or ``"none"``."""
    return "sum" if collective in REDUCING else "none"


def shown_root(collective: str, root: int) -> int:
    """Return the root in nccl-tests' notation: -1 without a root."""
    return root if collective in ROOTED else -1


# Nccl tests ---------------------------------------------------------------------------------------

NAMES = {
    "all_gather": "all_gather",
    "all_reduce": "all_reduce",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "gather": "gather",
    "reduce": "reduce",
    "reduce_scatter": "reduce_scatter",
    "scatter": "scatter",
    "sendrecv": "sendrecv",
    "hypercube": "hypercube",
}
"""The collectives of nccl-tests, and their names in simdp, if known."""

MAX_NBYTES = 2**53  # largest exact float [bytes]

_LOG_KEYS, _CSV_KEYS = ("size", "time"), ("size_bytes", "time_us")
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_SPELLED = sorted(
    ((n.replace("_", ""), ours) for n, ours in NAMES.items()), key=lambda p: -len(p[0])
)

# What mpirun --tag-output and srun --label write before each line.
_TAG = re.compile(r"^\s*(?:\[\d+,\d+\](?:<\w+>)?:?|\d+:(?=\s))")
_PERF = re.compile(r"\b(\w+?)_perf\b")
_RANK = re.compile(r"^#\s+Rank\s+(\d+)\s(?:.*?\son\s+(\S+)\s+device\b|.*\bdevice\b)")
_RANKS = re.compile(r"^#\s*nranks\s*:\s*(\d+)\s*$")
_COLLECTIVE = re.compile(r"^#\s*collective\s*:\s*(\w+)\s*$")
_ROW = re.compile(r"^\s*\d+\s+\d+\s+[A-Za-z]\w*\s")


@dataclass(frozen=True)
class NcclRow:
    """One size of a table."""

    nbytes: int  # the size [bytes]
    seconds: float  # out of place; mean of repeated sizes [s]
    spread: float = 1.0  # the slowest of these times over the fastest


@dataclass(frozen=True)
class NcclLog:
    """A log's tables of one collective."""

    path: str  # the file
    collective: str | None  # simdp's name of it, if the log or the file's name has one
    world_size: int | None  # ranks, where the log lists them
    # dtype, redop: as printed; None in a CSV; redop is ``"none"`` in a log without that column.
    dtype: str | None
    redop: str | None
    # as printed: -1 without a root; None in a CSV, and in logs without that column
    root: int | None
    rows: tuple[NcclRow, ...]  # by size, without empty ones; at least one
    # hosts that the log's ranks run on; None in a CSV, and in logs that do not list their ranks
    num_nodes: int | None = None


@dataclass
class _Table:
    """A table being read; ``columns`` are the words of its head."""

    collective: str | None
    columns: list[str]
    unit: float = _UNITS["us"]
    dtype: str | None = None
    redop: str | None = None
    root: int | None = None
    ranks: int = 0
    hosts: int = 0
    times: dict[int, list[float]] = field(default_factory=dict)

    def add(self, nbytes: float, seconds: float) -> None:
        """Add a row; sizes of 0 are ignored."""
        if not 0 <= nbytes <= MAX_NBYTES or nbytes != int(nbytes) or not 0 < seconds < inf:
            raise ValueError(nbytes, seconds)
        if nbytes:
            self.times.setdefault(int(nbytes), []).append(seconds)


def read_nccl_tests(path: Path, collective: str) -> NcclLog:
    """Read a log of one collective; of a log with several, only its tables.

    Raises
    ------
    ScenarioError
        If there is no table, an invalid one, or only those of other collectives.
    """
    tables = _read_tables(path)
    named = {table.collective for table in tables} or {None}
    named = named if any(named) else {_in_name(path.stem)}
    named.discard(None)
    if named and collective not in named:
        raise ScenarioError(
            f"{path}: is a log of {', '.join(sorted(map(str, named)))}, not of {collective}."
        )
    tables = [t for t in tables if t.collective in (None, collective)]
    log = _joined(path, tables, collective if named else None)
    _refuse_another(log, collective)
    return log


def read_nccl_tables(path: Path) -> list[NcclLog]:
    """Read a log of any collectives, one `NcclLog` for each, by name.

    Raises
    ------
    ScenarioError
        If there is no table, an invalid one, or one of an unknown collective.
    """
    tables = _read_tables(path)
    by_name: dict[str, list[_Table]] = {}
    for table in tables:
        name = table.collective or _in_name(path.stem)
        if name is None:
            raise ScenarioError(
                f"{path}: has no name of its collective; add a line such as "
                "# collective: all_reduce, or name the file so."
            )
        by_name.setdefault(name, []).append(table)
    return [_joined(path, parts, name) for name, parts in sorted(by_name.items())]


def nccl_tables(text: str, name: str) -> list[NcclLog]:
    """Read the tables in a text of any kind, one `NcclLog` for each collective; empty without any.

    A collective without a name is an all_reduce. Rows that other output breaks are ignored.
    ``name`` is the file. Raises a ScenarioError for tables of different ranks.
    """
    unnamed = _in_name(Path(name).stem) or "all_reduce"
    tables = _tables(Path(name), text.splitlines(), strict=False)
    by_name = grouped((table.collective or unnamed, table) for table in tables if table.times)
    return [_joined(Path(name), parts, collective) for collective, parts in sorted(by_name.items())]


def _read_tables(path: Path) -> list[_Table]:
    lines = read_text(path, "a log of nccl-tests is text").splitlines()
    tables = [table for table in _tables(path, lines) if table.times]
    if not tables:
        raise ScenarioError(
            f"{path}: has no table of nccl-tests: no line that begins with # and names the "
            "columns size, time and busbw, with rows below; give the output of all_reduce_perf."
        )
    return tables


def _joined(path: Path, tables: list[_Table], collective: str | None) -> NcclLog:
    """Merge several tables of a collective, such as repeated runs."""
    first = tables[0]
    for table in tables:
        if table.ranks and first.ranks and table.ranks != first.ranks:
            raise ScenarioError(
                f"{path}: has tables of {first.ranks} and {table.ranks} ranks; keep those of one."
            )
    times: dict[int, list[float]] = {}
    for table in tables:
        for nbytes, seconds in table.times.items():
            times.setdefault(nbytes, []).extend(seconds)
    rows = tuple(
        NcclRow(nbytes, sum(t) / len(t), max(t) / min(t)) for nbytes, t in sorted(times.items())
    )
    ranks, hosts = (max(getattr(table, key) for table in tables) for key in ("ranks", "hosts"))
    printed = (first.dtype, first.redop, first.root)
    return NcclLog(str(path), collective, ranks or None, *printed, rows, hosts or None)


def _refuse_another(log: NcclLog, collective: str) -> None:
    """Refuse a log without a name with another reduction or root than the collective."""
    if log.collective is not None:
        return
    adds, rooted = collective in REDUCING, collective in ROOTED
    wrong = ""
    if log.redop is not None and adds != (log.redop != "none"):
        wrong = f"its redop is {log.redop}, but {collective} {'adds' if adds else 'does not add'}"
    elif log.root is not None and rooted != (log.root >= 0):
        wrong = f"its root is {log.root}, but {collective} has {'a' if rooted else 'no'} root"
    if wrong:
        raise ScenarioError(f"{log.path}: {wrong}; this is the log of another collective.")


def _in_name(stem: str) -> str | None:
    """Return the collective in a file's name: ``nccl_allreduce_2x8`` is an all_reduce."""
    plain = re.sub(r"[^a-z]", "", stem.lower())
    return next((ours for spelled, ours in _SPELLED if spelled in plain), None)


# Lines -------------------------------------------------------------------------------------------


def _tables(path: Path, lines: list[str], strict: bool = True) -> list[_Table]:
    """Return every table, with the settings before it; damaged rows raise if ``strict``."""
    tables: list[_Table] = []
    name: str | None = None
    ranks = 0
    hosts: list[str] = []
    begun = False  # whether the table of the ranks that were listed last has begun
    for number, tagged in enumerate(lines, 1):
        line = _TAG.sub("", tagged).strip()
        where = f"{path}:{number}"
        if match := _PERF.search(line) or _COLLECTIVE.match(line):
            name = NAMES.get(match[1], name)
        if match := _RANK.match(line):
            # A list after a table is that of the next test; ranks may come in any order.
            ranks = max(0 if begun else ranks, int(match[1]) + 1)
            hosts = [] if begun else hosts
            hosts += [match[2]] if match[2] and match[2] not in hosts else []
            begun = False
        elif match := _RANKS.match(line):
            ranks = int(match[1])
        elif _is_head(line):
            tables.append(_Table(name, line.lstrip("# ").split(), ranks=ranks, hosts=len(hosts)))
            begun = True
        elif _is_csv_head(line):
            tables.append(_Table(name, line.split(","), ranks=ranks))
        elif tables:
            with nullcontext() if strict else suppress(ScenarioError):
                _take(tables[-1], line, where)
    return tables


def _is_head(line: str) -> bool:
    return line.startswith("#") and {"size", "type", "time", "busbw"} <= {*line[1:].split()}


def _is_csv_head(line: str) -> bool:
    return {"size_bytes", "time_us"} <= {*line.split(",")}


def _take(table: _Table, line: str, where: str) -> None:
    """Add a line below a table's head, if it belongs to the table."""
    if line.startswith("#"):
        units = re.findall(r"\((\w+)\)", line)
        if units[:2] == ["B", "elements"]:
            _take_unit(table, units, where)
        return
    is_csv = "size_bytes" in table.columns
    if not (re.match(r"\d", line) and "," in line if is_csv else _ROW.match(line)):
        return
    cells = line.split(",") if is_csv else line.split()
    if len(cells) != len(table.columns):
        raise ScenarioError(
            f"{where}: has {len(cells)} cells for {len(table.columns)} columns; is the log cut off?"
        )
    row = dict(zip(reversed(table.columns), reversed(cells), strict=True))  # out of place wins
    size, time = (row[key] for key in (_CSV_KEYS if is_csv else _LOG_KEYS))
    try:
        table.add(float(size), float(time) * table.unit)
    except ValueError:
        raise ScenarioError(
            f"{where}: size {size} with time {time}; they must be whole bytes and a time > 0."
        ) from None
    if not is_csv:
        table.dtype, table.redop = row["type"], row.get("redop", "none")
        table.root = int(row["root"]) if "root" in row else None


def _take_unit(table: _Table, units: list[str], where: str) -> None:
    if len(units) < 3 or units[2] not in _UNITS:
        given = units[2] if len(units) > 2 else "no unit"
        raise ScenarioError(f"{where}: time in {given}; known: {', '.join(_UNITS)}.")
    table.unit = _UNITS[units[2]]


# Collective ---------------------------------------------------------------------------------------


class Bottleneck(NamedTuple):
    """The busiest link."""

    name: str
    # fraction of the time that it would be busy at its full bandwidth
    utilization: float


class Crossover(NamedTuple):
    """A size at which ``auto`` changes its algorithm."""

    nbytes: int  # first size of the new algorithm [bytes]
    now: str  # new algorithm
    before: str  # previous one


@dataclass(frozen=True)
class CollectivePoint:
    """One collective of one size."""

    nbytes: int  # the whole buffer, as nccl-tests counts it [bytes]
    seconds: float  # until the last rank was done [s]
    algorithm: str  # algorithm used; of ``auto``, the choice
    fabric: str  # clock used, and the reason
    bottleneck: Bottleneck | None  # None if no link is used
    candidates: dict[str, float]  # predicted time of each candidate of ``auto`` [s]
    measured: float | None = None  # measured time of a real machine [s]
    # low, high: ends of the 90 % interval [s]; None if unknown
    low: float | None = None
    high: float | None = None

    @property
    def error(self) -> float | None:
        """Simulated over measured time, less one."""
        return None if self.measured is None else self.seconds / self.measured - 1


@dataclass(frozen=True)
class CollectiveCurve:
    """One algorithm on one number of ranks."""

    algorithm: str  # requested algorithm, ``auto`` for example
    world_size: int
    points: tuple[CollectivePoint, ...]  # by size; at least one
    remarks: tuple[str, ...] = ()  # on its cost

    def crossovers(self) -> list[Crossover]:
        """Return the sizes at which the algorithm changes."""
        return [
            Crossover(after.nbytes, after.algorithm, before.algorithm)
            for before, after in pairwise(self.points)
            if after.algorithm != before.algorithm
        ]

    def held(self) -> list[bool]:
        """Return whether the interval contains the measured time, for points with both."""
        return [
            p.low <= p.measured <= p.high
            for p in self.points
            if p.low is not None and p.high is not None and p.measured is not None
        ]

    def errors(self) -> dict[int, float]:
        """Return the error of the time at each measured size."""
        return {p.nbytes: p.error for p in self.points if p.error is not None}


@dataclass(frozen=True)
class CollectiveStudy:
    """Result of ``python -m simdp collective``."""

    version: str  # of simdp
    collective: str  # a key of `simdp.collectives.FAMILIES`
    cluster: str
    dtype: str  # as nccl-tests calls it
    root: int  # for collectives that have one
    curves: tuple[CollectiveCurve, ...]  # world sizes of the first algorithm, then of the second,
    against: str | None = None  # the measured log's file name

    def algbw(self, nbytes: int, seconds: float) -> float | None:
        """Return size over time [bytes/s]; None without bytes or time."""
        return nbytes / seconds if nbytes and seconds else None

    def busbw(self, nbytes: int, seconds: float, world_size: int) -> float | None:
        """Return the bus bandwidth [bytes/s]; see `bus_bandwidth_factor`."""
        algbw = self.algbw(nbytes, seconds)
        factor = bus_bandwidth_factor(self.collective, world_size)
        return None if algbw is None or factor is None else algbw * factor

    def columns(self, nbytes: int, world_size: int) -> dict[str, Any]:
        """Return columns of nccl-tests in addition to times: count, type, redop, root."""
        return {
            "count": count(self.collective, nbytes, world_size, self.dtype),
            "type": self.dtype,
            "redop": redop(self.collective),
            "root": shown_root(self.collective, self.root),
        }

    def to_json(self) -> str:
        """Write everything; times in seconds, sizes in bytes, bandwidths in bytes per second."""
        whole = {
            "simdp": self.version,
            "collective": self.collective,
            "cluster": self.cluster,
            "against": self.against,
            "curves": [self._curve(curve) for curve in self.curves],
        }
        return json.dumps(whole, indent=1, allow_nan=False) + "\n"

    def _curve(self, curve: CollectiveCurve) -> dict[str, Any]:
        errors = [abs(error) for error in curve.errors().values()]
        return {
            "algorithm": curve.algorithm,
            "world_size": curve.world_size,
            "mean_error": sum(errors) / len(errors) if errors else None,
            "max_error": max(errors, default=None),
            "crossovers": [crossover._asdict() for crossover in curve.crossovers()],
            **({"remarks": list(curve.remarks)} if curve.remarks else {}),
            "points": [self._point(point, curve.world_size) for point in curve.points],
        }

    def _point(self, point: CollectivePoint, world_size: int) -> dict[str, Any]:
        link = point.bottleneck
        return {
            "size_bytes": point.nbytes,
            **self.columns(point.nbytes, world_size),
            "time_s": point.seconds,
            "algbw_bytes_per_s": self.algbw(point.nbytes, point.seconds),
            "busbw_bytes_per_s": self.busbw(point.nbytes, point.seconds, world_size),
            "algorithm": point.algorithm,
            "fabric": point.fabric,
            "bottleneck": None if link is None else link._asdict(),
            "candidates_s": point.candidates or None,
            "low_s": point.low,
            "high_s": point.high,
            "measured_time_s": point.measured,
            "error": point.error,
        }
