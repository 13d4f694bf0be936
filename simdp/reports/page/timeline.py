"""The timeline section.

Ranks with equal spans share one list of them. If a page has no room for all spans, first the early
steps are dropped, then neighbours of one activity become one span on all but a few ranks, and only
then whole ranks are dropped. A span is a kind (lane, activity, name and step), the gap since the
end of the one before it in its lane, and its length, in ticks of 1 / `TICKS` of the shown time.
Gaps are mostly 0 and ranks repeat each other, so that deflated they take little room.
"""

from __future__ import annotations

import zlib
from base64 import b64encode
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from simdp.arrays import Array, Bools, Ints
from simdp.reports.charts.timeline import (
    MAX_ROWS,
    PIXEL,
    TimeWindow,
    choose,
    groups,
    listed,
    row_name,
    window_of,
)
from simdp.reports.figures import seconds
from simdp.reports.rank_rows import slow_ranks
from simdp.reports.sections import Timeline
from simdp.results.result import Result
from simdp.results.trace import ACTIVITIES, SETUP, Columns, Trace, changes, lane_name

# spans of a page: about half as many bytes of it when ranks repeat each other little
MOST_SPANS = 300_000
FEW_SPANS = 30_000  # spans of all ranks up to which equal ranks are not searched
FEW_ROWS = 40  # ranks that have a row each at first; more are grouped
MANY_SPANS = 3_000_000  # spans of all ranks above which only the last steps are considered
EXACT_PART = 0.5  # share of the spans that are kept one by one if most are merged
TICKS = 2**24  # ticks of the shown time
FINE = 0.1  # part of a picture's pixel by which instants of equal ranks may differ
_TRANSFER = ACTIVITIES.index("transfer")


class TimelineData(NamedTuple):
    """Contents of a page's timeline."""

    window: TimeWindow  # the first view
    begin: float  # of all spans [s]
    end: float
    ranks: list[list[int]]  # groups of equal ranks
    exact: Trace  # spans of each group's first rank, one by one
    merged: Trace | None  # others, merged
    num_groups: int  # including dropped ones
    slow: dict[int, str]  # suffix of each marked rank
    # for many ranks the groups with a row at first, as in a picture; else empty
    rows: list[list[int]]
    num_rows: int  # all such groups


def shown(result: Result, most: int = MOST_SPANS, few: int = FEW_SPANS) -> TimelineData:
    """Choose the contents for a run with a trace of at least one step."""
    contents = _spans_of(result, most, few)
    if result.world_size <= FEW_ROWS:
        return contents
    window, here = contents.window, {rank for ranks in contents.ranks for rank in ranks}
    assert result.trace is not None
    rows = groups(window.cut(result.trace), result.world_size, PIXEL * window.length)
    chosen = choose(rows, list(contents.slow), MAX_ROWS)
    present = [[rank for rank in rows[number] if rank in here] for number in chosen]
    return contents._replace(rows=[row for row in present if row], num_rows=len(rows))


