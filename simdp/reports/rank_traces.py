"""Writes one profiler trace per rank, with the event names of torch's profiler.

The device's events are the run's own: a span of compute is split into its kernels (see
`simdp.results.memory`), and one of a collective begins when its rank arrives. The host's events
follow from them. A kernel that its device waited for was being launched meanwhile; one that waited
for a collective was launched before; a free launch takes no time. So a run with kernels shorter
than their launches shows launches back to back, and one that waits for its collectives does not.

HolisticTraceAnalysis, Perfetto and TensorBoard's torch-tb-profiler load the folder. Kernels, copies
and collectives lie where the run's spans do; an NCCL kernel starts when its rank arrives, so it
includes waiting for others. Stand-ins, for facts that a run lacks: numbers of processes and
threads, names of compute kernels (the layer's kind and pass), the thread that ran an operator, the
host's end of a step (that of its device), and NCCL's version (that of the model).
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from simdp.arrays import Ints
from simdp.errors import ScenarioError
from simdp.files import whole_files
from simdp.reports import trace_names
from simdp.reports.rank_rows import RankSpan, rows_of
from simdp.reports.trace_names import annotated, device_name, kernel, origin, sizes
from simdp.results.memory import CollectiveTraffic, LaunchedKernels
from simdp.results.result import Result
from simdp.results.trace import SETUP, CallSize
from simdp.strategies import strategy_class
from simdp.version import __version__

STREAM = 7  # number of the compute stream, as of torch's default stream; others follow
HOST = 10_000  # stand-in process and main thread of rank 0; others follow
AUTOGRAD = 100_000  # offset of the autograd thread
# Number of the first launch: HTA 0.5 stores places of events in the type of these numbers, and
# fails with pandas 3 if it is too small
FIRST = 100_000
MAX_LISTED = 32  # ranks of a process group that a kernel lists before three dots


@lru_cache(maxsize=2**14)
def quoted(text: str) -> str:
    """Write a text as JSON."""
    return json.dumps(text)


def us(instant: int) -> str:
    """Write nanoseconds as microseconds, exactly."""
    return f"{instant // 1000}.{instant % 1000:03d}"


@dataclass(frozen=True)
class TracedGroup:
    """A process group of a rank."""

    number: str  # torch's "Process Group Name"
    description: str  # torch's "Process Group Description"
    ranks: Ints  # members, shape `(group_size,)`, int64

    def fields(self) -> dict[str, str]:
        """Make the group's fields of a collective's events."""
        listed = ", ".join(map(str, self.ranks[:MAX_LISTED].tolist()))
        dots = ", ..." if len(self.ranks) > MAX_LISTED else ""
        return {
            "Process Group Name": self.number,
            "Process Group Description": self.description,
            "Process Group Ranks": f"[{listed}{dots}]",
        }


@dataclass(frozen=True)
class SpanNames:
    """Names that all spans of a run share."""

    facts: LaunchedKernels
    optimizer: str  # torch's annotation of the optimizer's step
    forward: str  # the wrapper's annotation of forward; empty without one
    batch: str  # torch's annotation of taking a batch
    annotations: Mapping[str, str]  # the wrapper's annotations by collective


class RankEvents:
    """Writes the events of a rank, row by row.

    ``groups`` are the rank's process groups by name; that of all ranks has an empty name.
    """

    def __init__(self, names: SpanNames, rank: int, groups: dict[str, TracedGroup]) -> None:
        self.names, self.facts, self.rank = names, names.facts, rank
        self.groups = groups
        self.device = rank % names.facts.local_size
        self.main, self.autograd = HOST + rank, HOST + rank + AUTOGRAD
        launch = names.facts.launch
        self.launch = 0 if launch is None else round(float(launch[rank]) * 1e9)
        layers = list(names.facts.layers)
        self._first, self._last = layers[:1], layers[-2:]
        self._lines: list[str] = []
        self._host = self._free = 0
        self._number, self._graph, self._external = FIRST, FIRST, 0
        self._sequence: dict[str, int] = {}
        self._pass = ""
        self._run: tuple[str, int, str] | None = None  # of forward: its thread, begin, last layer
        self._asked: tuple[int, int] | None = None
        self._said: dict[tuple[str, str], tuple[str, str, str]] = {}
        self._of: dict[str, Callable[[RankSpan], None]] = {
            "input": self._input,
            "host": self._on_host,
            "wait": self._meet,
            "comm": self._collective,
            "copy": self._copy,
            "update": self._update,
        }

    def lines(self, rows: list[RankSpan], begins: dict[int, int]) -> Iterator[str]:
        """Write rows as JSON; ``begins`` are those of the rank's steps [ns]."""
        step = SETUP
        for row in rows:
            if row.step != step:
                step = row.step
                self._host = max(self._host, begins.get(step, 0))
            if row.activity in ("backward", "update"):
                self._end_forward()
            if row.end > row.start or row.activity == "comm":
                self._of.get(row.activity, self._compute)(row)
            yield from self._lines
            self._lines.clear()
        self._end_forward()
        yield from self._lines
        self._lines.clear()

    def _add(self, category: str, name: str, tid: int, start: int, end: int, args: str) -> None:
        self._lines.append(
            f'{{"ph": "X", "cat": "{category}", "name": {quoted(name)}, "pid": {self.main}, '
            f'"tid": {tid}, "ts": {us(start)}, "dur": {us(end - start)}, "args": {{{args}}}}}'
        )

    def _annotate(self, name: str, start: int, end: int) -> None:
        self._add("user_annotation", name, self.main, start, end, "")

    def _called(self, name: str, tid: int, start: int, end: int, number: int, op: int) -> None:
        """Add a call of the CUDA runtime, and the arrow to its kernel."""
        args = f'"External id": {op}, "correlation": {number}'
        self._add("cuda_runtime", name, tid, start, end, args)
        self._lines.append(
            f'{{"ph": "s", "id": {number}, "pid": {self.main}, "tid": {tid}, '
            f'"ts": {us(start)}, "cat": "ac2g", "name": "ac2g"}}'
        )

    def _on_device(
        self, category: str, name: str, stream: int, start: int, end: int, number: int, args: str
    ) -> None:
        place = f'"pid": {self.device}, "tid": {stream}, "ts": {us(start)}'
        self._lines.append(
            f'{{"ph": "X", "cat": "{category}", "name": {name}, {place}, '
            f'"dur": {us(end - start)}, "args": {{{args}, "device": {self.device}, '
            f'"stream": {stream}, "correlation": {number}}}}}'
        )
        self._lines.append(
            f'{{"ph": "f", "id": {number}, {place}, "cat": "ac2g", "name": "ac2g", "bp": "e"}}'
        )

    def _kernels(
        self, row: RankSpan, tid: int, name: str, args: str = "", how: str = "cudaLaunchKernel"
    ) -> tuple[int, int]:
        """Split a span into its kernels and launch them; return the host's begin and end [ns]."""
        kernels = self.facts.of(self.rank, row.activity, row.name)
        known = kernels.has_idle or (row.activity, row.name) in self.facts.kernels
        least = self.launch if self.facts.runs_ahead and known else 0
        length, before, began = row.end - row.start, row.start, -1
        waited = row.start > self._free
        in_graph = self.facts.is_graph and row.activity in ("forward", "backward", "update")
        category = "kernel" if how == "cudaLaunchKernel" else "gpu_memcpy"
        self._external += 1
        for idle, end in zip(kernels.edges[::2], kernels.edges[1::2], strict=True):
            start = row.start + round(length * idle)
            stop = row.start + round(length * end)
            took = max(start - before, least)
            begin = self._host if waited or not start > before else max(self._host, start - took)
            done = min(begin + took, start)
            before, waited = stop, False
            if not in_graph or self._begins_graph(row):
                self._number += 1
                called = "cudaGraphLaunch" if in_graph else how
                self._called(called, tid, begin, done, self._number, self._external)
                self._host, self._graph = done, self._number
                began = begin if began < 0 else began
            more = f'"External id": {self._external}{args}'
            number = self._graph if in_graph else self._number
            self._on_device(category, name, STREAM, start, stop, number, more)
        self._free = row.end
        return (began if began >= 0 else self._host), self._host

    def _begins_graph(self, row: RankSpan) -> bool:
        """Return whether this is the first kernel of a pass that one launch starts."""
        begins = row.activity == "forward" and self._pass != "forward"
        self._pass = "forward" if begins else self._pass
        return begins

    def _compute(self, row: RankSpan) -> None:
        """Add the work of a layer, or other compute."""
        op, node, kernel_name = self._words(row)
        is_backward = row.activity == "backward"
        again = row.activity == "forward" and self._pass == "backward"
        again &= row.name not in self._first
        tid = self.autograd if is_backward or again else self.main
        args = f', "layer": {quoted(row.name)}'
        begin, end = self._kernels(row, tid, kernel_name, args)
        self._pass = row.activity
        name = f'"External id": {self._external}{args}'
        if is_backward:
            self._add("cpu_op", f"{NODE}{node}", tid, begin, end, name)
            self._add("cpu_op", node, tid, begin, end, name)
            return
        self._add("cpu_op", op, tid, begin, end, name)
        if row.activity == "forward" and not again:
            since = begin if self._run is None else self._run[1]
            reached = row.name if self._run is None or row.name in self._last else self._run[2]
            self._run = "main", since, reached

    def _end_forward(self) -> None:
        """Annotate a finished forward; a recomputed one has no loss."""
        if self._run is not None and self.names.forward and self._run[2] in self._last:
            self._annotate(self.names.forward, self._run[1], self._host)
        self._run = None

    def _words(self, row: RankSpan) -> tuple[str, str, str]:
        """Name a span's operator, autograd node and kernels, as JSON."""
        key = row.activity, row.name
        if key not in self._said:
            kind = self.facts.layers.get(row.name, row.activity)
            kernel_name = f"{kind}_{row.activity}" if kind != row.activity else kind
            self._said[key] = (
                trace_names.operator(kind),
                trace_names.node(kind),
                quoted(kernel_name.replace("sync", "synchronised")),
            )
        return self._said[key]

    def _copy(self, row: RankSpan) -> None:
        sort, how = "DtoD (Device -> Device)", "cudaMemcpyAsync"
        if row.name in self.facts.host_copies:
            is_down = row.name == "gradients"
            sort = "DtoH (Device -> Pinned)" if is_down else "HtoD (Pinned -> Device)"
        moved = row.nbytes if row.name in self.facts.host_copies else row.nbytes / 2
        rate = moved / (row.end - row.start)
        args = f', "bytes": {int(moved)}, "memory bandwidth (GB/s)": {rate:.3f}'
        args += f', "what": {quoted(row.name)}'
        begin, end = self._kernels(row, self.main, quoted(f"Memcpy {sort}"), args, how)
        self._add(
            "cpu_op", "aten::copy_", self.main, begin, end, f'"External id": {self._external}'
        )

    def _update(self, row: RankSpan) -> None:
        what = f'"what": {quoted(row.name)}'
        if self.facts.updates_on_host:
            begin, end = max(self._host, row.start), row.end
            self._host = self._free = end
        else:
            begin, end = self._kernels(row, self.main, f'"{row.name}_update"', f", {what}")
        name = self.names.optimizer if row.name == "optimizer" else f"{row.name} update"
        self._annotate(name, begin, end)
        self._pass = "update"

    def _input(self, row: RankSpan) -> None:
        if row.name == "copy":
            self._kernels(row, self.main, '"Memcpy HtoD (Pinned -> Device)"', "", "cudaMemcpyAsync")
            return
        self._annotate(self.names.batch, row.start, row.end)
        self._host = self._free = row.end

    def _on_host(self, row: RankSpan) -> None:
        """Add host time that its device waits for; a launch belongs to its collective."""
        if row.name == "launch":
            self._asked = row.start, row.end
        else:
            self._annotate(f"host {row.name}", row.start, row.end)
        self._host = self._free = row.end

    def _meet(self, row: RankSpan) -> None:
        """Add a wait without a collective."""
        self._annotate(f"wait {row.name}", row.start, row.end)
        self._host = max(self._host, row.end)

    def _collective(self, row: RankSpan) -> None:
        call = row.call
        # One that waits for its buffer is asked for before that, by another thread.
        launched = min(self._host, row.start)
        begin, end = self._asked or (launched, launched)
        self._asked = None
        if call is None and row.end == row.start:
            return
        self._external += 1
        self._number += 1
        sent, tid = CollectiveTraffic(), self.autograd if self._pass == "backward" else self.main
        args = f'"External id": {self._external}'
        if call is not None:
            known = self.facts.sent.get((row.name, float(call.nbytes)))
            if known is None and call.collective in ("scatter", "gather"):
                self._between_devices(row, begin, end, args)
                return
            sent = known or CollectiveTraffic()
            fields = json.dumps(self._fields(call, sent))[1:-1]
            if annotation := self.names.annotations.get(call.collective):
                self._annotate(annotation, begin, end)
            self._add("cpu_op", "record_param_comms", tid, begin, end, f"{args}, {fields}")
            self._add("user_annotation", annotated(call), tid, begin, end, args)
            args = f"{args}, {fields}"
        self._called("cudaLaunchKernelExC", tid, begin, end, self._number, self._external)
        fields = quoted(kernel(call, sent))
        stream = STREAM + row.stream
        args = f'{args}, "what": {quoted(row.name)}'
        self._on_device("kernel", fields, stream, row.start, row.end, self._number, args)

    def _between_devices(self, row: RankSpan, begin: int, end: int, args: str) -> None:
        """Add a copy between the devices of one process, without NCCL."""
        self._called("cudaMemcpyAsync", self.main, begin, end, self._number, self._external)
        name = '"Memcpy PtoP (Device -> Device)"'
        args = f'{args}, "bytes": {int(row.nbytes)}, "what": {quoted(row.name)}'
        place = STREAM + row.stream, row.start, row.end, self._number
        self._on_device("gpu_memcpy", name, *place, args)

    def _fields(self, call: CallSize, sent: CollectiveTraffic) -> dict[str, object]:
        group = self.groups.get(sent.group)
        if group is None or (not sent.group and call.group_size != len(group.ranks)):
            return sizes(call, sent.dtype)
        number = self._sequence[group.number] = self._sequence.get(group.number, 0) + 1
        return {**sizes(call, sent.dtype), **group.fields(), "Seq": number}


