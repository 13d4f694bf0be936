"""Table: measured times of nccl-tests, interpolated and scaled to other numbers of ranks."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from math import exp, log, log2
from pathlib import Path
from typing import Literal, Self

from pydantic import PrivateAttr

from simdp.collectives.costs import Cost, Wiring
from simdp.errors import ScenarioError
from simdp.results.collective import NcclLog, bus_bandwidth_factor, read_nccl_tables

STANDS_FOR = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "reduce",
    "all_to_all",
    "scatter",
    "gather",
    "sendrecv",
)
"""Substitutes of a collective that is not in the log: the first of these that is."""


@dataclass(frozen=True)
class CollectiveTable:
    """The times of one collective."""

    world_size: int  # ranks, two or more
    # nbytes, seconds: sizes [bytes] in ascending order, and their times [s]
    nbytes: tuple[float, ...]
    seconds: tuple[float, ...]

    @property
    def floor(self) -> float:
        """The shortest time: that of a collective without bytes [s]."""
        return min(self.seconds)

    def at(self, nbytes: float) -> float:
        """Return the time of a size [s], with linear interpolation of logarithms.

        Below the table its first time holds; above, the bandwidth of its last row.
        """
        sizes, times = self.nbytes, self.seconds
        if nbytes <= sizes[0]:
            return times[0]
        if nbytes >= sizes[-1]:
            return times[-1] * nbytes / sizes[-1]
        i = bisect_right(sizes, nbytes)
        part = log(nbytes / sizes[i - 1]) / log(sizes[i] / sizes[i - 1])
        return exp((1 - part) * log(times[i - 1]) + part * log(times[i]))


class TableCost(Cost):
    """Times of a log of nccl-tests, interpolated and scaled to other world sizes.

    With n ranks instead of the log's m, a buffer costs as much as the logged buffer with equal
    bytes on the links, by the factors of the bus bandwidth; the floor, which trees determine, grows
    as log2(n) / log2(m).
    """

    kind: Literal["table"] = "table"
    path: str
    """A log of nccl-tests, or CSV with its columns, relative to the scenario file."""

    _tables: dict[str, CollectiveTable] | None = PrivateAttr(default=None)

    def settled(self, base: Path) -> Self:
        file = base / self.path
        tables = {log.collective: _measured(log) for log in read_nccl_tables(file)}
        known = {name: table for name, table in tables.items() if name in STANDS_FOR}
        if not known:
            given = ", ".join(map(str, tables))
            raise ScenarioError(
                [f"{file}: has {given} only; give a log of {', '.join(STANDS_FOR[:3])} or others."]
            )
        read = self.model_copy()
        read._tables = {str(name): table for name, table in known.items()}
        return read

    def seconds(self, collective: str, nbytes: float, wiring: Wiring) -> float:
        if wiring.world_size == 1:
            return 0.0
        name, table = self._serving(collective)
        n, m = wiring.world_size, table.world_size
        # A barrier sends nothing: it costs the floor.
        wanted = 0.0 if collective == "barrier" else _sent(collective, n)
        floor = table.floor * (log2(n) / log2(m) - 1)
        return table.at(nbytes * wanted / _sent(name, m)) + floor

    def _serving(self, collective: str) -> tuple[str, CollectiveTable]:
        if self._tables is None:
            raise ValueError(f"{self.path} has not been read; call settled with its folder first")
        if collective in self._tables:
            return collective, self._tables[collective]
        name = next(name for name in STANDS_FOR if name in self._tables)
        return name, self._tables[name]


def _sent(collective: str, world_size: int) -> float:
    """Return bytes that pass a rank's link, over those of the buffer."""
    factor = bus_bandwidth_factor(collective, world_size)
    assert factor is not None, "a barrier has no bytes"
    return factor


def _measured(log: NcclLog) -> CollectiveTable:
    if log.world_size is None:
        raise ScenarioError(
            [f"{log.path}: has no number of ranks; add a line such as # nranks: 8."]
        )
    if log.world_size < 2:
        raise ScenarioError([f"{log.path}: is a log of a single rank; give one of two or more."])
    rows = log.rows
    return CollectiveTable(
        log.world_size, tuple(float(r.nbytes) for r in rows), tuple(r.seconds for r in rows)
    )
