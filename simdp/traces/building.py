"""Builds RankTraces from profiler files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from simdp.arrays import Bools, Ints
from simdp.errors import ScenarioError
from simdp.traces import calls as sent
from simdp.traces.calls import (
    BACKENDS,
    calls_of,
    groups_of,
    host_of,
    is_without_device,
    kernels_of,
    launches_of,
    origin_of,
    seconds,
    standing_in,
    standing_kernels,
    step_at,
    steps_of,
)
from simdp.traces.gathering import KINETO, Gathered
from simdp.traces.rows import (
    COMMUNICATION,
    OP,
    RUNTIME,
    SYNC,
    DeviceTable,
    HostTable,
    RankTrace,
    TraceCollectives,
    TraceGroup,
    TraceKernels,
    TraceSteps,
    listed,
    mapping,
    nanoseconds,
    text,
    whole,
)
from simdp.traces.stream import WANTED, Events

# Remarks ------------------------------------------------------------------------------------------

SAMPLED = 0.9
"""A file holds a sample if it lacks more than a tenth of the host events that torch numbered."""


class Noticed(NamedTuple):
    """Observations about a file."""

    gathered: Gathered  # its events
    head: Mapping[str, object]  # metadata of the file
    without_device: bool  # whether no device did anything
    cut: bool  # whether the file was already reported as incomplete
    # num_launched, num_runtime: kernels whose launch is in the trace; and calls of the device's
    # runtime
    num_launched: int
    num_runtime: int
    num_processes: int  # processes with operators


def remarks_of(
    noticed: Noticed,
    steps: TraceSteps,
    kernels: TraceKernels,
    collectives: TraceCollectives,
    groups: Mapping[str, TraceGroup],
) -> list[str]:
    """List missing, sampled or unusual data."""
    remarks = [*_of_file(noticed), *_of_kernels(noticed, kernels)]
    if not len(steps):
        remarks.append(
            "It has no ProfilerStep, since it was taken without a schedule: times are of the "
            "whole trace, not of a step."
        )
    if not len(collectives):
        remarks.append("It holds no collective, and so says nothing of communication.")
    elif unknown := int((collectives.num_elements < 0).sum()):
        remarks.append(
            f"The sizes of {unknown} of {len(collectives)} collectives are not in it: take the "
            "trace with record_shapes=True, or with torch 2.3 or later."
        )
    cut = sum(group.ranks is None for group in groups.values())
    if cut:
        remarks.append(f"The lists of ranks of {cut} process groups are cut or missing.")
    return remarks


def _of_file(noticed: Noticed) -> Iterator[str]:
    gathered = noticed.gathered
    if gathered.num_odd:
        yield (
            f"{gathered.num_odd} events have no finite times, or end before they begin, and "
            "were left out."
        )
    if not noticed.cut and gathered.num_numbered < SAMPLED * gathered.numbered_to:
        share = gathered.num_numbered / gathered.numbered_to
        yield (
            f"It is a sample: of {gathered.numbered_to:,} host events that torch numbered it "
            f"holds {gathered.num_numbered:,} ({share:.1%}), so that busy times and shares are "
            "lower bounds."
        )
    if noticed.num_processes > 1:
        yield (
            f"{noticed.num_processes} processes call operators in it, as if several ranks were "
            "put together: give one file per rank."
        )
    shown = mapping(noticed.head.get("otherData"))
    for what in ("ranks", "steps", "transfers"):
        words = str(shown.get(what, ""))
        if words and not _is_all(words):
            yield f"It shows a part of the {what}: {words}."
    if gathered.others and not shown:
        common = ", ".join(name for name, _ in gathered.others.most_common(3))
        number = sum(gathered.others.values())
        yield f"{number} events of unknown categories ({common}) were passed over."


def _is_all(words: str) -> bool:
    """Return whether a range such as ``"0 ... 7 of 8"`` is whole."""
    which, _, number = words.rpartition(" of ")
    return number.isdecimal() and which in ("0", f"0 ... {int(number) - 1}") and number != "0"


def _of_kernels(noticed: Noticed, kernels: TraceKernels) -> Iterator[str]:
    if noticed.without_device:
        yield (
            "No device is in it: the outermost operators of each thread stand in for kernels, "
            "and the events of the backend for those of collectives."
        )
        if any(note.name.startswith("nccl:") for note in noticed.gathered.notes):
            yield (
                "It was taken on a machine with GPUs, but without them: profile with "
                "ProfilerActivity.CUDA as well."
            )
        elif noticed.num_runtime:
            yield (
                f"The host called a device {noticed.num_runtime:,} times, but what the device did "
                "was not recorded: the operators say how long the host took."
            )
        return
    real = kernels.kind != SYNC
    lost = int((np.isnan(kernels.launched) & real).sum())
    if noticed.num_launched and lost:
        yield (
            f"{lost} of {int(real.sum())} kernels were launched before the trace began, or "
            "their launches are missing: they belong to no step."
        )


# Building -----------------------------------------------------------------------------------------


class File(NamedTuple):
    """Content of a file, in order."""

    path: Path  # which
    head: Mapping[str, object]  # metadata next to the events
    gathered: Gathered  # notes and names
    # host, device: its events
    host: HostTable
    device: DeviceTable
    # kernel_fields: of kernels that communicate, by their row
    kernel_fields: Mapping[int, Mapping[str, object]]
    is_cut: bool = False  # whether it ends before its events do


def traces_of(
    path: Path,
    head: Mapping[str, object],
    gathered: Gathered,
    remarks: list[str],
    *,
    is_cut: bool = False,
) -> list[RankTrace]:
    """Make the traces of a file: one, or, of our own with several ranks, one for each.

    Parameters
    ----------
    path : Path
        Which file.
    head : mapping
        Metadata next to the events.
    gathered : Gathered
        The events.
    remarks : list of str
        Remarks made while they were read.
    is_cut : bool
        Whether the file ends before its events do.

    Raises
    ------
    ScenarioError
        If it is cut before the kernels of a step.
    """
    device, host = gathered.device.table(), gathered.host.table().in_order()
    order = device.order()
    device = device.rows(order)
    kernel_fields = {
        row: gathered.kernel_fields[old]
        for row, old in enumerate(order.tolist())
        if old in gathered.kernel_fields
    }
    file = File(path, head, gathered, host, device, kernel_fields, is_cut)
    pids = np.unique(np.concatenate([device.pid, host.pid])).tolist()
    if not is_ours(head) or (host.kind == RUNTIME).any() or len(pids) == 1:
        return [_trace(file, None, remarks)]
    origin = origin_of(host, device)
    return [_trace(_of_rank(file, pid), pid, remarks, origin) for pid in pids]


def is_ours(head: Mapping[str, object]) -> bool:
    """Return whether simdp wrote a trace."""
    info, other = mapping(head.get("distributedInfo")), mapping(head.get("otherData"))
    return info.get("backend") == "simdp" or "scenario" in other


def _of_rank(file: File, pid: int) -> File:
    """The part of a file that is one rank's."""
    mine = np.flatnonzero(file.device.pid == pid)
    new = {old: row for row, old in enumerate(mine.tolist())}
    return file._replace(
        host=file.host.rows(file.host.pid == pid),
        device=file.device.rows(mine),
        kernel_fields={new[row]: args for row, args in file.kernel_fields.items() if row in new},
    )


