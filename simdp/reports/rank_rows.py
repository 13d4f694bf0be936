"""Spans of ranks as rows, and slow ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from simdp.arrays import Bools, Floats, Ints
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


def waited(columns: Columns) -> Bools:
    """Mark the spans of collectives that begin with a wait; ``columns`` are in order."""
    rank, lane, name, activity = columns.rank, columns.lane, columns.name, columns.activity
    is_late = np.zeros(len(rank), dtype=bool)
    same = (rank[1:] == rank[:-1]) & (lane[1:] == lane[:-1]) & (name[1:] == name[:-1])
    same &= columns.start[1:] == columns.end[:-1]
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
    launched = [
        b.asked if isinstance(b.asked, np.ndarray) else np.full(n, b.asked)
        for b, n in zip(blocks, lengths, strict=True)
    ]
    block_numbers = np.repeat(np.arange(len(blocks)), lengths)
    columns, block_numbers = _whole(columns_of(blocks), np.concatenate(launched), block_numbers)
    for rank in ranks:
        of_rank = slice(*np.searchsorted(columns.rank, [rank, rank + 1]))
        calls = [blocks[number].call for number in block_numbers[of_rank]]
        yield rank, _rows(columns.at(of_rank), trace.names, calls)


def _whole(columns: Columns, launched: Floats, block_numbers: Ints) -> tuple[Columns, Ints]:
    """Merge waits into the collectives that end them, and order all as the host does."""
    c = columns
    order = np.lexsort([c.activity, c.end, c.start, c.lane, c.rank])
    c = c.at(order)
    at = np.flatnonzero(waited(c))
    start = c.start.copy()
    start[at] = start[at - 1]
    kept = np.ones(len(order), dtype=bool)
    kept[at - 1] = False
    c, order = c._replace(start=start).at(kept), order[kept]
    instants: Floats = np.fmin(launched[order], c.start)
    # Order at one instant: spans that end, the launched collective, spans that begin.
    by_host = np.lexsort([c.end, c.start, c.lane == COMPUTE_LANE, instants, c.rank])
    return c.at(by_host), block_numbers[order[by_host]]


def _rows(
    columns: Columns, names: Sequence[str], calls: Sequence[CallSize | None]
) -> list[RankSpan]:
    lane = columns.lane
    stream = np.where(lane >= FIRST_STREAM_LANE, lane - FIRST_STREAM_LANE + 2, lane)
    assert (COMPUTE_LANE, COMM_LANE) == (0, 1), "lanes are streams"
    start, end = (np.rint(ends * 1e9).astype(np.int64) for ends in (columns.start, columns.end))
    table = (columns.step, stream, columns.activity, columns.name, start, end, columns.nbytes)
    return [
        RankSpan(step, on, ACTIVITIES[activity], names[name], s, e, nbytes, call)
        for step, on, activity, name, s, e, nbytes, call in zip(
            *(column.tolist() for column in table), calls, strict=True
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
