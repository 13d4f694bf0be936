"""Calls of collectives in a trace, and the bytes that they send."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from simdp.arrays import Array, Bools, Floats, Ints
from simdp.traces.gathering import Note, collective_name, dtype_name, kernel_name, note_name
from simdp.traces.intervals import Instants, union
from simdp.traces.rows import (
    COMMUNICATION,
    COMPUTE,
    OP,
    RUNTIME,
    SYNC,
    DeviceTable,
    EventTable,
    HostEvents,
    HostTable,
    StandInTable,
    TraceCollectives,
    TraceGroup,
    TraceKernels,
    TraceSteps,
    whole,
)

# Nesting ------------------------------------------------------------------------------------------


def parents(start: Array, end: Array) -> Ints:
    """Find the event in which each event of one thread lies; -1 for none.

    Parameters
    ----------
    start, end : ndarray, shape `(n,)`
        Sorted by the start, longer ones first.

    Returns
    -------
    ndarray, shape `(n,)`, int64
    """
    up = np.full(len(start), -1, dtype=np.int64)
    open_events: list[int] = []
    ends = end.tolist()
    for i, (begin, until) in enumerate(zip(start.tolist(), ends, strict=True)):
        while open_events and (ends[open_events[-1]] <= begin or ends[open_events[-1]] < until):
            open_events.pop()
        if open_events:
            up[i] = open_events[-1]
        open_events.append(i)
    return up


def innermost(start: Array, end: Array, up: Ints, at: Array) -> Ints:
    """Find the innermost event that holds each instant; -1 for none.

    Parameters
    ----------
    start, end, up : ndarray, shape `(n,)`
        Of one thread, sorted, and their `parents`.
    at : ndarray, shape `(m,)`
        Instants.

    Returns
    -------
    ndarray, shape `(m,)`, int64
    """
    holder: Ints = np.searchsorted(start, at, side="right") - 1
    out = np.flatnonzero(holder >= 0)
    while len(out := out[end[holder[out]] < at[out]]):
        holder[out] = up[holder[out]]
        out = out[holder[out] >= 0]
    return holder


class Threads:
    """Events of several threads, to look up the one at an instant.

    Parameters
    ----------
    start, end : ndarray, shape `(n,)`
        Sorted by the start, longer ones first.
    thread : ndarray, shape `(n,)`, int64
        Thread of each event.

    Attributes
    ----------
    is_outermost : ndarray, shape `(n,)`, bool
        Whether each lies in no other.
    """

    def __init__(self, start: Array, end: Array, thread: Ints) -> None:
        self._start, self._end = start, end
        self.is_outermost: Bools = np.zeros(len(start), dtype=bool)
        self._of: dict[int, tuple[Ints, Ints]] = {}
        for tid in np.unique(thread).tolist():
            mine = np.flatnonzero(thread == tid)
            up = parents(start[mine], end[mine])
            self.is_outermost[mine] = up < 0
            self._of[tid] = mine, up

    def holding(self, at: Floats | Ints, thread: Ints) -> Ints:
        """Index of the innermost event that holds each instant of a thread; -1 for none."""
        holder = np.full(len(at), -1, dtype=np.int64)
        for tid in np.unique(thread).tolist():
            if tid in self._of:
                mine, up = self._of[tid]
                there = np.flatnonzero(thread == tid)
                inside = innermost(self._start[mine], self._end[mine], up, at[there])
                holder[there] = np.where(inside >= 0, mine[inside], -1)
        return holder


# Columns ------------------------------------------------------------------------------------------

STEP = "ProfilerStep#"
"""Beginning of the annotation of a step; its number follows."""


def origin_of(*tables: EventTable) -> int:
    """The earliest start [ns]; 0 without events."""
    return min((int(table.start.min()) for table in tables if len(table)), default=0)


def seconds(ns: Ints, origin: int) -> Floats:
    """Turn instants into seconds after the origin."""
    return (ns - origin) / 1e9


def named(codes: Ints, names: Sequence[str]) -> tuple[tuple[str, ...], Ints]:
    """Keep only those names that occur."""
    kept, at = np.unique(codes, return_inverse=True)
    return tuple(names[code] for code in kept.tolist()), at.astype(np.int64)


def steps_of(host: HostTable, names: Sequence[str], origin: int) -> TraceSteps:
    """Find the steps among host events in order; of several with one number, the first."""
    numbers = {
        code: int(name.removeprefix(STEP))
        for code, name in enumerate(names)
        if name.startswith(STEP) and name.removeprefix(STEP).isdecimal() and len(name) < 30
    }
    rows_by_number: dict[int, int] = {}
    for row in np.flatnonzero(np.isin(host.name, list(numbers))).tolist():
        rows_by_number.setdefault(numbers[int(host.name[row])], row)
    rows = np.array(sorted(rows_by_number.values()), dtype=np.int64)
    return TraceSteps(
        np.array([numbers[int(code)] for code in host.name[rows]], dtype=np.int64),
        seconds(host.start[rows], origin),
        seconds(host.end[rows], origin),
    )


def step_at(steps: TraceSteps, at: Floats) -> Ints:
    """Index of the step that holds each instant; -1 for none, and for nan."""
    if not len(steps):
        return np.full(len(at), -1, dtype=np.int64)
    begun = np.searchsorted(steps.start, np.nan_to_num(at, nan=-1.0), side="right") - 1
    held = (begun >= 0) & (at <= steps.end[np.maximum(begun, 0)])
    return np.where(held, begun, -1).astype(np.int64)


def host_of(host: HostTable, names: Sequence[str], steps: TraceSteps, origin: int) -> HostEvents:
    """Make the columns of host events in order."""
    start = seconds(host.start, origin)
    kept, name = named(host.name, names)
    end = seconds(host.end, origin)
    step, elements = step_at(steps, start), host.elements
    return HostEvents(kept, name, host.kind, start, end, host.thread, step, elements)


def launches_of(device: DeviceTable, host: HostTable) -> Ints:
    """Row of the host call that launched each kernel, by their correlation; -1 for none."""
    calls = np.flatnonzero((host.kind == RUNTIME) & (host.correlation > 0))
    calls = calls[np.argsort(host.correlation[calls], kind="stable")]
    if not len(calls):
        return np.full(len(device), -1, dtype=np.int64)
    known = host.correlation[calls]
    at = np.minimum(np.searchsorted(known, device.correlation), len(calls) - 1)
    return np.where(known[at] == device.correlation, calls[at], -1)


def kernels_of(
    device: DeviceTable, host: HostTable, names: Sequence[str], steps: TraceSteps, origin: int
) -> TraceKernels:
    """Make the columns of device events in order.

    Where no host call is in the trace at all, as in our own, the events say their step.
    """
    launch = launches_of(device, host)
    launched, launch_end = np.full((2, len(launch)), np.nan)
    known = launch >= 0
    launched[known] = seconds(host.start[launch[known]], origin)
    launch_end[known] = seconds(host.end[launch[known]], origin)
    ops = np.flatnonzero(host.kind == OP)
    op = np.full(len(launch), -1, dtype=np.int64)
    threads = Threads(host.start[ops], host.end[ops], host.thread[ops])
    held = threads.holding(host.start[launch[known]], host.thread[launch[known]])
    if len(ops):
        op[known] = np.where(held >= 0, ops[held], -1)
    step = step_at(steps, launched)
    if not known.any() and len(steps):
        at = np.minimum(np.searchsorted(steps.number, device.own_step), len(steps) - 1)
        step = np.where(steps.number[at] == device.own_step, at, -1).astype(np.int64)
    kept, name = named(device.name, names)
    return TraceKernels(
        names=kept,
        name=name,
        kind=device.kind,
        start=seconds(device.start, origin),
        end=seconds(device.end, origin),
        stream=device.stream,
        device=device.device,
        launched=launched,
        launch_end=launch_end,
        step=step,
        op=op,
        nbytes=np.where(device.nbytes >= 0, device.nbytes.astype(float), np.nan),
    )


def is_without_device(device: DeviceTable) -> bool:
    """Return whether no device has an event."""
    return not (device.kind != SYNC).any()


def standing_in(
    host: HostTable,
    names: Sequence[str],
    calls: Sequence[tuple[int, int, int]],
    sent: Sequence[int],
) -> StandInTable:
    """Take outermost operators for kernels, without calls of collectives and waiting for them.

    Parameters
    ----------
    host : HostTable
        In order.
    names : sequence of str
        Of all events.
    calls : sequence of (start, end, thread)
        When the host called a collective [ns].
    sent : sequence of int
        Rows of the backend's own events, which are communication.

    Returns
    -------
    StandInTable
        In order.
    """
    ops = np.flatnonzero(host.kind == OP)
    threads = Threads(host.start[ops], host.end[ops], host.thread[ops])
    whole = ops[threads.is_outermost]
    inner = _inner(host, whole, [*calls, *_held_up(host, ops, names, sent)])
    pieces = [piece for row in whole.tolist() for piece in _left(host, row, inner.get(row, []))]
    kind = np.repeat([COMPUTE, COMMUNICATION], [len(pieces), len(sent)])
    pieces += [(row, int(host.start[row]), int(host.end[row])) for row in sent]
    row, start, end = np.array(pieces, dtype=np.int64).reshape(-1, 3).T
    return StandInTable(host.name[row], kind, start, end, host.thread[row], row).in_order()


HELD_UP = 50_000
"""Least time in which a node of autograd without an operator waits for a collective [ns]."""

ENGINE = "autograd::engine::"
"""Beginning of events of nodes of autograd; those of the functions in them have no namespace."""

WAITS = ("_c10d_functional::wait_tensor", "c10d::barrier", "c10d::monitored_barrier_")
"""Operators that only wait."""


def _held_up(
    host: HostTable, ops: Ints, names: Sequence[str], sent: Sequence[int]
) -> Iterator[tuple[int, int, int]]:
    """Start, end and thread of where operators wait for collectives.

    There a collective is under way, and nothing but nodes of autograd is on the thread, such as
    those with hooks: operators in them compute, they do not.
    """
    if not len(sent) or not len(ops):
        return
    rows, origin = np.array(sent), int(host.start[ops[0]])

    def instants(chosen: Ints) -> Instants:
        start, end = (at[chosen] - origin for at in (host.start, host.end))
        return Instants.of(start.astype(np.float64), end.astype(np.float64))

    under_way = instants(rows)
    nodes = [name in WAITS or name.startswith(ENGINE) or "::" not in name for name in names]
    holds: Bools = np.array(nodes, dtype=bool)[host.name]
    for thread in np.unique(host.thread[ops]).tolist():
        mine = ops[host.thread[ops] == thread]
        works = instants(mine[~holds[mine]])
        waits = instants(mine[holds[mine]]).without(works).both(under_way)
        long = waits.end - waits.start >= HELD_UP
        for start, end in zip(waits.start[long].tolist(), waits.end[long].tolist(), strict=True):
            yield origin + int(start), origin + int(end), thread


def _inner(
    host: HostTable, whole: Ints, calls: Sequence[tuple[int, int, int]]
) -> dict[int, list[tuple[int, int]]]:
    """Calls that lie in operators, by the operator's row."""
    by_row: dict[int, list[tuple[int, int]]] = {}
    threads = {call[2] for call in calls}
    rows = {thread: whole[host.thread[whole] == thread] for thread in threads}
    spans = {thread: (host.start[mine], host.end[mine]) for thread, mine in rows.items()}
    for start, end, thread in calls:
        begins, ends = spans[thread]  # both rise, since outermost operators follow each other
        first, last = np.searchsorted(ends, start, "right"), np.searchsorted(begins, end, "left")
        for row in rows[thread][first:last].tolist():
            by_row.setdefault(row, []).append((start, end))
    return by_row


