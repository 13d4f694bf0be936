"""Spans of ranks as rows, and slow ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from simdp.arrays import Array, Bools, Floats
from simdp.reports.figures import percent
from simdp.results.memory import MEMORY_PARTS as MEMORY_PARTS
from simdp.results.result import Result
from simdp.results.trace import (
    ACTIVITIES,
    COMM_LANE,
    COMPUTE_LANE,
    FIRST_STREAM_LANE,
    CallSize,
    Columns,
    SpanBlock,
    Trace,
    columns_of,
)

WAIT, COMM = ACTIVITIES.index("wait"), ACTIVITIES.index("comm")
TRANSFER = ACTIVITIES.index("transfer")


class RankSpan(NamedTuple):
    """A span of a rank as in `simdp.results.trace`; a collective's begins when its rank arrives."""

    step: int
    stream: int  # 0: compute; from 1 on: collectives
    activity: str
    name: str
    start: int  # [ns]
    end: int  # [ns]
    nbytes: float
    call: CallSize | None  # the collective call of the span


def changes(*columns: Array) -> Bools:
    """Mark the rows in which a column differs from the row before; the first row is marked."""
    new = np.ones(len(columns[0]), dtype=bool)
    new[1:] = False
    for column in columns:
        new[1:] |= column[1:] != column[:-1]
    return new


def waited(columns: Columns) -> Bools:
    """Mark the spans of collectives that begin with a wait; ``columns`` are in order."""
    rank, lane, name, activity = (columns[key] for key in ("rank", "lane", "name", "activity"))
    is_late = np.zeros(len(rank), dtype=bool)
    same = (rank[1:] == rank[:-1]) & (lane[1:] == lane[:-1]) & (name[1:] == name[:-1])
    same &= columns["start"][1:] == columns["end"][:-1]
    is_late[1:] = same & (activity[:-1] == WAIT) & (activity[1:] == COMM)
    return is_late


def rows_of(trace: Trace, ranks: Sequence[int]) -> Iterator[tuple[int, list[RankSpan]]]:
    """Yield the spans of some ranks without transfers, in the host's order.

    Collectives come where compute launched them, which may be long before their stream started
    them.
    """
    blocks = [block for block in trace.of_ranks(ranks).blocks if block.activity != TRANSFER]
    if not blocks:
        yield from ((rank, []) for rank in ranks)
        return
    lengths = [len(block.ranks) for block in blocks]
    columns = columns_of(blocks)
    columns["block"] = np.repeat(np.arange(len(blocks)), lengths)
    launched = [
        b.asked if isinstance(b.asked, np.ndarray) else np.full(n, b.asked)
        for b, n in zip(blocks, lengths, strict=True)
    ]
    columns["asked"] = np.concatenate(launched)
    columns = _whole(columns)
    for rank in ranks:
        first, end = np.searchsorted(columns["rank"], [rank, rank + 1])
        part = {key: column[first:end] for key, column in columns.items()}
        yield rank, _rows(part, trace.names, [block.call for block in blocks])


def _whole(columns: Columns) -> Columns:
    """Merge waits into the collectives that end them, and order all as the host does."""
    order = np.lexsort([columns[key] for key in ("activity", "end", "start", "lane", "rank")])
    columns = {key: column[order] for key, column in columns.items()}
    at = np.flatnonzero(waited(columns))
    columns["start"] = columns["start"].copy()
    columns["start"][at] = columns["start"][at - 1]
    kept = np.ones(len(order), dtype=bool)
    kept[at - 1] = False
    columns = {key: column[kept] for key, column in columns.items()}
    launched: Floats = np.fmin(columns["asked"], columns["start"])
    is_work = columns["lane"] == COMPUTE_LANE
    # Order at one instant: spans that end, the launched collective, spans that begin.
    order = np.lexsort([columns["end"], columns["start"], is_work, launched, columns["rank"]])
    return {key: column[order] for key, column in columns.items()}


def _rows(
    columns: Columns, names: Sequence[str], calls: Sequence[CallSize | None]
) -> list[RankSpan]:
    lane = columns["lane"]
    stream = np.where(lane >= FIRST_STREAM_LANE, lane - FIRST_STREAM_LANE + 2, lane)
    assert (COMPUTE_LANE, COMM_LANE) == (0, 1), "lanes are streams"
    start, end = (np.rint(columns[key] * 1e9).astype(np.int64) for key in ("start", "end"))
    table = (columns["step"], stream, columns["activity"], columns["name"], start, end)
    more = columns["nbytes"].tolist(), columns["block"].tolist()
    return [
        RankSpan(step, on, ACTIVITIES[activity], names[name], s, e, nbytes, calls[block])
        for step, on, activity, name, s, e, nbytes, block in zip(
            *(column.tolist() for column in table), *more, strict=True
        )
    ]


# least multiple of the median compute time of a slow rank; slow ranks that are named
SLOWER, NUM_SLOWEST = 1.02, 3
BUSY = tuple(ACTIVITIES.index(name) for name in ("forward", "backward", "compute"))


def slow_ranks(result: Result, blocks: Iterable[SpanBlock]) -> dict[int, str]:
    """Name the ranks that the scenario slows down; without any, the slowest of these spans.

    The slowest come first, with a suffix such as ``" · 2×"`` or ``" · +12 %"``.
    """
    return _stragglers(result) or _slowest(blocks, result.world_size)


def _stragglers(result: Result) -> dict[int, str]:
    cluster = result.scenario["cluster"]
    listed: list[dict[str, Any]] = cluster.get("stragglers") or []
    per_node = (cluster.get("devices_per_node") or 0) * cluster.get("ranks_per_device", 1)
    slow_ranks = [
        (rank, straggler.get("factor"))
        for straggler in listed
        for rank in _ranks_of(straggler, per_node or result.world_size)
        if rank < result.world_size and straggler.get("factor") != 1
    ]
    slow_ranks.sort(key=lambda pair: (-(pair[1] or 0.0), pair[0]))
    return {rank: f" · {factor:g}×" if factor else "" for rank, factor in slow_ranks}


def _ranks_of(straggler: dict[str, Any], per_node: int) -> Iterable[int]:
    """List the ranks that a compute straggler slows, if not all."""
    if straggler["kind"] == "slow_node":
        return range(straggler["node"] * per_node, (straggler["node"] + 1) * per_node)
    rank = straggler.get("rank")
    return [rank] if isinstance(rank, int) and straggler["kind"] != "degraded_link" else []


def _slowest(blocks: Iterable[SpanBlock], world_size: int) -> dict[int, str]:
    busy = np.zeros(world_size)
    for block in blocks:
        if block.activity in BUSY:
            busy += np.bincount(block.ranks, block.end - block.start, minlength=world_size)
    usual = float(np.median(busy))
    if not usual:
        return {}
    first = np.argsort(-busy, kind="stable")[:NUM_SLOWEST].tolist()
    return {
        rank: f" · {percent(busy[rank] / usual - 1, '+.0f')}"
        for rank in first
        if busy[rank] > SLOWER * usual
    }
