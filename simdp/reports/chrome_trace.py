"""Makes the text of trace.json for Perfetto; `simdp.cli.run` writes the file.

A file holds at most `MAX_EVENTS` spans. Dropped first are transfers, those of the last collectives
first; then steps, setup and warm-up first, until a few ranks fit with all remaining ones; then
ranks, the last ones first, except rank 0 and the slowest.

Trace Event Format: complete events ("X") with microseconds; a process is a rank, a thread a stream,
and one more has a ``ProfilerStep#N`` for each step. Steps count from 1, as in every file and
picture. Device work is a ``kernel``; one of a collective lasts from its rank's arrival until all
are done, as NCCL's do, and holds a ``wait`` for the slowest. Arrows ("s", "f") join events that
begin in the very instant in which another ends: a collective and the kernel before its launch, the
last rank and the waiting ones, and a collective and the kernel that it delayed. Counters ("C") are
allocated device memory.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, groupby
from typing import Any, NamedTuple

import numpy as np

from simdp.arrays import Floats, Ints
from simdp.reports.figures import consecutive
from simdp.reports.rank_rows import slow_ranks, waited
from simdp.reports.trace_names import STREAM, Words, device_name, origin
from simdp.results.memory import usage
from simdp.results.result import Result
from simdp.results.trace import (
    ACTIVITIES,
    COMM_LANE,
    COMPUTE_LANE,
    FIRST_STREAM_LANE,
    SETUP,
    SpanBlock,
    Trace,
    changes,
    lane_name,
)

MAX_ARROWS = 5_000  # arrows in a file; more would hide the events
NEAR = 1e-9  # relative difference of two instants that count as equal


def arrows(trace: Trace, entered: Floats) -> Iterator[tuple[int, int, float]]:
    """Find dependencies between spans, within ranks and then between ranks.

    Yields the places of two spans, and the instant in the second one [s]: a collective and the
    kernel that ended when its rank arrived; a kernel and the collective that it waited for; waiting
    ranks and the last one. ``entered``, shape `(num_spans,)`, is when each span's rank arrived,
    before its wait [s].
    """
    if not len(trace):
        return
    yield from [*_of_ranks(trace, entered), *_between_ranks(trace, entered)][:MAX_ARROWS]


def _of_ranks(trace: Trace, entered: Floats) -> Iterator[tuple[int, int, float]]:
    is_comm = trace.select("comm")
    heads = np.flatnonzero(np.diff(trace.rank, prepend=-1))
    for begin, end in zip(heads, [*heads[1:], len(trace)], strict=True):
        mine = np.arange(begin, end)
        work = mine[trace.lane[mine] == COMPUTE_LANE]
        calls = mine[is_comm[mine]]
        if not len(work) or not len(calls):
            continue
        behind = _ending_at(trace.end[work], entered[calls])
        for call, place in zip(calls, behind, strict=True):
            if place >= 0:
                yield int(work[place]), int(call), float(entered[call])
        idle = np.ones(len(work), dtype=bool)
        idle[1:] = trace.start[work[1:]] > trace.end[work[:-1]]
        held = work[idle]
        by_end = calls[np.argsort(trace.end[calls], kind="stable")]
        behind = _ending_at(trace.end[by_end], trace.start[held])
        for kernel, place in zip(held, behind, strict=True):
            if place >= 0:
                yield int(by_end[place]), int(kernel), float(trace.start[kernel])


def _ending_at(ends: Floats, instants: Floats) -> list[int]:
    """Find the places of ascending ends that equal the instants; -1 for none."""
    right = np.minimum(np.searchsorted(ends, instants * (1 - NEAR)), len(ends) - 1)
    near = np.abs(ends[right] - instants) <= NEAR * instants
    return [int(place) for place in np.where(near, right, -1)]


def _between_ranks(trace: Trace, entered: Floats) -> Iterator[tuple[int, int, float]]:
    calls = np.flatnonzero(trace.select("comm") & (trace.nbytes >= 0))
    waited = trace.start > entered
    if not len(calls):
        return
    keys = np.stack([trace.step[calls], trace.lane[calls], trace.name[calls]])
    order = np.lexsort([trace.start[calls], *keys[::-1]])
    calls, keys = calls[order], keys[:, order]
    # Of one name in a step there may be several calls, each of which begins where all have come.
    new, start = changes(*keys), trace.start[calls]
    new[1:] |= start[1:] - start[:-1] > NEAR * np.abs(start[1:])
    heads = np.flatnonzero(new)
    for begin, end in zip(heads, [*heads[1:], len(calls)], strict=True):
        group = calls[begin:end]
        last = group[int(np.argmax(entered[group]))]
        if waited[last] or not waited[group].any():
            continue
        for span in group[waited[group]]:
            yield int(last), int(span), float(trace.start[span])


FEW_RANKS = 8  # ranks that are kept rather than early steps
_TRANSFER = ACTIVITIES.index("transfer")


class TraceSelection(NamedTuple):
    """Spans that a file shows."""

    ranks: list[int]  # ascending
    trace: Trace  # spans of these
    subset: dict[str, str]  # ranks, steps and transfers that are shown, the latter two if not all


def choose(result: Result, limit: int) -> TraceSelection:
    """Choose at most ``limit`` spans of a run; a rank's last step is always whole."""
    trace, n = result.trace, result.world_size
    assert trace is not None, "only a result that was just simulated has a trace"
    if len(trace) <= limit:
        return TraceSelection(list(range(n)), trace, {"ranks": _rank_text(list(range(n)), n)})
    blocks = trace.blocks
    first, last = _first_step(blocks, n, limit), max(block.step for block in blocks)
    transfers = [block for block in blocks if block.activity == _TRANSFER]
    own = [b for b in blocks if b.step >= first and b.activity != _TRANSFER]
    worth = list(dict.fromkeys([0, *slow_ranks(result, own)]))
    order = np.concatenate([worth, np.delete(np.arange(n), worth)]).astype(np.int64)
    counts = np.cumsum(_spans_per_rank(own, n)[order])
    num_ranks = max(int(np.searchsorted(counts, limit, side="right")), 1)
    room = limit - int(counts[-1])  # less than none where ranks are left out
    fitting = _whole_calls([block for block in transfers if block.step >= first], room)
    ranks = sorted(order[:num_ranks].tolist())
    parts = {"ranks": _rank_text(ranks, n)}
    if first > SETUP:
        parts["steps"] = f"{first + 1} ... {last + 1} of {last + 1}"
    if len(fitting) < len(transfers):
        which = f"the first {_count(fitting)}" if fitting else "none"
        parts["transfers"] = f"{which} of {_count(transfers)}"
    chosen = Trace(own + fitting, trace.names, trace.memory)
    return TraceSelection(ranks, chosen.of_ranks(ranks) if num_ranks < n else chosen, parts)