def _left(host: HostTable, row: int, calls: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Time of an operator outside its calls."""
    start, end = int(host.start[row]), int(host.end[row])
    if not calls:
        return [(row, start, end)]
    begins, ends = np.array(calls).T
    begin, until = union(begins, ends)
    edges = [start, *np.ravel([begin, until], order="F").tolist(), end]
    return [(row, a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if b > a]


def standing_kernels(
    table: StandInTable, names: Sequence[str], steps: TraceSteps, origin: int
) -> TraceKernels:
    """Columns of operators in place of kernels: each is launched at its start."""
    start = seconds(table.start, origin)
    kept, name = named(table.name, names)
    return TraceKernels(
        names=kept,
        name=name,
        kind=table.kind,
        start=start,
        end=seconds(table.end, origin),
        stream=table.stream,
        device=np.full(len(start), -1, dtype=np.int64),
        launched=start,
        launch_end=start,
        step=step_at(steps, start),
        op=table.op,
        nbytes=np.full(len(start), np.nan),
    )


# Calls --------------------------------------------------------------------------------------------

BACKENDS = ("gloo:", "mpi:", "ucc:")
"""Beginnings of events of backends without a device; these last as long as the collective."""

_SAME_SIZE = ("all_reduce", "broadcast", "reduce", "all_to_all")
_OUTPUT_FIRST = ("all_gather", "reduce_scatter", "all_to_all")


PEERS = {"send": "Dst Rank", "recv": "Src Rank"}
"""Fields with the other rank of a message."""

_WAY = re.compile(r":(?:send|recv) (\d{1,9})(?:->|<-)(\d{1,9})$")


class HostCall(NamedTuple):
    """A call of the host, with all notes that lie in it, the outermost first."""

    # start, end: when [ns]
    start: int
    end: int
    thread: int  # where
    notes: list[Note]  # the call's own and those in it


class Fields(NamedTuple):
    """Known fields of a collective; -1 and ``""`` mean unknown."""

    name: str
    num_elements: int
    out_elements: int
    dtype: str
    group: str
    group_size: int
    sequence: int
    peer: int
    algorithm: str
    protocol: str


def calls_of(notes: Iterable[Note]) -> list[HostCall]:
    """Join the notes of each call, sorted by thread and start; those of backends are left out."""
    calls: list[HostCall] = []
    host = [note for note in notes if not note.name.startswith(BACKENDS)]
    for note in sorted(host, key=lambda note: (note.thread, note.start, -note.end)):
        last = calls[-1] if calls else None
        if last and last.thread == note.thread and note.end <= last.end:
            last.notes.append(note)
        else:
            calls.append(HostCall(note.start, note.end, note.thread, [note]))
    return [call for call in calls if any(map(note_name, call.notes))]


def fields_of(
    notes: Sequence[Note],
    kernel_fields: Mapping[str, object],
    kernel: str,
    groups: dict[str, TraceGroup],
) -> Fields:
    """Merge the fields from notes, from a kernel and from its name.

    Parameters
    ----------
    notes : sequence of Note
        Of the call.
    kernel_fields : dict
        Fields of the kernel; may be empty.
    kernel : str
        Its name; may be empty.
    groups : dict of str to TraceGroup
        Of the trace; where there is only one, it is the one.
    """
    notes_fields = [note.args for note in notes if note.name == "record_param_comms"]
    records = [kernel_fields, *notes_fields]
    of_kernel = kernel_name(kernel)
    names = [collective_name(str(_first(records, "Collective name") or ""))]
    names += [note_name(note) for note in reversed(notes)]
    name = next(filter(None, names), of_kernel.collective) or "unknown"
    size, out, dtype = _by_shapes(notes, name)
    size = whole(_first(records, "In msg nelems"), size)
    dtype = dtype_name(_first(records, "dtype")) or dtype or of_kernel.dtype
    group = str(_first(records, "Process Group Name") or "")
    if not group and len(groups) == 1:
        group = next(iter(groups))
    known = groups.get(group)
    members = whole(_first(records, "Group size"), (known and known.size) or -1)
    out = whole(_first(records, "Out msg nelems"), out)
    if members < 0 and name in ("all_gather", "reduce_scatter") and min(size, out) > 0:
        members = max(size, out) // min(size, out)
    if out < 0 <= size:
        out = _output_size(name, size, members)
    sequence = whole(_first(records, "Seq"))
    ways = of_kernel.algorithm, of_kernel.protocol
    return Fields(
        name, size, out, dtype, group, members, sequence, _peer(records, notes, name), *ways
    )


def _peer(records: Sequence[Mapping[str, object]], notes: Sequence[Note], name: str) -> int:
    """The other rank of a message, by its fields or by an event such as ``nccl:send 0->1``."""
    if name not in PEERS:
        return -1
    written = (_WAY.search(note.name) for note in notes)
    shown = next((int(way[2]) for way in written if way), -1)
    return whole(_first(records, PEERS[name]), shown)


def _first(records: Iterable[Mapping[str, object]], key: str) -> object:
    return next((fields[key] for fields in records if key in fields), None)


def _output_size(name: str, size: int, members: int) -> int:
    if name in _SAME_SIZE:
        return size
    if name == "all_gather" and members > 0:
        return size * members
    if name == "reduce_scatter" and members > 0:
        return size // members
    return -1


def _by_shapes(notes: Sequence[Note], name: str) -> tuple[int, int, str]:
    """Sizes of input and output and the type, as shapes that were recorded say them."""
    size, out, dtype = -1, -1, ""
    for note in notes:
        shapes, types = note.args.get("Input Dims"), note.args.get("Input type")
        if not isinstance(shapes, list) or not isinstance(types, list):
            continue
        sizes = [num_elements(shape, kind) for shape, kind in zip(shapes, types, strict=False)]
        at = 0
        if note.name.startswith("c10d::") and name in _OUTPUT_FIRST and len(sizes) > 1:
            at, out = 1, sizes[0]
        if at < len(sizes) and sizes[at] >= 0:  # deeper levels only describe inputs
            size, dtype = sizes[at], dtype_name(types[at]) or dtype
    return size, out, dtype


def num_elements(shape: object, kind: object) -> int:
    """Count the elements of a tensor, or of a list of them; -1 if it is none."""
    if not isinstance(shape, list):
        return -1
    if not shape:
        return 1 if dtype_name(kind) else -1
    if all(type(length) is int and length >= 0 for length in shape):
        return whole(prod(shape))
    if all(isinstance(inner, list) for inner in shape):
        return whole(sum(max(num_elements(inner, "float"), 0) for inner in shape))
    return -1


def ranks_of(written: object) -> tuple[int, ...] | None:
    """Read the ranks of a group, a list or ``"[0, 1]"``; None if there are none, or it is cut."""
    if isinstance(written, str):
        if "..." in written or not re.fullmatch(r"\[\s*+\d*+(\s*+,\s*+\d++)*+\s*+\]", written):
            return None
        written = [int(digits) for digits in re.findall(r"\d{1,9}", written)]
    if not isinstance(written, list) or not written:
        return None
    if not all(type(rank) is int and rank >= 0 for rank in written):
        return None
    return tuple(written)


def groups_of(config: object, records: Iterable[Mapping[str, object]]) -> dict[str, TraceGroup]:
    """Collect the process groups that the head of a trace and its collectives name."""
    groups: dict[str, TraceGroup] = {}
    for entry in config if isinstance(config, list) else ():
        if isinstance(entry, dict) and "pg_name" in entry:
            name, ranks = str(entry.get("pg_name")), ranks_of(entry.get("ranks"))
            size = whole(entry.get("pg_size"), len(ranks) if ranks else -1)
            backend = backend_of(str(entry.get("backend_config", "")))
            about = str(entry.get("pg_desc", ""))
            groups[name] = TraceGroup(name, about, backend, ranks, size if size >= 0 else None)
    for fields in records:
        name = str(fields.get("Process Group Name", ""))
        if not name or (name in groups and groups[name].ranks is not None):
            continue
        size = whole(fields.get("Group size"))
        ranks = ranks_of(fields.get("Process Group Ranks")) or _strided(fields, size)
        known = groups.get(name, TraceGroup(name, "", "", None, None))
        groups[name] = TraceGroup(
            name,
            known.description or str(fields.get("Process Group Description", "")),
            known.backend,
            ranks,
            known.size or (size if size >= 0 else None),
        )
    return groups


def _strided(fields: Mapping[str, object], size: int) -> tuple[int, ...] | None:
    """Ranks of a group whose list is truncated, but which lie at equal distances."""
    start, stride = (whole(fields.get(f"Global rank {word}")) for word in ("start", "stride"))
    if start < 0 or stride <= 0 or not 0 < size <= 2**20:
        return None
    return tuple(range(start, start + stride * size, stride))


def backend_of(config: str) -> str:
    """Name the backend of ``"cuda:nccl"`` or ``"cpu:gloo,cuda:nccl"``: that of the device."""
    parts = dict(part.partition(":")[::2] for part in config.split(",") if ":" in part)
    return parts.get("cuda") or next(iter(parts.values()), config)


# Sent ---------------------------------------------------------------------------------------------

SUBSTITUTES = {"all_reduce": ("reduce_scatter",)}
"""Collectives that a backend without a device carries out by another one."""


class SentBytes(NamedTuple):
    """A collective."""

    fields: Fields  # kind of the collective
    kernel: int  # its kernel, or -1
    # start, end: of the kernel, else of the call [ns]
    start: int
    end: int
    enqueued: int | None  # when the host called it [ns]
    step: int = -1  # in which step, where the call is not in the trace


class Finder:
    """Calls by the instants that they hold.

    Parameters
    ----------
    calls : sequence of Call
        Sorted by thread and start.
    groups : dict of str to TraceGroup
        Of the trace.
    """

    def __init__(self, calls: Sequence[HostCall], groups: dict[str, TraceGroup]) -> None:
        self.used: set[int] = set()
        self._calls = calls
        self._of: dict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        self._waiting: dict[str, list[tuple[int, Fields]]] = defaultdict(list)
        for number, call in enumerate(calls):
            starts, numbers = self._of[call.thread]
            starts.append(call.start)
            numbers.append(number)
        for number in sorted(range(len(calls)), key=lambda number: calls[number].start):
            fields = fields_of(calls[number].notes, {}, "", groups)
            self._waiting[fields.name].append((number, fields))

    def at(self, instant: int, thread: int) -> HostCall | None:
        """Give the call of a thread that holds an instant, which is then used."""
        starts, numbers = self._of.get(thread, ([], []))
        place = bisect_right(starts, instant) - 1
        if place < 0 or self._calls[numbers[place]].end < instant:
            return None
        self.used.add(numbers[place])
        return self._calls[numbers[place]]

    def before(self, note: Note, wanted: Fields) -> tuple[HostCall, Fields] | None:
        """Give the first unused call of the same size that an event carries out.

        It began before the event ended, and is of the same collective, or of one that the backend
        carries out so.
        """
        earliest = None
        for name in (wanted.name, *SUBSTITUTES.get(wanted.name, ())):
            for place, (number, fields) in enumerate(self._waiting[name]):
                start = self._calls[number].start
                if start > note.end or (earliest and start > self._calls[earliest[2]].start):
                    break
                if _is_same_size(fields, wanted):
                    earliest = name, place, number
                    break
        if earliest is None:
            return None
        name, place, number = earliest
        self.used.add(number)
        return self._calls[number], self._waiting[name].pop(place)[1]

    def unused(self) -> list[HostCall]:
        """Give the calls that nothing was found for."""
        return [call for number, call in enumerate(self._calls) if number not in self.used]


def _is_same_size(call: Fields, event: Fields) -> bool:
    if call.name != event.name and min(call.num_elements, event.num_elements) < 0:
        return False
    return call.num_elements in (event.num_elements, -1) or event.num_elements < 0


def of_kernels(
    device: DeviceTable,
    host: HostTable,
    launch: Ints,
    kernel_fields: Mapping[int, Mapping[str, object]],
    names: Sequence[str],
    steps: Ints,
    finder: Finder,
    groups: dict[str, TraceGroup],
) -> list[SentBytes]:
    """One collective for each kernel that communicates.

    Parameters
    ----------
    device : DeviceTable
        In order.
    host : HostTable
        In order.
    launch : ndarray, int64
        Row of the host call that launched each kernel, or -1.
    kernel_fields : mapping of int to dict
        Fields of the kernels, by their row.
    names : sequence of str
        Of all events.
    steps : ndarray, int64
        Of each kernel.
    finder : Finder
        Of the host's calls.
    groups : dict of str to TraceGroup
        Of the trace.
    """
    collectives = []
    for row in np.flatnonzero(device.kind == COMMUNICATION).tolist():
        at = int(launch[row])
        begun = int(host.start[at]) if at >= 0 else None
        call = finder.at(begun, int(host.thread[at])) if begun is not None else None
        notes = call.notes if call else []
        fields = fields_of(notes, kernel_fields.get(row, {}), names[int(device.name[row])], groups)
        enqueued = call.start if call else begun
        start, end = int(device.start[row]), int(device.end[row])
        collectives.append(SentBytes(fields, row, start, end, enqueued, int(steps[row])))
    return collectives


def of_backends(
    notes: Sequence[Note], kernels: Mapping[tuple[int, int, int], int], finder: Finder,
    groups: dict[str, TraceGroup],
) -> list[SentBytes]:  # fmt: skip
    """One collective for each event of a backend without a device.

    Parameters
    ----------
    notes : sequence of Note
        Of the trace.
    kernels : mapping of (start, end, thread) to int
        Kernels in their place.
    finder : Finder
        Of the host's calls.
    groups : dict of str to TraceGroup
        Of the trace.
    """
    mine = [note for note in notes if note.name.startswith(BACKENDS) and note_name(note)]
    listed = [(n, fields_of([n], {}, "", groups)) for n in sorted(mine, key=lambda n: n.start)]
    collectives = []
    for note, fields in listed:
        call = finder.before(note, fields)
        if call and call[1].name != fields.name:
            fields = call[1]._replace(dtype=fields.dtype)
        elif call and fields.out_elements < 0:
            fields = fields._replace(out_elements=call[1].out_elements)
        kernel = kernels.get((note.start, note.end, note.thread), -1)
        enqueued = call[0].start if call else None
        collectives.append(SentBytes(fields, kernel, note.start, note.end, enqueued))
    return collectives


def of_calls(finder: Finder, groups: dict[str, TraceGroup]) -> list[SentBytes]:
    """Collectives that were called, but left nothing else: those of one rank do."""
    return [
        SentBytes(fields_of(call.notes, {}, "", groups), -1, call.start, call.end, call.start)
        for call in finder.unused()
    ]


def collectives_of(sent: Sequence[SentBytes], steps: TraceSteps, origin: int) -> TraceCollectives:
    """Make the columns."""
    sent = sorted(sent, key=lambda call: (call.start, call.end))
    names = tuple(sorted({call.fields.name for call in sent}))

    def column(field: str) -> Ints:
        return np.array([getattr(call.fields, field) for call in sent], dtype=np.int64)

    def text(field: str) -> Array:
        return np.array([getattr(call.fields, field) for call in sent], dtype=np.str_)

    start = seconds(np.array([call.start for call in sent], dtype=np.int64), origin)
    enqueued = np.array(
        [np.nan if call.enqueued is None else (call.enqueued - origin) / 1e9 for call in sent],
        dtype=np.float64,
    )
    step = step_at(steps, enqueued)
    known = np.array([call.step for call in sent], dtype=np.int64)
    return TraceCollectives(
        names=names,
        name=np.array([names.index(call.fields.name) for call in sent], dtype=np.int64),
        kernel=np.array([call.kernel for call in sent], dtype=np.int64),
        num_elements=column("num_elements"),
        out_elements=column("out_elements"),
        dtype=text("dtype"),
        group=text("group"),
        group_size=column("group_size"),
        sequence=column("sequence"),
        peer=column("peer"),
        algorithm=text("algorithm"),
        protocol=text("protocol"),
        start=start,
        end=seconds(np.array([call.end for call in sent], dtype=np.int64), origin),
        step=np.where(known >= 0, known, step),
        enqueued=enqueued,
    )
