"""Chrome trace: a run as JSON for https://ui.perfetto.dev, a track per rank and stream.

Trace Event Format: complete events ("X") with microseconds; a process is a rank, a thread a stream.
Steps count from 1, as in every file and picture; step 0 is what happens before the first one.

A file holds no more than `MAX_EVENTS` spans. What does not fit is left out in this order, and
``otherData`` says so: transfers, of the last collectives first; steps, the last ones first, but
only as long as a few ranks do not fit with all of them; ranks, the last ones first.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import accumulate, groupby

import numpy as np

from simdp.arrays import Ints
from simdp.results.blocks import Block
from simdp.results.result import Result
from simdp.results.trace import ACTIVITIES, SETUP, Trace, lane_name

MAX_EVENTS = 25_000
"""Spans in a file: as many as are written in a tenth of a second, and as Perfetto shows at once."""

FEW_RANKS = 8
"""Ranks that are worth more than late steps, which look like the ones before."""


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
    num_ranks, shown, left_out = _choose(result.trace, result.world_size)
    about = {
        "scenario": result.scenario["name"],
        "seed": result.scenario["seed"],
        "ranks": f"0 ... {num_ranks - 1} of {result.world_size}",
        **left_out,
    }
    listed = ",\n".join([*_processes(num_ranks), *_threads(shown), *_spans(shown)])
    return (
        f'{{"displayTimeUnit": "ms", "otherData": {json.dumps(about)},\n'
        f'"traceEvents": [\n{listed}\n]}}\n'
    )


# What fits ---------------------------------------------------------------------------------------


def _choose(trace: Trace, world_size: int) -> tuple[int, Trace, dict[str, str]]:
    """Choose what to show: the number of ranks, their spans, and what to say of the others."""
    if len(trace) <= MAX_EVENTS:
        return world_size, trace, {}
    blocks = trace.blocks
    last, last_shown = max(block.step for block in blocks), _last_step(blocks, world_size)
    own = [block for block in blocks if block.step <= last_shown and not _is_transfer(block)]
    counts = np.cumsum(_spans_per_rank(own, world_size))
    num_ranks = max(int(np.searchsorted(counts, MAX_EVENTS, side="right")), 1)
    transfers = [block for block in blocks if _is_transfer(block)]
    room = MAX_EVENTS - int(counts[-1])  # less than none where ranks are left out
    fitting = _whole_calls([block for block in transfers if block.step <= last_shown], room)
    left_out = {}
    if last_shown < last:
        left_out["steps"] = f"1 ... {last_shown + 1} of {last + 1}"
    if len(fitting) < len(transfers):
        first = f"the first {_count(fitting)}" if fitting else "none"
        left_out["transfers"] = f"{first} of {_count(transfers)}"
    chosen = Trace(own + fitting, trace.names)
    if num_ranks < world_size:
        chosen = chosen.of_ranks(range(num_ranks))
    return num_ranks, chosen, left_out


def _is_transfer(block: Block) -> bool:
    return ACTIVITIES[block.activity] == "transfer"


def _count(blocks: Iterable[Block]) -> int:
    return sum(len(block.ranks) for block in blocks)


def _spans_per_rank(blocks: Sequence[Block], world_size: int) -> Ints:
    """Count spans; blocks that share their ranks are counted in one go."""
    times: dict[int, int] = {}
    sharing = {}
    for block in blocks:
        key = id(block.ranks)
        times[key] = times.get(key, 0) + 1
        sharing[key] = block.ranks
    counts = np.zeros(world_size, dtype=np.int64)
    for key, ranks in sharing.items():
        counts += times[key] * np.bincount(ranks, minlength=world_size)
    return counts


def _last_step(blocks: Sequence[Block], world_size: int) -> int:
    """Find the last step up to which a few ranks fit; a file has one step at least."""
    few = min(world_size, FEW_RANKS)
    last = max(block.step for block in blocks)
    counts = [0] * (last - SETUP + 1)
    known: dict[int, int] = {}
    for block in blocks:
        if _is_transfer(block):
            continue
        key = id(block.ranks)
        if key not in known:
            known[key] = int((block.ranks < few).sum())
        counts[block.step - SETUP] += known[key]
    fitting = sum(count <= MAX_EVENTS for count in accumulate(counts))
    return min(max(fitting - 1 + SETUP, 0), last)


def _whole_calls(transfers: Sequence[Block], room: int) -> list[Block]:
    """Keep the transfers of the first collectives, of each all or none."""
    kept: list[Block] = []
    for _, call in groupby(transfers, key=lambda block: (block.step, block.name)):
        blocks = list(call)
        room -= _count(blocks)
        if room < 0:
            break
        kept += blocks
    return kept


# Events ------------------------------------------------------------------------------------------


def _processes(num_ranks: int) -> list[str]:
    """Name the ranks, and put them in order."""
    return [
        f'{{"ph": "M", "name": "process_name", "pid": {rank}, '
        f'"args": {{"name": "rank {rank}"}}}},\n'
        f'{{"ph": "M", "name": "process_sort_index", "pid": {rank}, '
        f'"args": {{"sort_index": {rank}}}}}'
        for rank in range(num_ranks)
    ]


def _threads(trace: Trace) -> list[str]:
    """Name the streams of every rank."""
    new = np.ones(len(trace), dtype=bool)
    new[1:] = (trace.rank[1:] != trace.rank[:-1]) | (trace.lane[1:] != trace.lane[:-1])
    return [
        f'{{"ph": "M", "name": "thread_name", "pid": {rank}, "tid": {lane}, '
        f'"args": {{"name": "{lane_name(lane)}"}}}}'
        for rank, lane in zip(trace.rank[new].tolist(), trace.lane[new].tolist(), strict=True)
    ]


def _spans(trace: Trace) -> list[str]:
    """One complete event per span; instants are rounded to a picosecond."""
    names = [json.dumps(name) for name in trace.names]
    begin = np.round(trace.start * 1e6, 6)
    # Of the rounded instants, so that neighbours touch: Perfetto nests what overlaps.
    length = np.round(np.round(trace.end * 1e6, 6) - begin, 6).tolist()
    columns = zip(
        trace.rank.tolist(),
        trace.lane.tolist(),
        trace.activity.tolist(),
        trace.name.tolist(),
        begin.tolist(),
        length,
        (trace.step + 1).tolist(),
        trace.nbytes.tolist(),
        strict=True,
    )
    return [
        f'{{"ph": "X", "pid": {rank}, "tid": {lane}, "cat": "{ACTIVITIES[activity]}", '
        f'"name": {names[name]}, "ts": {ts!r}, "dur": {duration!r}, '
        f'"args": {{"step": {step}, "nbytes": {nbytes!r}}}}}'
        for rank, lane, activity, name, ts, duration, step, nbytes in columns
    ]
