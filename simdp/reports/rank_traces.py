"""Rank traces: a file per rank as torch's profiler writes it, for tools that read those.

HolisticTraceAnalysis, Perfetto and TensorBoard's torch-tb-profiler load the folder. Kernels, copies
and collectives lie where the run's spans do; an NCCL kernel starts when its rank comes to it, so
that waiting for others is in it. Stand-ins, for what a run does not know: numbers of processes and
threads, names of compute kernels (the layer's kind and pass), the thread that ran an operator, the
host's end of a step (that of its device), and NCCL's version (the one whose model it is).
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

import simdp
from simdp.errors import ScenarioError
from simdp.files import whole_files
from simdp.reports import torch_names
from simdp.reports.rank_events import (
    AUTOGRAD,
    HOST,
    STREAM,
    Group,
    Names,
    RankEvents,
    step_limits,
    step_lines,
)
from simdp.reports.rank_rows import Row, rows_of
from simdp.reports.trace_words import device_name, machine_name
from simdp.results.launched import Launched
from simdp.results.result import Result

MAX_RANKS = 1_024
"""Ranks that are written unless others are asked for: a folder of as many files."""

TOGETHER = 16
"""Ranks whose spans are put in order in one go."""

NCCL = "2.30.7"
"""The version whose constants simdp's model of NCCL has."""

OURS = re.compile(r"rank\d+\.\d+\.pt\.trace\.json\.gz")


def file_name(rank: int) -> str:
    """Name a rank's file; TensorBoard takes the middle for the number of a recording."""
    return f"rank{rank}.1.pt.trace.json.gz"


def save_traces(result: Result, folder: Path, ranks: Sequence[int] | None = None) -> list[Path]:
    """Write a trace per rank into a folder; files of other ranks of an earlier run are removed.

    Parameters
    ----------
    result : Result
        With a trace.
    folder : Path
        Made if it is not there.
    ranks : sequence of int, optional
        Whose; all of them by default.

    Returns
    -------
    list of Path
        The files, in the order of the ranks.

    Raises
    ------
    ScenarioError
        If there is no trace, no such rank, too many ranks while none are named, or the folder
        cannot be written to.
    """
    if result.trace is None:
        raise ScenarioError(
            ["traces: only a result that was just simulated has spans; simulate it again."]
        )
    chosen = chosen_ranks(result.world_size, ranks)
    written = [file_name(rank) for rank in chosen]
    with whole_files(folder) as add:
        for at in range(0, len(chosen), TOGETHER):
            for rank, rows in rows_of(result.trace, chosen[at : at + TOGETHER]):
                add(file_name(rank), partial(_put, _lines(result, rank, rows)))
    for path in folder.iterdir():
        if OURS.fullmatch(path.name) and path.name not in written:
            path.unlink()
    return [folder / name for name in written]


def chosen_ranks(world_size: int, ranks: Sequence[int] | None) -> list[int]:
    """Say whose traces are written, in order; see `save_traces` for its errors."""
    n = world_size
    if ranks is None and n > MAX_RANKS:
        raise ScenarioError(
            [f"traces: {n} ranks are as many files; name those that you want: --ranks 0-63."]
        )
    chosen = sorted(set(range(n) if ranks is None else ranks))
    missing = [rank for rank in chosen if not 0 <= rank < n]
    if missing or not chosen:
        said = f"there is no rank {missing[0]}" if missing else "no rank is named"
        raise ScenarioError([f"traces: {said}; the run has ranks 0 to {n - 1}."])
    return chosen


def _put(lines: Iterator[str], stream: BinaryIO) -> None:
    """Compress lines as they come; the bytes do not depend on when."""
    with gzip.GzipFile("", "wb", compresslevel=3, fileobj=stream, mtime=0) as packed:
        few: list[str] = []
        for line in lines:
            few.append(line)
            if len(few) >= 2_000:
                packed.write("".join(few).encode())
                few.clear()
        packed.write("".join(few).encode())


# One file ----------------------------------------------------------------------------------------


