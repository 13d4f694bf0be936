"""Typed results of collectives, nccl-tests logs, and bus bandwidth.

References
----------
NVIDIA, nccl-tests, doc/PERFORMANCE.md and, for the counts and gather and scatter, src/*.cu.

Two forms are read: the text that ``all_reduce_perf`` and its siblings print, with whatever a job
prints around it, and CSV with the columns ``size_bytes`` and ``time_us``. Times are those of the
out-of-place operation.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

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
"""Bytes per element of each type that nccl-tests prints."""

IN_PIECES = ("all_gather", "all_to_all", "gather", "reduce_scatter", "scatter")
"""Collectives whose buffer has a piece for every rank; their count is that of one piece."""

REDUCING = ("all_reduce", "reduce", "reduce_scatter")
ROOTED = ("broadcast", "gather", "reduce", "scatter")


def bus_bandwidth_factor(collective: str, world_size: int) -> float | None:
    """Factor from algbw to the bandwidth of the links (busbw).

    Parameters
    ----------
    collective : str
        A key of `simdp.collectives.FAMILIES`.
    world_size : int
        Number of ranks, n.

    Returns
    -------
    float or None
        ``2 (n - 1) / n`` for an all_reduce, ``(n - 1) / n`` where there is a piece per rank, 1 for
        broadcast and reduce; None for a barrier, which has no bandwidth.

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
    """Elements of a buffer, or of one rank's piece of it, rounded down."""
    pieces = world_size if collective in IN_PIECES else 1
    return nbytes // (ITEMSIZE[dtype] * pieces)


def redop(collective: str) -> str:
    """Reduction over the ranks: ``"sum"`` or ``"none"``."""
    return "sum" if collective in REDUCING else "none"


def shown_root(collective: str, root: int) -> int:
    """The root as nccl-tests shows it: -1 where there is none."""
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
"""The collectives of nccl-tests, and what they are called here, if they are known here."""

MAX_NBYTES = 2**53
"""Beyond this, floats do not tell a byte from the next."""

_LOG_KEYS, _CSV_KEYS = ("size", "time"), ("size_bytes", "time_us")
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_SPELLED = sorted(
    ((n.replace("_", ""), ours) for n, ours in NAMES.items()), key=lambda p: -len(p[0])
)

# What mpirun --tag-output and srun --label write before each line.
_TAG = re.compile(r"^\s*(?:\[\d+,\d+\](?:<\w+>)?:?|\d+:(?=\s))")
_PERF = re.compile(r"\b(\w+?)_perf\b")
_RANK = re.compile(r"^#\s+Rank\s+(\d+)\s(?:.*\son\s+(\S+))?.*\bdevice\b")
_RANKS = re.compile(r"^#\s*nranks\s*:\s*(\d+)\s*$")
_COLLECTIVE = re.compile(r"^#\s*collective\s*:\s*(\w+)\s*$")
_ROW = re.compile(r"^\s*\d+\s+\d+\s+[A-Za-z]\w*\s")


@dataclass(frozen=True)
class NcclRow:
    """One size of a table.

    Attributes
    ----------
    nbytes : int
        The size [bytes].
    seconds : float
        Out of place; the mean where the table has the size several times [s].
    spread : float
        The slowest of these times over the fastest.
    """

    nbytes: int
    seconds: float
    spread: float = 1.0


@dataclass(frozen=True)
class NcclLog:
    """A log's tables of one collective.

    Attributes
    ----------
    path : str
        The file.
    collective : str or None
        Our name of it, if the log or the file's name gives it.
    world_size : int or None
        Ranks, where the log lists them.
    dtype, redop : str or None
        As printed; None in a CSV. A log without the column redop adds nothing up: ``"none"``.
    root : int or None
        As printed: -1 where there is none; None in a CSV, and in logs without that column.
    rows : tuple of NcclRow
        By size, without empty ones; at least one.
    num_nodes : int or None
        Hosts that the log's ranks run on; None in a CSV, and in logs that do not list their ranks.
    """

    path: str
    collective: str | None
    world_size: int | None
    dtype: str | None
    redop: str | None
    root: int | None
    rows: tuple[NcclRow, ...]
    num_nodes: int | None = None


@dataclass
class _Table:
    """A table while it is read; ``columns`` are the words of its head."""

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
        """Take a row; sizes of 0 say nothing of a network."""
        if not 0 <= nbytes <= MAX_NBYTES or nbytes != int(nbytes) or not 0 < seconds < inf:
            raise ValueError(nbytes, seconds)
        if nbytes:
            self.times.setdefault(int(nbytes), []).append(seconds)


def read_nccl_tests(path: Path, collective: str) -> NcclLog:
    """Read a log.

    Parameters
    ----------
    path : Path
        Text as nccl-tests prints it, or CSV.
    collective : str
        Which collective is looked for, a key of `simdp.collectives.FAMILIES`; of a log that holds
        several, its tables are taken.

    Raises
    ------
    ScenarioError
        If there is no table, or a broken one, or only those of other collectives.
    """
    tables = _read_tables(path)
    named = {table.collective for table in tables} or {None}
    named = named if any(named) else {_in_name(path.stem)}
    named.discard(None)
    if named and collective not in named:
        raise ScenarioError(
            [f"{path}: is a log of {', '.join(sorted(map(str, named)))}, not of {collective}."]
        )
    tables = [t for t in tables if t.collective in (None, collective)]
    log = _joined(path, tables, collective if named else None)
    _refuse_another(log, collective)
    return log


