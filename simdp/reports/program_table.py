"""A program's ranks: how long each computed, communicated and waited."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from simdp.arrays import Floats
from simdp.reports import table
from simdp.results.trace import ACTIVITIES, Trace

COLUMNS = {
    "compute_s": "compute",
    "comm_s": "communication",
    "exposed_comm_s": "exposed",
    "wait_s": "wait",
    "idle_s": "idle",
}
"""What a rank's time is made of, by the names of JSON and of the table."""

MAX_ROWS = 16
"""Lines that a terminal shows; of more of them the first ones, and that there are others."""


def rows(trace: Trace, clocks: Floats) -> list[dict[str, Any]]:
    """What each rank did.

    Parameters
    ----------
    trace : Trace
        Every span.
    clocks : ndarray, shape `(world_size,)`
        When each rank ended [s].

    Returns
    -------
    list of dict
        For each rank ``compute_s``, ``comm_s`` (as long as any communication was under way),
        ``exposed_comm_s`` (of it, while nothing was computed), ``wait_s`` (for other ranks, while
        nothing else went on) and ``idle_s`` (what is left until its end) [s].
    """
    spans = _spans(trace, len(clocks))
    found = []
    for rank, clock in enumerate(clocks.tolist()):
        compute, comm, wait = (_union(spans[kind][rank]) for kind in ("compute", "comm", "wait"))
        busy = _length(compute)
        both = _length(_union([compute, comm]))
        all_three = _length(_union([compute, comm, wait]))
        found.append(
            {
                "rank": rank,
                "compute_s": busy,
                "comm_s": _length(comm),
                "exposed_comm_s": both - busy,
                "wait_s": all_three - both,
                "idle_s": max(clock - all_three, 0.0),
                "end_s": clock,
            }
        )
    return found


def lines(trace: Trace, clocks: Floats) -> list[str]:
    """The same as a table of plain text; neighbours that differ in nothing share a line."""
    found = rows(trace, clocks)
    head = ["rank", *COLUMNS.values(), "end"]
    texts = [[_shown(row[name]) for name in (*COLUMNS, "end_s")] for row in found]
    alike = [list(ranks) for _, ranks in groupby(range(len(found)), key=texts.__getitem__)]
    body = [[_ranks(ranks), *texts[ranks[0]]] for ranks in alike[:MAX_ROWS]]
    widths = [max(len(line[place]) for line in (head, *body)) for place in range(len(head))]
    shown = [
        "  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True))
        for line in (head, *body)
    ]
    if left := sum(map(len, alike[MAX_ROWS:])):
        shown.append(f"and {left} more ranks; --json has them all")
    return shown


def _ranks(ranks: Sequence[int]) -> str:
    return f"{ranks[0]}-{ranks[-1]}" if len(ranks) > 1 else str(ranks[0])


def _shown(value: float) -> str:
    return table.seconds(value) if value > 0 else "0 s"


def _spans(trace: Trace, world_size: int) -> dict[str, list[list[Floats]]]:
    """Spans by kind and rank, each of shape `(num_spans, 2)`."""
    found: dict[str, list[list[Floats]]] = {
        kind: [[] for _ in range(world_size)] for kind in ("compute", "comm", "wait")
    }
    for block in trace.blocks:
        activity = ACTIVITIES[block.activity]
        kind = activity if activity in ("comm", "wait") else "compute"
        both = np.stack(np.broadcast_arrays(block.start, block.end), axis=-1).reshape(-1, 2)
        for rank, pair in zip(np.asarray(block.ranks).tolist(), both, strict=True):
            found[kind][rank].append(pair[None])
    return found


def _union(pieces: Iterable[Floats]) -> Floats:
    """Intervals that cover the same, none of which meets another."""
    together = [np.empty((0, 2)), *pieces]
    spans = np.concatenate(together)
    if not len(spans):
        return spans
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    reach = np.maximum.accumulate(spans[:, 1])
    first = np.r_[True, spans[1:, 0] > reach[:-1]]
    last = np.r_[np.flatnonzero(first)[1:] - 1, len(spans) - 1]
    joined: Floats = np.stack([spans[first, 0], reach[last]], axis=-1)
    return joined


def _length(spans: Floats) -> float:
    return float((spans[:, 1] - spans[:, 0]).sum())