def _trace(
    file: File, rank: int | None, remarks: list[str], origin: int | None = None
) -> RankTrace:
    names, host, device = file.gathered.names.listed(), file.host, file.device
    info = mapping(file.head.get("distributedInfo"))
    origin = origin_of(host, device) if origin is None else origin
    steps = steps_of(host, names, origin)
    if file.is_cut:
        steps, left = _before_the_cut(file, steps, origin)
        remarks = [*remarks, *left]
    fields = [*file.kernel_fields.values(), *(note.args for note in file.gathered.notes)]
    groups = groups_of(info.get("pg_config"), fields)
    without = is_without_device(device)
    kernels, calls = (_on_host if without else _on_device)(file, steps, groups, origin)
    if len(steps) > 1 and kernels.step.max(initial=-1) == len(steps) - 2:
        remarks = [*remarks, f"Step {steps.number[-1]}, its last, is empty, and left out."]
        steps = TraceSteps(steps.number[:-1], steps.start[:-1], steps.end[:-1])
    rank = whole(info.get("rank")) if rank is None else rank
    world_size = whole(info.get("world_size"))
    noticed = Noticed(
        gathered=file.gathered,
        head=file.head,
        without_device=without,
        cut=bool(remarks),
        num_launched=int((launches_of(device, host) >= 0).sum()),
        num_runtime=int((host.kind == RUNTIME).sum()),
        num_processes=len(np.unique(host.pid[host.kind == OP])),
    )
    collectives = sent.collectives_of(calls, steps, origin)
    noted = remarks_of(noticed, steps, kernels, collectives, groups)
    return RankTrace(
        path=file.path,
        source="simdp" if is_ours(file.head) else "kineto",
        rank=rank if rank >= 0 else None,
        world_size=world_size if world_size > 0 else None,
        device_name=None if without else _device_name(file.head, kernels),
        groups=groups,
        origin_ns=origin + _base(file.head),
        steps=steps,
        kernels=kernels,
        collectives=collectives,
        host=host_of(host, names, steps, origin),
        remarks=(*remarks, *noted),
        machine=_machine(file.head),
        on_host=without,
    )


