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
from simdp.reports.rank_rows import changes, slow_ranks
from simdp.reports.sections import Timeline
from simdp.results.result import Result
from simdp.results.trace import ACTIVITIES, SETUP, Columns, Trace, lane_name

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
    found = _spans_of(result, most, few)
    if result.world_size <= FEW_ROWS:
        return found
    window, here = found.window, {rank for ranks in found.ranks for rank in ranks}
    assert result.trace is not None
    rows = groups(window.cut(result.trace), result.world_size, PIXEL * window.length)
    chosen = choose(rows, list(found.slow), MAX_ROWS)
    present = [[rank for rank in rows[number] if rank in here] for number in chosen]
    return found._replace(rows=[row for row in present if row], num_rows=len(rows))


def _spans_of(result: Result, most: int, few: int) -> TimelineData:
    trace, n = result.trace, result.world_size
    assert trace is not None
    window = window_of(trace)
    tolerance = FINE * PIXEL * window.length
    steps = [b for b in trace.blocks if b.activity != _TRANSFER and b.step > SETUP]
    everything = Trace(steps, trace.names)
    slow = slow_ranks(result, window.cut(everything).blocks)
    found = [[rank] for rank in range(n)]
    if len(everything) <= min(few, most):
        return TimelineData(window, *_ends(everything), found, everything, None, n, slow, [], 0)
    for inside in _candidates(everything, window):
        found = groups(inside, n, tolerance)
        exact = inside.of_ranks([each[0] for each in found])
        if len(exact) <= most:
            return TimelineData(window, *_ends(inside), found, exact, None, len(found), slow, [], 0)
    room = max(int(EXACT_PART * most * len(found)) // len(exact), 1)
    fine = choose(found, list(slow), room)
    rest = sorted({*range(len(found))} - {*fine})
    coarse = exact.of_ranks([found[i][0] for i in rest])
    each = max(len(_merged(coarse.of_ranks([found[rest[0]][0]]), tolerance)["rank"]), 1)
    kept = choose([found[i] for i in rest], (), max(int((1 - EXACT_PART) * most) // each, 1))
    rest = [rest[i] for i in kept]
    return TimelineData(
        window,
        *_ends(exact),
        [found[i] for i in sorted((*fine, *rest))],
        exact.of_ranks([found[i][0] for i in fine]),
        exact.of_ranks([found[i][0] for i in rest]),
        len(found),
        slow,
        [],
        0,
    )


def _candidates(everything: Trace, window: TimeWindow) -> list[Trace]:
    """List traces to show, the longest first: all steps, the last two, the last one."""
    found = [everything] if len(everything) <= MANY_SPANS else []
    found.append(window.cut(everything))
    if not window.apart and len(window.steps) > 1:
        found.append(window_of(everything, 1).cut(everything))
    return found


def _ends(trace: Trace) -> tuple[float, float]:
    begin = min(float(block.start.min()) for block in trace.blocks)
    end = max(float(block.end.max()) for block in trace.blocks)
    return begin, end if end > begin else begin + 1e-9


def _merged(trace: Trace, tolerance: float) -> Columns:
    """Merge neighbours of one activity, lane and step; merged spans lose their name."""
    c = trace.columns
    if not len(c["rank"]):
        return dict(c)
    new = changes(*(c[key] for key in ("rank", "lane", "activity", "step")))
    new[1:] |= c["start"][1:] - c["end"][:-1] > tolerance
    first = np.flatnonzero(new)
    last = np.append(first[1:], len(new)) - 1
    made = {key: column[first] for key, column in c.items()}
    made["end"] = c["end"][last]
    made["name"] = np.where(first == last, c["name"][first], len(trace.names))
    return made


def packed(found: TimelineData) -> dict[str, Any]:
    """Pack the contents as plain data for ``timeline.js``."""
    c = _columns(found)
    tick = (found.end - found.begin) / TICKS
    start = np.rint((c["start"] - found.begin) / tick).astype(np.int64)
    end = np.rint((c["end"] - found.begin) / tick).astype(np.int64)
    keys = np.stack([c["lane"], c["activity"], c["name"], c["step"]])
    kinds, kind = np.unique(keys, axis=1, return_inverse=True)
    new = changes(c["rank"], c["lane"])
    before = np.concatenate([[0], end[:-1]])
    lanes = np.unique(kinds[0])
    firsts = [ranks[0] for ranks in found.ranks]
    counts = np.searchsorted(c["rank"], firsts, "right") - np.searchsorted(c["rank"], firsts)
    each = sorted((rank, number) for number, ranks in enumerate(found.ranks) for rank in ranks)
    return {
        "ranks": pack(np.array([rank for rank, _ in each]), np.uint32),
        "group": pack(np.array([number for _, number in each]), np.uint32),
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
        "names": [*found.exact.names, ""],
        "begin": found.begin,
        "tick": tick,
        "steps": _steps(c, found, np.unique(c["step"])),
        "view": [max(found.window.begin, found.begin), min(found.window.end, found.end)],
        "slow": {str(rank): said for rank, said in found.slow.items()},
        "rows": [
            {"rank": row[0], "name": row_name(row, found.slow), "count": len(row)}
            for row in found.rows
        ],
    }


def _columns(found: TimelineData) -> Columns:
    """Join the columns of all spans, by group, lane and start."""
    exact = found.exact.columns
    if found.merged is None:
        return exact
    merged = _merged(found.merged, FINE * PIXEL * found.window.length)
    both = {key: np.concatenate([exact[key], merged[key]]) for key in exact}
    order = np.argsort(both["rank"], kind="stable")
    return {key: column[order] for key, column in both.items()}


def _steps(c: Columns, found: TimelineData, steps: Ints) -> list[tuple[int, float, float]]:
    """List each step's number from 1 on, first begin and last end [s]."""
    rows = []
    for step in steps:
        mine: Bools = c["step"] == step
        rows.append((int(step) + 1, float(c["start"][mine].min()), float(c["end"][mine].max())))
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
    found = shown(result)
    return [Timeline("Timeline", data=packed(found), said=_said(found), note=_left_out(found))]


def _said(found: TimelineData) -> str:
    """Describe the timeline in words, for screen readers."""
    first, last = found.window.steps[0] + 1, found.window.steps[-1] + 1
    steps = f"step {last}" if first == last else f"steps {first} to {last}"
    text = f"Who computes and who communicates when; at first {steps}"
    text += f", {seconds(found.window.length)}. "
    if found.rows:
        shown = f"{len(found.rows)} of {found.num_rows} groups of ranks"
        shown = f"{len(found.rows)} groups of ranks" if found.num_rows == len(found.rows) else shown
        text += f"Ranks that do the same share a row: {shown}. “Rows” shows every rank; where "
        text += "rows have no room, a colour is what most ranks do, pale where few do anything. "
    slow = [
        f"rank {rank}{said.replace(' · ', ' (')}{')' * bool(said)}"
        for rank, said in found.slow.items()
    ]
    return text + (f"▲ marks slow ranks: {', '.join(slow[:4])}." if slow else "No rank is slow.")


def _left_out(found: TimelineData) -> str:
    """Write which spans and ranks are dropped; empty if none are."""
    said = []
    if found.merged is not None:
        fine = listed(sorted(int(rank) for rank in {*found.exact.rank}))
        said.append(
            f"Layers one by one are those of ranks {fine}; of others each phase is one bar."
        )
    left = found.num_groups - len(found.ranks)
    if left:
        said.append(f"{left} of {found.num_groups} groups of ranks that do the same are left out.")
    return " ".join(said)