def read_nccl_tables(path: Path) -> list[NcclLog]:
    """Read a log of any collectives, one `NcclLog` for each that it holds, by name.

    Raises
    ------
    ScenarioError
        If there is no table, a broken one, or one of an unknown collective.
    """
    tables = _read_tables(path)
    by_name: dict[str, list[_Table]] = {}
    for table in tables:
        name = table.collective or _in_name(path.stem)
        if name is None:
            raise ScenarioError(
                [
                    f"{path}: does not tell its collective; add a line such as "
                    "# collective: all_reduce, or name the file so."
                ]
            )
        by_name.setdefault(name, []).append(table)
    return [_joined(path, found, name) for name, found in sorted(by_name.items())]


def _read_tables(path: Path) -> list[_Table]:
    lines = read_text(path, "a log of nccl-tests is text").splitlines()
    tables = [table for table in _tables(path, lines) if table.times]
    if not tables:
        raise ScenarioError(
            [
                f"{path}: has no table of nccl-tests: no line that begins with # and names the "
                "columns size, time and busbw, with rows below; give what all_reduce_perf prints."
            ]
        )
    return tables


def _joined(path: Path, tables: list[_Table], collective: str | None) -> NcclLog:
    """One log of several tables of a collective, such as repeated runs."""
    first = tables[0]
    for table in tables:
        if table.ranks and first.ranks and table.ranks != first.ranks:
            raise ScenarioError(
                [f"{path}: has tables of {first.ranks} and {table.ranks} ranks; keep those of one."]
            )
    times: dict[int, list[float]] = {}
    for table in tables:
        for nbytes, seconds in table.times.items():
            times.setdefault(nbytes, []).extend(seconds)
    rows = tuple(
        NcclRow(nbytes, sum(t) / len(t), max(t) / min(t)) for nbytes, t in sorted(times.items())
    )
    ranks, hosts = (max(getattr(table, key) for table in tables) for key in ("ranks", "hosts"))
    said = (first.dtype, first.redop, first.root)
    return NcclLog(str(path), collective, ranks or None, *said, rows, hosts or None)


def _refuse_another(log: NcclLog, collective: str) -> None:
    """A log without a name of its collective still shows whether it reduces, and has a root."""
    if log.collective is not None:
        return
    adds, rooted = collective in REDUCING, collective in ROOTED
    wrong = ""
    if log.redop is not None and adds != (log.redop != "none"):
        wrong = f"its redop is {log.redop}, but {collective} {'adds' if adds else 'does not add'}"
    elif log.root is not None and rooted != (log.root >= 0):
        wrong = f"its root is {log.root}, but {collective} has {'a' if rooted else 'no'} root"
    if wrong:
        raise ScenarioError([f"{log.path}: {wrong}; this is the log of another collective."])


def _in_name(stem: str) -> str | None:
    """The collective in a file's name: ``nccl_allreduce_2x8`` is an all_reduce."""
    plain = re.sub(r"[^a-z]", "", stem.lower())
    return next((ours for spelled, ours in _SPELLED if spelled in plain), None)


# Lines -------------------------------------------------------------------------------------------


def _tables(path: Path, lines: list[str]) -> list[_Table]:
    """Find every table, with the settings in the lines before it."""
    found: list[_Table] = []
    name: str | None = None
    ranks = 0
    hosts: list[str] = []
    begun = False  # whether the table of the ranks that were listed last has begun
    for number, tagged in enumerate(lines, 1):
        line = _TAG.sub("", tagged).strip()
        where = f"{path}:{number}"
        if said := _PERF.search(line) or _COLLECTIVE.match(line):
            name = NAMES.get(said[1], name)
        if said := _RANK.match(line):
            # A list after a table is that of the next test; ranks may come in any order.
            ranks = max(0 if begun else ranks, int(said[1]) + 1)
            hosts = [] if begun else hosts
            hosts += [said[2]] if said[2] and said[2] not in hosts else []
            begun = False
        elif said := _RANKS.match(line):
            ranks = int(said[1])
        elif _is_head(line):
            head = line.lstrip("# ").split()
            found.append(_Table(name, head, ranks=ranks, hosts=len(hosts)))
            begun = True
        elif _is_csv_head(line):
            found.append(_Table(name, line.split(","), ranks=ranks))
        elif found:
            _take(found[-1], line, where)
    return found


def _is_head(line: str) -> bool:
    return line.startswith("#") and {"size", "type", "time", "busbw"} <= {*line[1:].split()}


def _is_csv_head(line: str) -> bool:
    return {"size_bytes", "time_us"} <= {*line.split(",")}