def _before_the_cut(file: File, steps: TraceSteps, origin: int) -> tuple[TraceSteps, list[str]]:
    """Keep the steps whose kernels come before the cut: the profiler writes them last.

    It writes them thread by thread, so that those of backward may lack where forward's are there.

    Raises
    ------
    ScenarioError
        If there is no kernel at all.
    """
    host, device = file.host, file.device
    if is_without_device(device):
        if not (host.kind == RUNTIME).any() and not file.head.get("deviceProperties"):
            return steps, []
        raise ScenarioError([f"{file.path}: i{CUT[1:].format(host=len(host))}"])
    if not len(steps):
        return steps, []
    kept = _are_complete(file, steps, origin)
    if kept.all():
        return steps, []
    if not kept.any():
        return steps, [CUT.format(host=len(host))]
    lost = ", ".join(map(str, steps.number[~kept].tolist()))
    return (
        TraceSteps(steps.number[kept], steps.start[kept], steps.end[kept]),
        [f"It is cut before kernels of these steps, which are left out: {lost}."],
    )


def _are_complete(file: File, steps: TraceSteps, origin: int) -> Bools:
    """Steps behind which each thread that works in them has launched another kernel."""
    host, names = file.host, file.gathered.names.listed()
    launch = launches_of(file.device, host)
    rows = launch[launch >= 0]
    step = step_at(steps, seconds(host.start, origin))
    engine = np.array([name.startswith(sent.ENGINE) for name in names], dtype=bool)
    works = (host.kind == OP) & (step >= 0)
    complete = np.ones(len(steps), dtype=bool)
    for thread in np.unique(host.thread[works]).tolist():
        mine = works & (host.thread == thread)
        launched = step[rows[host.thread[rows] == thread]]
        if len(launched) or engine[host.name[mine]].any():
            complete[step[mine]] &= step[mine] < launched.max(initial=-1)
    return complete


def _on_device(
    file: File, steps: TraceSteps, groups: dict[str, TraceGroup], origin: int
) -> tuple[TraceKernels, list[sent.SentBytes]]:
    """Kernels and collectives of a trace with a device."""
    names = file.gathered.names.listed()
    kernels = kernels_of(file.device, file.host, names, steps, origin)
    launch = launches_of(file.device, file.host)
    finder = sent.Finder(calls_of(file.gathered.notes), groups)
    calls = sent.of_kernels(
        file.device, file.host, launch, file.kernel_fields, names, kernels.step, finder, groups
    )
    calls += sent.of_backends(file.gathered.notes, {}, finder, groups)
    return kernels, calls + sent.of_calls(finder, groups)