NODE = "autograd::engine::evaluate_function: "


def step_lines(rank: int, begins: dict[int, int], ends: dict[int, int]) -> Iterator[str]:
    """Annotate a rank's steps, which count from 1 and begin where the one before ended."""
    for step in sorted(ends):
        if step > SETUP:
            begin = begins[step]
            yield (
                f'{{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#{step + 1}", '
                f'"pid": {HOST + rank}, "tid": {HOST + rank}, "ts": {us(begin)}, '
                f'"dur": {us(ends[step] - begin)}, "args": {{}}}}'
            )


def step_limits(rows: list[RankSpan]) -> tuple[dict[int, int], dict[int, int]]:
    """Compute begin and end of each step of a rank [ns]."""
    ends: dict[int, int] = {}
    for row in rows:
        ends[row.step] = max(ends.get(row.step, 0), row.end)
    steps = sorted(ends)
    latest = np.maximum.accumulate([ends[step] for step in steps]).tolist() if steps else []
    ends = dict(zip(steps, latest, strict=True))
    before = [min((row.start for row in rows), default=0), *latest]
    if steps and steps[0] == SETUP:
        before[0] = 0
    return dict(zip(steps, before[: len(steps)], strict=True)), ends


MAX_RANKS = 1_024  # ranks that are written by default: as many files
TOGETHER = 16  # ranks whose spans are ordered at once
NCCL = "2.30.7"  # version whose constants simdp's model of NCCL has
OURS = re.compile(r"rank\d+\.\d+\.pt\.trace\.json\.gz")