def _spans_of(result: Result, most: int, few: int) -> TimelineData:
    trace, n = result.trace, result.world_size
    assert trace is not None
    window = window_of(trace)
    tolerance = FINE * PIXEL * window.length
    steps = [b for b in trace.blocks if b.activity != _TRANSFER and b.step > SETUP]
    everything = Trace(steps, trace.names)
    slow = slow_ranks(result, window.cut(everything).blocks)
    rank_groups = [[rank] for rank in range(n)]
    if len(everything) <= min(few, most):
        return TimelineData(
            window, *_ends(everything), rank_groups, everything, None, n, slow, [], 0
        )
    for inside in _candidates(everything, window):
        rank_groups = groups(inside, n, tolerance)
        exact = inside.of_ranks([ranks[0] for ranks in rank_groups])
        if len(exact) <= most:
            return TimelineData(
                window, *_ends(inside), rank_groups, exact, None, len(rank_groups), slow, [], 0
            )
    room = max(int(EXACT_PART * most * len(rank_groups)) // len(exact), 1)
    fine = choose(rank_groups, list(slow), room)
    rest = sorted({*range(len(rank_groups))} - {*fine})
    coarse = exact.of_ranks([rank_groups[i][0] for i in rest])
    num_merged = max(len(_merged(coarse.of_ranks([rank_groups[rest[0]][0]]), tolerance).rank), 1)
    kept = choose(
        [rank_groups[i] for i in rest], (), max(int((1 - EXACT_PART) * most) // num_merged, 1)
    )
    rest = [rest[i] for i in kept]
    return TimelineData(
        window,
        *_ends(exact),
        [rank_groups[i] for i in sorted((*fine, *rest))],
        exact.of_ranks([rank_groups[i][0] for i in fine]),
        exact.of_ranks([rank_groups[i][0] for i in rest]),
        len(rank_groups),
        slow,
        [],
        0,
    )


def _candidates(everything: Trace, window: TimeWindow) -> list[Trace]:
    """List traces to show, the longest first: all steps, the last two, the last one."""
    traces = [everything] if len(everything) <= MANY_SPANS else []
    traces.append(window.cut(everything))
    if not window.apart and len(window.steps) > 1:
        traces.append(window_of(everything, 1).cut(everything))
    return traces


def _ends(trace: Trace) -> tuple[float, float]:
    begin = min(float(block.start.min()) for block in trace.blocks)
    end = max(float(block.end.max()) for block in trace.blocks)
    return begin, end if end > begin else begin + 1e-9


def _merged(trace: Trace, tolerance: float) -> Columns:
    """Merge neighbours of one activity, lane and step; merged spans lose their name."""
    c = trace.columns
    if not len(c.rank):
        return c
    new = changes(c.rank, c.lane, c.activity, c.step)
    new[1:] |= c.start[1:] - c.end[:-1] > tolerance
    first = np.flatnonzero(new)
    last = np.append(first[1:], len(new)) - 1
    name = np.where(first == last, c.name[first], len(trace.names))
    return c.at(first)._replace(end=c.end[last], name=name)


def packed(contents: TimelineData) -> dict[str, Any]:
    """Pack the contents as plain data for ``timeline.js``."""
    c = _columns(contents)
    tick = (contents.end - contents.begin) / TICKS
    start = np.rint((c.start - contents.begin) / tick).astype(np.int64)
    end = np.rint((c.end - contents.begin) / tick).astype(np.int64)
    keys = np.stack([c.lane, c.activity, c.name, c.step])
    kinds, kind = np.unique(keys, axis=1, return_inverse=True)
    new = changes(c.rank, c.lane)
    before = np.concatenate([[0], end[:-1]])
    lanes = np.unique(kinds[0])
    firsts = [ranks[0] for ranks in contents.ranks]
    counts = np.searchsorted(c.rank, firsts, "right") - np.searchsorted(c.rank, firsts)
    places = sorted((rank, number) for number, ranks in enumerate(contents.ranks) for rank in ranks)
    return {
        "ranks": pack(np.array([rank for rank, _ in places]), np.uint32),
        "group": pack(np.array([number for _, number in places]), np.uint32),
        "counts": pack(counts, np.uint32),
        "kind": pack(kind.reshape(-1), np.uint32),
        "gap": pack(start - np.where(new, 0, before), np.int32),
        "length": pack(end - start, np.uint32),
        "kinds": [
            [int(np.searchsorted(lanes, lane)), int(activity), int(name), int(step)]
            for lane, activity, name, step in kinds.T
        ],
        "lanes": [lane_name(int(lane)) for lane in lanes],
        "activities": ACTIVITIES,
        "names": [*contents.exact.names, ""],
        "begin": contents.begin,
        "tick": tick,
        "steps": _steps(c, contents, np.unique(c.step)),
        "view": [
            max(contents.window.begin, contents.begin),
            min(contents.window.end, contents.end),
        ],
        "slow": {str(rank): suffix for rank, suffix in contents.slow.items()},
        "rows": [
            {"rank": row[0], "name": row_name(row, contents.slow), "count": len(row)}
            for row in contents.rows
        ],
    }


def _columns(contents: TimelineData) -> Columns:
    """Join the columns of all spans, by group, lane and start."""
    exact = contents.exact.columns
    if contents.merged is None:
        return exact
    merged = _merged(contents.merged, FINE * PIXEL * contents.window.length)
    both = [np.concatenate(pair) for pair in zip(exact, merged, strict=True)]
    order = np.argsort(both[0], kind="stable")
    return Columns._make(column[order] for column in both)


def _steps(c: Columns, contents: TimelineData, steps: Ints) -> list[tuple[int, float, float]]:
    """List each step's number from 1 on, first begin and last end [s]."""
    rows = []
    for step in steps:
        mine: Bools = c.step == step
        rows.append((int(step) + 1, float(c.start[mine].min()), float(c.end[mine].max())))
    return rows


def pack(values: Array | Sequence[int], dtype: type[np.generic]) -> dict[str, Any]:
    """Pack whole numbers: their bytes plane by plane, little-endian, deflated, in base64.

    The planes of high bytes are almost all zeros and compress well.
    """
    array = np.ascontiguousarray(values, dtype=np.dtype(dtype).newbyteorder("<"))
    planes = array.view(np.uint8).reshape(len(array), array.itemsize).T
    bits = 8 * array.itemsize
    return {
        "type": f"{'Int' if array.dtype.kind == 'i' else 'Uint'}{bits}",
        "length": len(array),
        "bytes": b64encode(zlib.compress(planes.tobytes(), 9)).decode(),
    }


def timeline(result: Result) -> list[Timeline]:
    """Make the section of a result; none without a trace of at least one step."""
    trace = result.trace
    if trace is None or not any(block.step >= 0 for block in trace.blocks):
        return []
    contents = shown(result)
    return [
        Timeline(
            "Timeline", data=packed(contents), caption=_caption(contents), note=_left_out(contents)
        )
    ]


def _caption(contents: TimelineData) -> str:
    """Describe the timeline in words, for screen readers."""
    first, last = contents.window.steps[0] + 1, contents.window.steps[-1] + 1
    steps = f"step {last}" if first == last else f"steps {first} to {last}"
    text = f"Who computes and who communicates when; at first {steps}"
    text += f", {seconds(contents.window.length)}. "
    if contents.rows:
        shown = f"{len(contents.rows)} of {contents.num_rows} groups of ranks"
        shown = (
            f"{len(contents.rows)} groups of ranks"
            if contents.num_rows == len(contents.rows)
            else shown
        )
        text += f"Ranks that do the same share a row: {shown}. “Rows” shows every rank; where "
        text += "rows have no room, a colour is what most ranks do, pale where few do anything. "
    slow = [
        f"rank {rank}{suffix.replace(' · ', ' (')}{')' * bool(suffix)}"
        for rank, suffix in contents.slow.items()
    ]
    return text + (f"▲ marks slow ranks: {', '.join(slow[:4])}." if slow else "No rank is slow.")


def _left_out(contents: TimelineData) -> str:
    """Write which spans and ranks are dropped; empty if none are."""
    sentences = []
    if contents.merged is not None:
        fine = listed(sorted(int(rank) for rank in {*contents.exact.rank}))
        sentences.append(
            f"Layers one by one are those of ranks {fine}; of others each phase is one bar."
        )
    left = contents.num_groups - len(contents.ranks)
    if left:
        sentences.append(
            f"{left} of {contents.num_groups} groups of ranks that do the same are left out."
        )
    return " ".join(sentences)
