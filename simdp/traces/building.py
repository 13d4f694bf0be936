"""Building: from the tables of a file to the traces of its ranks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from simdp.arrays import Ints
from simdp.traces import sent
from simdp.traces.calls import BACKENDS, calls_of, groups_of
from simdp.traces.columns import (
    Table,
    host_of,
    in_order,
    is_without_device,
    kernels_of,
    launches_of,
    origin_of,
    standing_in,
    standing_kernels,
    steps_of,
)
from simdp.traces.gathering import Gathered
from simdp.traces.host_events import OP, RUNTIME
from simdp.traces.kernels import COMMUNICATION, Kernels
from simdp.traces.plain import listed, mapping, text
from simdp.traces.rank_trace import RankTrace, Steps, TraceGroup
from simdp.traces.remarks import Noticed, remarks_of
from simdp.traces.rows import nanoseconds, whole


class File(NamedTuple):
    """What a file says, in order.

    Attributes
    ----------
    path : Path
        Which.
    head : mapping
        What stands beside the events.
    gathered : Gathered
        Notes and names.
    host, device : Table
        Its events.
    said : dict of int to dict
        Fields of kernels that communicate, by their row.
    """

    path: Path
    head: Mapping[str, Any]
    gathered: Gathered
    host: Table
    device: Table
    said: dict[int, dict[str, Any]]


def traces_of(
    path: Path, head: Mapping[str, Any], gathered: Gathered, remarks: list[str]
) -> list[RankTrace]:
    """Make the traces of a file: one, or, of our own with several ranks, one for each.

    Parameters
    ----------
    path : Path
        Which file.
    head : mapping
        What stands beside the events.
    gathered : Gathered
        The events.
    remarks : list of str
        What was said while they were read.
    """
    device = gathered.device.arrays()
    device["row"] = np.arange(len(device["start"]))
    device, host = in_order(device), in_order(gathered.host.arrays())
    said = {
        row: gathered.said[old]
        for row, old in enumerate(device.pop("row").tolist())
        if old in gathered.said
    }
    file = File(path, head, gathered, host, device, said)
    pids = np.unique(np.concatenate([device["pid"], host["pid"]])).tolist()
    if not is_ours(head) or (host["kind"] == RUNTIME).any() or len(pids) == 1:
        return [_trace(file, None, remarks)]
    origin = origin_of(host, device)
    return [_trace(_of_rank(file, pid), pid, remarks, origin) for pid in pids]


def is_ours(head: Mapping[str, Any]) -> bool:
    """Tell whether simdp wrote a trace."""
    info, other = mapping(head.get("distributedInfo")), mapping(head.get("otherData"))
    return info.get("backend") == "simdp" or "scenario" in other


def _of_rank(file: File, pid: int) -> File:
    """The part of a file that is one rank's."""
    mine = np.flatnonzero(file.device["pid"] == pid)
    new = {old: row for row, old in enumerate(mine.tolist())}
    return file._replace(
        host={name: column[file.host["pid"] == pid] for name, column in file.host.items()},
        device={name: column[mine] for name, column in file.device.items()},
        said={new[row]: args for row, args in file.said.items() if row in new},
    )


def _trace(
    file: File, rank: int | None, remarks: list[str], origin: int | None = None
) -> RankTrace:
    names, host, device = file.gathered.names.listed(), file.host, file.device
    info = mapping(file.head.get("distributedInfo"))
    origin = origin_of(host, device) if origin is None else origin
    steps = steps_of(host, names, origin)
    told = [*file.said.values(), *(note.args for note in file.gathered.notes)]
    groups = groups_of(info.get("pg_config"), told)
    without = is_without_device(device)
    kernels, found = (_on_host if without else _on_device)(file, steps, groups, origin)
    rank = whole(info.get("rank")) if rank is None else rank
    world_size = whole(info.get("world_size"))
    noticed = Noticed(
        gathered=file.gathered,
        head=file.head,
        without_device=without,
        cut=bool(remarks),
        num_launched=int((launches_of(device, host) >= 0).sum()),
        num_runtime=int((host["kind"] == RUNTIME).sum()),
        num_processes=len(np.unique(host["pid"][host["kind"] == OP])),
    )
    collectives = sent.collectives_of(found, steps, origin)
    said = remarks_of(noticed, steps, kernels, collectives, groups)
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
        remarks=(*remarks, *said),
        machine=_machine(file.head),
    )


def _on_device(
    file: File, steps: Steps, groups: dict[str, TraceGroup], origin: int
) -> tuple[Kernels, list[sent.Sent]]:
    """Kernels and collectives of a trace with a device."""
    names = file.gathered.names.listed()
    kernels = kernels_of(file.device, file.host, names, steps, origin)
    launch = launches_of(file.device, file.host)
    finder = sent.Finder(calls_of(file.gathered.notes), groups)
    found = sent.of_kernels(
        file.device, file.host, launch, file.said, names, kernels.step, finder, groups
    )
    found += sent.of_backends(file.gathered.notes, {}, finder, groups)
    return kernels, found + sent.of_calls(finder, groups)


def _on_host(
    file: File, steps: Steps, groups: dict[str, TraceGroup], origin: int
) -> tuple[Kernels, list[sent.Sent]]:
    """Kernels and collectives of a trace without a device: what stands in for them."""
    names, host, notes = file.gathered.names.listed(), file.host, file.gathered.notes
    calls = calls_of(notes)
    codes = [code for code, name in enumerate(names) if name.startswith(BACKENDS)]
    rows: Ints = np.flatnonzero(np.isin(host["name"], codes))
    table = standing_in(host, [(c.start, c.end, c.thread) for c in calls], rows.tolist())
    place = {
        (int(table["start"][row]), int(table["end"][row]), int(table["stream"][row])): row
        for row in np.flatnonzero(table["kind"] == COMMUNICATION).tolist()
    }
    finder = sent.Finder(calls, groups)
    found = sent.of_backends(notes, place, finder, groups)
    kernels = standing_kernels(table, names, steps, origin)
    return kernels, found + sent.of_calls(finder, groups)


def _machine(head: Mapping[str, Any]) -> str | None:
    said = mapping(head.get("otherData")).get("machine")
    return said if isinstance(said, str) and is_ours(head) else None


def _device_name(head: Mapping[str, Any], kernels: Kernels) -> str | None:
    """Name the device that the kernels ran on."""
    devices = [mapping(entry) for entry in listed(head.get("deviceProperties"))]
    used = int(kernels.device[0]) if len(kernels) else -1
    mine = [entry for entry in devices if entry.get("id") == used] or devices
    return text(mine[0].get("name")) or None if mine else None


def _base(head: Mapping[str, Any]) -> int:
    """What the file's times count from [ns]."""
    base = whole(head.get("baseTimeNanoseconds"), 0)
    try:
        nanoseconds(base // 1000)
    except ValueError:
        return 0
    return base
