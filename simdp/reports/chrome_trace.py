"""Chrome trace: a run as JSON for https://ui.perfetto.dev, in the words of torch's own traces.

Trace Event Format: complete events ("X") with microseconds; a process is a rank, a thread a stream,
and one more has a ``ProfilerStep#N`` for each step. Steps count from 1, as in every file and
picture. What a device does is a ``kernel``; one of a collective lasts from when its rank comes to
when all are done, as NCCL's do, and holds a ``wait`` where it waits for the slowest. Arrows
("s", "f") join what began in the very instant in which something else ended: a collective and the
kernel behind which it was launched, the rank that came last and those that waited for it, and a
collective and the kernel that it held up. Counters ("C") are what a device has allocated.

A file holds no more than `MAX_EVENTS` spans; see `simdp.reports.trace_choice`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from simdp.arrays import Bools, Floats, Ints
from simdp.reports.rank_rows import waited
from simdp.reports.trace_arrows import arrows
from simdp.reports.trace_choice import Choice, choose
from simdp.reports.trace_words import STREAM, Words, device_name, machine_name
from simdp.results.memory import usage
from simdp.results.result import Result
from simdp.results.trace import COMM_LANE, FIRST_STREAM_LANE, SETUP, Trace, lane_name

MAX_EVENTS = 25_000
"""Spans in a file: as many as are written in a tenth of a second, and as Perfetto shows at once."""

MAX_CHANGES = 5_000
"""Changes of memory in a file; beyond them ranks have no counter."""

MAX_LISTED = 1_024
"""Ranks of a process group that are listed."""

STEPS_TID = 1
"""The thread of the steps; streams have their own numbers, from `trace_words.STREAM` on."""


def write(result: Result) -> str:
    """Write the trace of a result.

    Parameters
    ----------
    result : Result
        With a trace.

    Returns
    -------
    str
        JSON.
    """
    chosen = choose(result, MAX_EVENTS)
    spans = Spans(chosen.trace)
    words = Words(result, chosen.trace)
    listed = ",\n".join(
        [
            *_processes(result, chosen.ranks),
            *_threads(chosen.trace, chosen.ranks, steps="program" not in result.scenario),
            *_steps(result, chosen),
            *_events(spans, words),
            *_flows(spans),
            *_counters(chosen),
        ]
    )
    head = json.dumps(_about(result, chosen))[1:-1]
    return f'{{{head},\n"traceEvents": [\n{listed}\n]}}\n'


def _about(result: Result, chosen: Choice) -> dict[str, Any]:
    """What stands beside the events, as torch's profiler writes it."""
    n, device = result.world_size, device_name(result)
    group = {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "simdp", "pg_size": n}
    if n <= MAX_LISTED:
        group["ranks"] = list(range(n))
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": device}],
        "distributedInfo": {
            "backend": "simdp",
            "rank": chosen.ranks[0],
            "world_size": n,
            "pg_count": 1,
            "pg_config": [group],
        },
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 0,
        "traceName": f"{result.scenario['name']}/trace.json",
        "otherData": {
            "scenario": result.scenario["name"],
            "seed": result.scenario["seed"],
            **machine_name(result),
            **chosen.said,
        },
    }