def _take(table: _Table, line: str, where: str) -> None:
    """Take a line below a table's head, if it belongs to the table."""
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
            [
                f"{where}: has {len(cells)} cells for {len(table.columns)} columns; "
                "is the log cut off?"
            ]
        )
    row = dict(zip(reversed(table.columns), reversed(cells), strict=True))  # out of place wins
    size, time = (row[key] for key in (_CSV_KEYS if is_csv else _LOG_KEYS))
    try:
        table.add(float(size), float(time) * table.unit)
    except ValueError:
        raise ScenarioError(
            [f"{where}: size {size} with time {time}; they must be whole bytes and a time > 0."]
        ) from None
    if not is_csv:
        table.dtype, table.redop = row["type"], row.get("redop", "none")
        table.root = int(row["root"]) if "root" in row else None


def _take_unit(table: _Table, units: list[str], where: str) -> None:
    if len(units) < 3 or units[2] not in _UNITS:
        given = units[2] if len(units) > 2 else "no unit"
        raise ScenarioError([f"{where}: time in {given}; known: {', '.join(_UNITS)}."])
    table.unit = _UNITS[units[2]]


# Collective ---------------------------------------------------------------------------------------


class Bottleneck(NamedTuple):
    """The busiest link.

    Attributes
    ----------
    name : str
        Which.
    utilization : float
        Part of the time for which it would be busy at its full bandwidth; 0 ... 1.
    """

    name: str
    utilization: float


class Crossover(NamedTuple):
    """Where ``auto`` turns to another algorithm.

    Attributes
    ----------
    nbytes : int
        The first size that the new one serves [bytes].
    now, before : str
        The algorithms.
    """

    nbytes: int
    now: str
    before: str


@dataclass(frozen=True)
class CollectivePoint:
    """One collective of one size.

    Attributes
    ----------
    nbytes : int
        The whole buffer, as nccl-tests counts it [bytes].
    seconds : float
        Until the last rank was done [s].
    algorithm : str
        Algorithm used; of ``auto``, the choice.
    fabric : str
        Clock used, and the reason.
    bottleneck : Bottleneck or None
        None where nothing crossed any link.
    candidates : dict of str to float
        Predicted time of each candidate of ``auto`` [s].
    measured : float or None
        Measured time of a real machine [s].
    low, high : float or None
        Ends of the 90 % interval [s]; None where nothing is known of the constants behind it.
    """

    nbytes: int
    seconds: float
    algorithm: str
    fabric: str
    bottleneck: Bottleneck | None
    candidates: dict[str, float]
    measured: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def error(self) -> float | None:
        """Simulated over measured time, less one."""
        return None if self.measured is None else self.seconds / self.measured - 1


@dataclass(frozen=True)
class CollectiveCurve:
    """One algorithm on one number of ranks.

    Attributes
    ----------
    algorithm : str
        Requested algorithm, ``auto`` for example.
    world_size : int
        Number of ranks.
    points : tuple of CollectivePoint
        By size; at least one.
    """

    algorithm: str
    world_size: int
    points: tuple[CollectivePoint, ...]

    def crossovers(self) -> list[Crossover]:
        """Where the algorithm changes from one size to the next."""
        return [
            Crossover(after.nbytes, after.algorithm, before.algorithm)
            for before, after in pairwise(self.points)
            if after.algorithm != before.algorithm
        ]

    def held(self) -> list[bool]:
        """Whether the interval contains the measured time, for points with both."""
        return [
            p.low <= p.measured <= p.high
            for p in self.points
            if p.low is not None and p.high is not None and p.measured is not None
        ]

    def errors(self) -> dict[int, float]:
        """Error of the time at each size that was measured."""
        return {p.nbytes: p.error for p in self.points if p.error is not None}


@dataclass(frozen=True)
class CollectiveStudy:
    """Everything that ``python -m simdp collective`` found.

    Attributes
    ----------
    version : str
        Of simdp.
    collective : str
        A key of `simdp.collectives.FAMILIES`.
    cluster : str
        Its name.
    dtype : str
        As nccl-tests calls it.
    root : int
        For collectives that have one.
    curves : tuple of CollectiveCurve
        World sizes of the first algorithm, then of the second, ...
    against : str or None
        The measured log's file name.
    """

    version: str
    collective: str
    cluster: str
    dtype: str
    root: int
    curves: tuple[CollectiveCurve, ...]
    against: str | None = None

    def algbw(self, nbytes: int, seconds: float) -> float | None:
        """Size over time [bytes/s]; None where nothing is moved or it takes no time."""
        return nbytes / seconds if nbytes and seconds else None

    def busbw(self, nbytes: int, seconds: float, world_size: int) -> float | None:
        """Bus bandwidth [bytes/s]; see `bus_bandwidth_factor`."""
        algbw = self.algbw(nbytes, seconds)
        factor = bus_bandwidth_factor(self.collective, world_size)
        return None if algbw is None or factor is None else algbw * factor

    def columns(self, nbytes: int, world_size: int) -> dict[str, Any]:
        """Columns of nccl-tests in addition to times: count, type, redop, root."""
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