def _rank_text(ranks: list[int], world_size: int) -> str:
    """Write the ranks that are shown: ``"0 ... 6, 21 of 64"``."""
    runs = [f"{low} ... {high}" if low < high else str(low) for low, high in consecutive(ranks)]
    return f"{', '.join(runs)} of {world_size}"


def _count(blocks: Iterable[SpanBlock]) -> int:
    return sum(len(block.ranks) for block in blocks)


def _spans_per_rank(blocks: Sequence[SpanBlock], world_size: int) -> Ints:
    """Count spans per rank; blocks that share their ranks are counted at once."""
    sharing = {id(block.ranks): block.ranks for block in blocks}
    times = Counter(id(block.ranks) for block in blocks)
    counts = np.zeros(world_size, dtype=np.int64)
    for key, ranks in sharing.items():
        counts += times[key] * np.bincount(ranks, minlength=world_size)
    return counts


def _first_step(blocks: Sequence[SpanBlock], world_size: int, limit: int) -> int:
    """Find the first step from which on a few ranks fit; at least the last one."""
    few = min(world_size, FEW_RANKS)
    last = max(block.step for block in blocks)
    counts = [0] * (last - SETUP + 1)
    known: dict[int, int] = {}
    for block in blocks:
        if block.activity == _TRANSFER:
            continue
        key = id(block.ranks)
        if key not in known:
            known[key] = int((block.ranks < few).sum())
        counts[block.step - SETUP] += known[key]
    fitting = sum(count <= limit for count in accumulate(reversed(counts)))
    return max(min(last - fitting + 1, last), SETUP)


def _whole_calls(transfers: Sequence[SpanBlock], room: int) -> list[SpanBlock]:
    """Keep the transfers of the first collectives that fit, whole collectives only."""
    kept: list[SpanBlock] = []
    for _, call in groupby(transfers, key=lambda block: (block.step, block.name)):
        blocks = list(call)
        room -= _count(blocks)
        if room < 0:
            break
        kept += blocks
    return kept


MAX_EVENTS = 25_000  # spans in a file: a tenth of a second to write, and quick to load in Perfetto
MAX_CHANGES = 5_000  # memory changes in a file; ranks beyond them have no counter
MAX_LISTED = 1_024  # ranks of a process group that are listed
STEPS_TID = 1  # thread of the steps; streams are numbered from `trace_names.STREAM` on