class Spans:
    """The columns of a trace, with each wait as a part of the collective that ends it.

    Attributes
    ----------
    trace : Trace
        In its own order.
    begin, length : ndarray, float64
        Of the events, rounded to a picosecond [us].
    is_waited : ndarray, bool
        Whether a span of a collective begins with the wait before it.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.is_waited = waited(trace.columns)
        start = trace.start.copy()
        at = np.flatnonzero(self.is_waited)
        start[at] = trace.start[at - 1]
        self.begin = np.round(start * 1e6, 6)
        # Of the rounded instants, so that neighbours touch: Perfetto nests what overlaps.
        self.length = np.round(np.round(trace.end * 1e6, 6) - self.begin, 6)

    def order(self) -> Ints:
        """Put a collective before the wait in it."""
        order = np.arange(len(self.trace))
        at = np.flatnonzero(self.is_waited)
        order[at], order[at - 1] = at - 1, at
        return order


# Events ------------------------------------------------------------------------------------------


def _meta(what: str, pid: int, tid: int | None, **args: Any) -> str:
    place = {"pid": pid} | ({} if tid is None else {"tid": tid})
    return json.dumps({"ph": "M", "name": what, **place, "args": args})


def _processes(result: Result, ranks: Sequence[int]) -> Iterator[str]:
    """Name the ranks, and put them in order."""
    device = device_name(result)
    for rank in ranks:
        yield _meta("process_name", rank, None, name=f"rank {rank}")
        yield _meta("process_labels", rank, None, labels=device)
        yield _meta("process_sort_index", rank, None, sort_index=rank)


def _threads(trace: Trace, ranks: Sequence[int], steps: bool) -> Iterator[str]:
    """Name the streams of every rank, in their order, below its steps."""
    if steps:
        for rank in ranks:
            yield _meta("thread_name", rank, STEPS_TID, name="steps")
            yield _meta("thread_sort_index", rank, STEPS_TID, sort_index=-1)
    new = np.ones(len(trace), dtype=bool)
    new[1:] = (trace.rank[1:] != trace.rank[:-1]) | (trace.lane[1:] != trace.lane[:-1])
    for rank, lane in zip(trace.rank[new].tolist(), trace.lane[new].tolist(), strict=True):
        # Further streams of collectives stand beside the first, before the single transfers.
        place = lane - FIRST_STREAM_LANE + 2 if lane >= FIRST_STREAM_LANE else lane
        is_send = COMM_LANE < lane < FIRST_STREAM_LANE
        yield _meta("thread_name", rank, lane + STREAM, name=lane_name(lane))
        yield _meta("thread_sort_index", rank, lane + STREAM, sort_index=place + 64 * is_send)


def _steps(result: Result, chosen: Choice) -> Iterator[str]:
    """An annotation per rank and step: from the end of the step before to its last span's."""
    trace = chosen.trace
    if "program" in result.scenario or not len(trace):
        return
    first, last = int(trace.step.min()), int(trace.step.max())
    shape = last - first + 1, result.world_size
    begins, ends = np.full(shape, np.inf), np.full(shape, -np.inf)
    np.minimum.at(begins, (trace.step - first, trace.rank), trace.start)
    np.maximum.at(ends, (trace.step - first, trace.rank), trace.end)
    begins[1:] = np.where(np.isfinite(ends[:-1]), ends[:-1], begins[1:])
    begins, ends = np.round(begins * 1e6, 6), np.round(ends * 1e6, 6)
    for step in range(max(first, SETUP + 1), last + 1):
        row = step - first
        for rank in chosen.ranks:
            ts, end = float(begins[row, rank]), float(ends[row, rank])
            if not np.isfinite(ends[row, rank]):
                continue
            yield (
                f'{{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#{step + 1}", '
                f'"pid": {rank}, "tid": {STEPS_TID}, "ts": {ts!r}, '
                f'"dur": {round(max(end - ts, 0.0), 6)!r}, "args": {{"step": {step + 1}}}}}'
            )


def _events(spans: Spans, words: Words) -> Iterator[str]:
    """One complete event per span."""
    trace, order = spans.trace, spans.order()
    columns = zip(
        trace.rank[order].tolist(),
        trace.lane[order].tolist(),
        trace.activity[order].tolist(),
        trace.name[order].tolist(),
        spans.begin[order].tolist(),
        spans.length[order].tolist(),
        trace.step[order].tolist(),
        trace.nbytes[order].tolist(),
        order.tolist(),
        strict=True,
    )
    for rank, lane, activity, name, ts, duration, step, nbytes, number in columns:
        said, args = words.of(step, activity, name)
        sent = f', "bytes": {nbytes!r}' if nbytes else ""
        yield (
            f'{{"ph": "X", {said}, "pid": {rank}, "tid": {lane + STREAM}, "ts": {ts!r}, '
            f'"dur": {duration!r}, "args": {{"device": 0, "stream": {lane + STREAM}, '
            f'"correlation": {number + 1}{args}{sent}}}}}'
        )


def _flows(spans: Spans) -> Iterator[str]:
    """An arrow from the begin of one event to an instant of another."""
    trace = spans.trace
    for number, (source, target, at) in enumerate(arrows(trace, _entered(spans)), 1):
        for phase, i, ts in (
            ("s", source, float(spans.begin[source])),
            ("f", target, round(at * 1e6, 6)),
        ):
            bound = ', "bp": "e"' if phase == "f" else ""
            yield (
                f'{{"ph": "{phase}", "id": {number}, "pid": {trace.rank[i]}, '
                f'"tid": {trace.lane[i] + STREAM}, "ts": {ts!r}, "cat": "ac2g", '
                f'"name": "ac2g"{bound}}}'
            )


def _entered(spans: Spans) -> Floats:
    """When each span's rank came to it; of a collective that is before its wait [s]."""
    entered = spans.trace.start.copy()
    at: Bools = spans.is_waited
    places = np.flatnonzero(at)
    entered[places] = spans.trace.start[places - 1]
    return entered


def _counters(chosen: Choice) -> Iterator[str]:
    """What each rank has allocated, in the steps that are shown and known."""
    trace, left = chosen.trace, MAX_CHANGES
    if not trace.memory or not len(trace):
        return
    first = int(trace.step.min())
    for rank in chosen.ranks:
        found = usage(trace.memory, [rank])
        mine = np.flatnonzero(found.step >= first)
        left -= len(mine)
        if left < 0:
            return
        total, at = found.total, np.round(found.at * 1e6, 6)
        for i in mine:
            yield (
                f'{{"ph": "C", "pid": {rank}, "name": "memory", "ts": {float(at[i])!r}, '
                f'"args": {{"Total Allocated": {float(total[i])!r}}}}}'
            )