def _lines(result: Result, rank: int, rows: list[Row]) -> Iterator[str]:
    names = _names(result)
    groups = _groups(result, names.facts, rank)
    yield f"{{\n{_head(result, names.facts, rank, groups)},\n"
    yield '"traceEvents": [\n'
    begins, ends = step_limits(rows)
    yield ",\n".join(_meta(rank, names.facts, rows))
    for line in step_lines(rank, begins, ends):
        yield f",\n{line}"
    for line in RankEvents(names, rank, groups).lines(rows, begins):
        yield f",\n{line}"
    yield "\n]\n}\n"


def _names(result: Result) -> Names:
    """What the run's scenario calls things; worked out once for all ranks."""
    known: Names | None = result.__dict__.get("_rank_names")
    if known is None:
        scenario = result.scenario
        strategy = (scenario.get("strategy") or {}).get("kind", "")
        workload = scenario.get("workload") or {}
        wrapper = torch_names.MODULES.get(strategy, "")
        known = Names(
            result.launched() if result.launched is not None else Launched(),
            torch_names.optimizer_step((workload.get("optimizer") or {}).get("kind", "sgd")),
            f"{wrapper}.forward" if wrapper else "",
            torch_names.next_batch((workload.get("input") or {}).get("workers", 0)),
            torch_names.ANNOTATIONS.get(strategy, {}),
        )
        result.__dict__["_rank_names"] = known
    return known


def _groups(result: Result, facts: Launched, rank: int) -> dict[str, Group]:
    """The process groups of a rank: that of all, and those of its strategy, numbered behind it."""
    found = {"": Group("0", "default_pg", np.arange(result.world_size))}
    first = 1
    for name, ranks in facts.groups.items():
        for number in np.flatnonzero((ranks == rank).any(axis=1)).tolist():
            found[name] = Group(str(first + number), name, ranks[number])
        first += len(ranks)
    return found


def _head(result: Result, facts: Launched, rank: int, groups: dict[str, Group]) -> str:
    """What stands above the events, one key a line; HTA looks for the rank line by line."""
    device: dict[str, Any] = {"id": rank % facts.local_size, "name": device_name(result, rank)}
    if facts.memory is not None:
        device["totalGlobalMem"] = int(facts.memory[rank])
    config = [
        {
            "pg_name": group.number,
            "pg_desc": group.description,
            "backend_config": "cuda:nccl",
            "pg_size": len(group.ranks),
            "ranks": group.ranks.tolist(),
        }
        for group in groups.values()
    ]
    said = {
        "schemaVersion": 1,
        "deviceProperties": [device],
        "distributedInfo": {
            "backend": "nccl",
            "rank": rank,
            "world_size": result.world_size,
            "pg_count": len(config),
            "pg_config": config,
            "nccl_version": NCCL,
        },
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 0,
        "traceName": f"{result.scenario['name']}/{file_name(rank)}",
        "otherData": {
            "simdp": simdp.__version__,
            "scenario": result.scenario["name"],
            "seed": result.scenario["seed"],
            **machine_name(result),
        },
    }
    return ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in said.items())


def _meta(rank: int, facts: Launched, rows: list[Row]) -> Iterator[str]:
    """Name the host's process and threads, the device, and its streams."""
    main, device = HOST + rank, rank % facts.local_size
    yield _named("process_name", main, 0, name="python")
    yield _named("process_labels", main, 0, labels="CPU")
    yield _named("process_sort_index", main, 0, sort_index=main)
    yield _named("thread_name", main, main, name=f"thread {main} (python)")
    yield _named("thread_name", main, main + AUTOGRAD, name=f"thread {main + AUTOGRAD} (autograd)")
    yield _named("process_name", device, 0, name="python")
    yield _named("process_labels", device, 0, labels=f"GPU {device}")
    yield _named("process_sort_index", device, 0, sort_index=5_000_000 + device)
    for stream in sorted({row.stream + STREAM for row in rows} | {STREAM}):
        yield _named("thread_name", device, stream, name=f"stream {stream}")


def _named(what: str, pid: int, tid: int, **args: Any) -> str:
    place = {"pid": pid, "tid": tid}
    return json.dumps({"ph": "M", "name": what, "ts": 0.0, **place, "args": args})
