"""Rows by rank: spans of equal ranks, and slow ranks."""

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
    """A span; one of a collective begins when its rank comes to it.

    Attributes
    ----------
    step : int
        As in `simdp.results.trace.Span`.
    stream : int
        0 of compute, and from 1 on those of collectives.
    activity, name : str
        As in `simdp.results.trace.Span`.
    start, end : int
        Instants [ns].
    nbytes : float
        As in `simdp.results.trace.Span`.
    call : Call or None
        What it takes part in.
    """

    step: int
    stream: int
    activity: str
    name: str
    start: int
    end: int
    nbytes: float
    call: CallSize | None


def waited(columns: Columns) -> Bools:
    """Mark the spans of collectives that begin with the wait before them; all are in order."""
    rank, lane, name, activity = (columns[key] for key in ("rank", "lane", "name", "activity"))
    found = np.zeros(len(rank), dtype=bool)
    same = (rank[1:] == rank[:-1]) & (lane[1:] == lane[:-1]) & (name[1:] == name[:-1])
    same &= columns["start"][1:] == columns["end"][:-1]
    found[1:] = same & (activity[:-1] == WAIT) & (activity[1:] == COMM)
    return found


def rows_of(trace: Trace, ranks: Sequence[int]) -> Iterator[tuple[int, list[RankSpan]]]:
    """Give the rows of some ranks, in their order; transfers are left out.

    Collectives come where compute asked for them, which may be long before their stream took them.
    """
    blocks = [block for block in trace.of_ranks(ranks).blocks if block.activity != TRANSFER]
    if not blocks:
        yield from ((rank, []) for rank in ranks)
        return
    lengths = [len(block.ranks) for block in blocks]
    columns = columns_of(blocks)
    columns["block"] = np.repeat(np.arange(len(blocks)), lengths)
    asked = [
        b.asked if isinstance(b.asked, np.ndarray) else np.full(n, b.asked)
        for b, n in zip(blocks, lengths, strict=True)
    ]
    columns["asked"] = np.concatenate(asked)
    columns = _whole(columns)
    for rank, mine in _rows_by_rank(columns["rank"], ranks):
        part = {key: column[mine] for key, column in columns.items()}
        yield rank, _rows(part, trace.names, [block.call for block in blocks])


def _whole(columns: Columns) -> Columns:
    """Put waits into the collectives that end them, and all in the order of the host."""
    keys = ("activity", "end", "start", "lane", "rank")
    order = np.lexsort([columns[key] for key in keys])
    columns = {key: column[order] for key, column in columns.items()}
    at = np.flatnonzero(waited(columns))
    columns["start"] = columns["start"].copy()
    columns["start"][at] = columns["start"][at - 1]
    kept = np.ones(len(order), dtype=bool)
    kept[at - 1] = False
    columns = {key: column[kept] for key, column in columns.items()}
    asked: Floats = np.fmin(columns["asked"], columns["start"])
    is_work = columns["lane"] == COMPUTE_LANE
    # What ends when a collective is asked for came before it, and what begins then, behind it.
    order = np.lexsort([columns["end"], columns["start"], is_work, asked, columns["rank"]])
    return {key: column[order] for key, column in columns.items()}


def _rows_by_rank(rank: Ints, ranks: Sequence[int]) -> Iterator[tuple[int, slice]]:
    for one in ranks:
        yield one, slice(int(np.searchsorted(rank, one)), int(np.searchsorted(rank, one + 1)))


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


SLOWER, NUM_SLOWEST = 1.02, 3
"""A rank is slow that computes so many times as long as most do; so many of them are named."""

BUSY = tuple(ACTIVITIES.index(name) for name in ("forward", "backward", "compute"))


def slow_ranks(result: Result, blocks: Iterable[SpanBlock]) -> dict[int, str]:
    """Name the ranks that the scenario slows down; without such ones, those that were slow.

    Parameters
    ----------
    result : Result
        Whose scenario it is.
    blocks : iterable of Block
        What the ranks did in the time that is looked at.

    Returns
    -------
    dict of int to str
        The slowest first, with what is said of them: ``" · 2×"``, or ``" · +12 %"``.
    """
    return _stragglers(result) or _slowest(blocks, result.world_size)


def _stragglers(result: Result) -> dict[int, str]:
    cluster = result.scenario["cluster"]
    listed: list[dict[str, Any]] = cluster.get("stragglers") or []
    per_node = (cluster.get("devices_per_node") or 0) * cluster.get("ranks_per_device", 1)
    found = [
        (rank, straggler.get("factor"))
        for straggler in listed
        for rank in _ranks_of(straggler, per_node or result.world_size)
        if rank < result.world_size and straggler.get("factor") != 1
    ]
    found.sort(key=lambda pair: (-(pair[1] or 0.0), pair[0]))
    return {rank: f" · {factor:g}×" if factor else "" for rank, factor in found}


def _ranks_of(straggler: dict[str, Any], per_node: int) -> Iterable[int]:
    """The ranks whose compute one is on, where it is on some and not on all."""
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