def _on_host(
    file: File, steps: TraceSteps, groups: dict[str, TraceGroup], origin: int
) -> tuple[TraceKernels, list[sent.SentBytes]]:
    """Kernels and collectives of a trace without a device: operators in their place."""
    names, host, notes = file.gathered.names.listed(), file.host, file.gathered.notes
    calls = calls_of(notes)
    codes = [code for code, name in enumerate(names) if name.startswith(BACKENDS)]
    rows: Ints = np.flatnonzero(np.isin(host.name, codes))
    table = standing_in(host, names, [(c.start, c.end, c.thread) for c in calls], rows.tolist())
    place = {
        (int(table.start[row]), int(table.end[row]), int(table.stream[row])): row
        for row in np.flatnonzero(table.kind == COMMUNICATION).tolist()
    }
    finder = sent.Finder(calls, groups)
    collectives = sent.of_backends(notes, place, finder, groups) + sent.of_calls(finder, groups)
    return standing_kernels(table, names, steps, origin), collectives


def _machine(head: Mapping[str, object]) -> str | None:
    name = mapping(head.get("otherData")).get("machine")
    return name if isinstance(name, str) and is_ours(head) else None


def _device_name(head: Mapping[str, object], kernels: TraceKernels) -> str | None:
    """Name the device that the kernels ran on."""
    devices = [mapping(entry) for entry in listed(head.get("deviceProperties"))]
    used = int(kernels.device[0]) if len(kernels) else -1
    mine = [entry for entry in devices if entry.get("id") == used] or devices
    return text(mine[0].get("name")) or None if mine else None


def _base(head: Mapping[str, object]) -> int:
    """Origin of the file's times [ns]."""
    base = whole(head.get("baseTimeNanoseconds"), 0)
    try:
        nanoseconds(base // 1000)
    except ValueError:
        return 0
    return base


def read_stream(stream: IO[bytes], path: Path) -> list[RankTrace]:
    """Read a file that is open.

    Parameters
    ----------
    stream : binary file
        JSON, unpacked.
    path : Path
        How it is called.

    Raises
    ------
    ScenarioError
        If it is no trace.
    """
    events, gathered = Events(stream, str(path)), Gathered()
    gathered.take(events)
    gathered.num_numbered += events.num_numbered
    if not gathered.num_used:
        raise ScenarioError([f"{path}: {_why(events, gathered)}; {WANTED}."])
    return traces_of(path, events.head, gathered, events.remarks, is_cut=events.is_cut)


CUT = (
    "It is cut before the kernels of its steps: {host:,} events of the host are there, and not "
    "what the device did; copy the whole file again, or export it once the profiler has stopped."
)
"""Error, or remark, on a file that ends before its kernels do."""

EMPTY = (
    ", as if it had been exported between two cycles of the profiler: give its schedule repeat=1, "
    "and export in on_trace_ready"
)
"""Usual reason for a trace without events."""


def _why(events: Events, gathered: Gathered) -> str:
    """Reason for which a file with events is no trace of simdp or torch."""
    if gathered.others:
        common = ", ".join(name for name, _ in gathered.others.most_common(4))
        return (
            f"is a Chrome trace of another tool: its events are of the categories {common}, and "
            f"none is of Kineto's ({', '.join(KINETO)})"
        )
    if gathered.num_odd:
        return f"none of its {gathered.num_odd} events has finite times"
    if events.remarks:
        return f"holds no event of an operator or a kernel ({events.remarks[0].rstrip('.')})"
    if events.num_events:
        return f"holds no event of an operator or a kernel{EMPTY}"
    return f"holds no events{EMPTY}"