def file_name(rank: int) -> str:
    """Name a rank's file; TensorBoard reads the middle as the number of a recording."""
    return f"rank{rank}.1.pt.trace.json.gz"


def save_traces(result: Result, folder: Path, ranks: Sequence[int] | None = None) -> list[Path]:
    """Write a trace per rank into a folder, and remove files of other ranks of an earlier run.

    Parameters
    ----------
    result : Result
        With a trace.
    folder : Path
        Created if missing.
    ranks : sequence of int, optional
        Default: all ranks.

    Returns
    -------
    list of Path
        The files, in the order of the ranks.

    Raises
    ------
    ScenarioError
        Without a trace, for unknown ranks, for too many ranks by default, or if the folder cannot
    be
        written to.
    """
    if result.trace is None:
        raise ScenarioError(
            "traces: only a result that was just simulated has spans; simulate it again."
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
    """List the ranks to write, ascending; errors as for `save_traces`."""
    n = world_size
    if ranks is None and n > MAX_RANKS:
        raise ScenarioError(
            f"traces: {n} ranks would make {n} files; choose some of them: --ranks 0-63."
        )
    chosen = sorted(set(range(n) if ranks is None else ranks))
    missing = [rank for rank in chosen if not 0 <= rank < n]
    if missing or not chosen:
        problem = f"there is no rank {missing[0]}" if missing else "no rank is named"
        raise ScenarioError(f"traces: {problem}; the run has ranks 0 to {n - 1}.")
    return chosen


def _put(lines: Iterator[str], stream: BinaryIO) -> None:
    """Compress lines as they come; the bytes do not depend on the pace."""
    with gzip.GzipFile("", "wb", compresslevel=3, fileobj=stream, mtime=0) as packed:
        few: list[str] = []
        for line in lines:
            few.append(line)
            if len(few) >= 2_000:
                packed.write("".join(few).encode())
                few.clear()
        packed.write("".join(few).encode())


def _lines(result: Result, rank: int, rows: list[RankSpan]) -> Iterator[str]:
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


def _names(result: Result) -> SpanNames:
    """Read the names of a run from its scenario, once for all ranks."""
    known: SpanNames | None = result.__dict__.get("_rank_names")
    if known is None:
        scenario = result.scenario
        strategy = strategy_class((scenario.get("strategy") or {}).get("kind", ""))
        workload = scenario.get("workload") or {}
        known = SpanNames(
            result.launched() if result.launched is not None else LaunchedKernels(),
            trace_names.optimizer_step((workload.get("optimizer") or {}).get("kind", "sgd")),
            f"{strategy.wrapper}.forward" if strategy.wrapper else "",
            trace_names.next_batch((workload.get("input") or {}).get("workers", 0)),
            strategy.launch_names,
        )
        result.__dict__["_rank_names"] = known
    return known


def _groups(result: Result, facts: LaunchedKernels, rank: int) -> dict[str, TracedGroup]:
    """List the process groups of a rank: that of all, then those of its strategy, numbered."""
    groups = {"": TracedGroup("0", "default_pg", np.arange(result.world_size))}
    first = 1
    for name, ranks in facts.groups.items():
        for number in np.flatnonzero((ranks == rank).any(axis=1)).tolist():
            groups[name] = TracedGroup(str(first + number), name, ranks[number])
        first += len(ranks)
    return groups


def _head(result: Result, facts: LaunchedKernels, rank: int, groups: dict[str, TracedGroup]) -> str:
    """Write the metadata above the events, one key a line, as HTA reads the rank line by line."""
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
    head = {
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
        "otherData": {"simdp": __version__, **origin(result)},
    }
    return ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items())


def _meta(rank: int, facts: LaunchedKernels, rows: list[RankSpan]) -> Iterator[str]:
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
