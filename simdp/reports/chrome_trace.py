"""Chrome trace: a run as JSON for https://ui.perfetto.dev, a track per rank and stream.

Trace Event Format: complete events ("X") with microseconds; a process is a rank, a thread a stream.
Steps count from 1, as in every file and picture; step 0 is what happens before the first one.
"""

from __future__ import annotations

import json

import numpy as np

from simdp.results.result import Result
from simdp.results.trace import ACTIVITIES, Trace, lane_name

MAX_EVENTS = 200_000
"""Beyond this the last ranks are left out, which the file says; Perfetto would crawl."""


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
    assert result.trace is not None, "only a result that was just simulated has a trace"
    trace = result.trace
    num_ranks = _ranks_that_fit(trace, result.world_size)
    shown = np.flatnonzero(trace.rank < num_ranks)
    events = [json.dumps(event) for event in _names(trace, num_ranks)]
    events += _spans(trace, shown)
    about = {
        "scenario": result.scenario["name"],
        "seed": result.scenario["seed"],
        "ranks": f"0 ... {num_ranks - 1} of {result.world_size}",
    }
    listed = ",\n".join(events)
    return (
        f'{{"displayTimeUnit": "ms", "otherData": {json.dumps(about)},\n'
        f'"traceEvents": [\n{listed}\n]}}\n'
    )


def _ranks_that_fit(trace: Trace, world_size: int) -> int:
    counts = np.cumsum(np.bincount(trace.rank, minlength=world_size))
    return max(int(np.searchsorted(counts, MAX_EVENTS, side="right")), 1)


def _names(trace: Trace, num_ranks: int) -> list[dict[str, object]]:
    """Name the tracks, and put them in order."""
    events: list[dict[str, object]] = []
    for rank in range(num_ranks):
        for event, args in (
            ("process_name", {"name": f"rank {rank}"}),
            ("process_sort_index", {"sort_index": rank}),
        ):
            events.append({"ph": "M", "name": event, "pid": rank, "args": args})
    lanes = np.unique(np.stack([trace.rank, trace.lane]), axis=1)
    for rank, lane in lanes.T.tolist():
        if rank < num_ranks:
            args = {"name": lane_name(lane)}
            events.append(
                {"ph": "M", "name": "thread_name", "pid": rank, "tid": lane, "args": args}
            )
    return events


def _spans(trace: Trace, shown: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[str]:
    """One complete event per span; instants are rounded to a picosecond."""
    names = [json.dumps(name) for name in trace.names]
    begin = np.round(trace.start[shown] * 1e6, 6)
    # Of the rounded instants, so that neighbours touch: Perfetto nests what overlaps.
    length = np.round(np.round(trace.end[shown] * 1e6, 6) - begin, 6).tolist()
    columns = zip(
        trace.rank[shown].tolist(),
        trace.lane[shown].tolist(),
        trace.activity[shown].tolist(),
        trace.name[shown].tolist(),
        begin.tolist(),
        length,
        (trace.step[shown] + 1).tolist(),
        trace.nbytes[shown].tolist(),
        strict=True,
    )
    return [
        f'{{"ph": "X", "pid": {rank}, "tid": {lane}, "cat": "{ACTIVITIES[activity]}", '
        f'"name": {names[name]}, "ts": {ts!r}, "dur": {duration!r}, '
        f'"args": {{"step": {step}, "nbytes": {nbytes!r}}}}}'
        for rank, lane, activity, name, ts, duration, step, nbytes in columns
    ]