def write(result: Result) -> str:
    """Write the trace of a result as JSON."""
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


def _about(result: Result, chosen: TraceSelection) -> dict[str, Any]:
    """Make the metadata beside the events, in the format of torch's profiler."""
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
        "otherData": {**origin(result), **chosen.subset},
    }


class Spans:
    """Columns of a trace, with each wait as a part of the collective that ends it.

    ``begin`` and ``length`` are rounded to a picosecond [us]; ``is_waited`` marks collectives that
    begin with a wait.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.is_waited = waited(trace.columns)
        start = trace.start.copy()
        at = np.flatnonzero(self.is_waited)
        start[at] = trace.start[at - 1]
        self.begin = np.round(start * 1e6, 6)
        # From rounded instants, so that neighbours touch: Perfetto nests overlapping events.
        self.length = np.round(np.round(trace.end * 1e6, 6) - self.begin, 6)

    def order(self) -> Ints:
        """Order spans so that a collective precedes the wait in it."""
        order = np.arange(len(self.trace))
        at = np.flatnonzero(self.is_waited)
        order[at], order[at - 1] = at - 1, at
        return order


def _meta(what: str, pid: int, tid: int | None, **args: Any) -> str:
    place = {"pid": pid} | ({} if tid is None else {"tid": tid})
    return json.dumps({"ph": "M", "name": what, **place, "args": args})


def _processes(result: Result, ranks: Sequence[int]) -> Iterator[str]:
    """Name and order the ranks."""
    device = device_name(result)
    for rank in ranks:
        yield _meta("process_name", rank, None, name=f"rank {rank}")
        yield _meta("process_labels", rank, None, labels=device)
        yield _meta("process_sort_index", rank, None, sort_index=rank)


def _threads(trace: Trace, ranks: Sequence[int], steps: bool) -> Iterator[str]:
    """Name the streams of every rank, in order, below its steps."""
    if steps:
        for rank in ranks:
            yield _meta("thread_name", rank, STEPS_TID, name="steps")
            yield _meta("thread_sort_index", rank, STEPS_TID, sort_index=-1)
    new = changes(trace.rank, trace.lane)
    for rank, lane in zip(trace.rank[new].tolist(), trace.lane[new].tolist(), strict=True):
        # Further streams of collectives are next to the first, before the single transfers.
        place = lane - FIRST_STREAM_LANE + 2 if lane >= FIRST_STREAM_LANE else lane
        is_send = COMM_LANE < lane < FIRST_STREAM_LANE
        yield _meta("thread_name", rank, lane + STREAM, name=lane_name(lane))
        yield _meta("thread_sort_index", rank, lane + STREAM, sort_index=place + 64 * is_send)


def _steps(result: Result, chosen: TraceSelection) -> Iterator[str]:
    """Annotate each rank's steps: from the end of the step before to its last span's."""
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
    """Write a complete event per span."""
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
        head, args = words.of(step, activity, name)
        sent = f', "bytes": {nbytes!r}' if nbytes else ""
        yield (
            f'{{"ph": "X", {head}, "pid": {rank}, "tid": {lane + STREAM}, "ts": {ts!r}, '
            f'"dur": {duration!r}, "args": {{"device": 0, "stream": {lane + STREAM}, '
            f'"correlation": {number + 1}{args}{sent}}}}}'
        )


def _flows(spans: Spans) -> Iterator[str]:
    """Write the arrows between events."""
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
    """Compute when each span's rank arrived; for a collective before its wait [s]."""
    entered, places = spans.trace.start.copy(), np.flatnonzero(spans.is_waited)
    entered[places] = spans.trace.start[places - 1]
    return entered


def _counters(chosen: TraceSelection) -> Iterator[str]:
    """Write the allocated memory of each rank over the steps that are shown."""
    trace, left = chosen.trace, MAX_CHANGES
    if not trace.memory or not len(trace):
        return
    first = int(trace.step.min())
    for rank in chosen.ranks:
        memory = usage(trace.memory, [rank])
        mine = np.flatnonzero(memory.step >= first)
        left -= len(mine)
        if left < 0:
            return
        total, at = memory.total, np.round(memory.at * 1e6, 6)
        for i in mine:
            yield (
                f'{{"ph": "C", "pid": {rank}, "name": "memory", "ts": {float(at[i])!r}, '
                f'"args": {{"Total Allocated": {float(total[i])!r}}}}}'
            )
