"""Calls: what a trace says of each collective, from all the events that tell of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from math import prod
from typing import Any, NamedTuple

from simdp.traces.gathering import Note, note_name
from simdp.traces.rank_trace import TraceGroup
from simdp.traces.rows import whole
from simdp.traces.words import collective_name, dtype_name, kernel_name

BACKENDS = ("gloo:", "mpi:", "ucc:")
"""How events of backends without a device begin: they last as long as the collective."""

_SAME_SIZE = ("all_reduce", "broadcast", "reduce", "all_to_all")
_OUTPUT_FIRST = ("all_gather", "reduce_scatter", "all_to_all")


PEERS = {"send": "Dst Rank", "recv": "Src Rank"}
"""Where the other rank of a message stands."""

_WAY = re.compile(r":(?:send|recv) (\d{1,9})(?:->|<-)(\d{1,9})$")


class Call(NamedTuple):
    """A call of the host, with all notes that lie in it, the outermost first.

    Attributes
    ----------
    start, end : int
        When [ns].
    thread : int
        Where.
    notes : list of Note
        The call's own and those in it.
    """

    start: int
    end: int
    thread: int
    notes: list[Note]


class Fields(NamedTuple):
    """What is known of a collective; -1 and ``""`` stand for what is not."""

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


def calls_of(notes: Iterable[Note]) -> list[Call]:
    """Join the notes of each call, sorted by thread and start; those of backends are left out."""
    found: list[Call] = []
    host = [note for note in notes if not note.name.startswith(BACKENDS)]
    for note in sorted(host, key=lambda note: (note.thread, note.start, -note.end)):
        last = found[-1] if found else None
        if last and last.thread == note.thread and note.end <= last.end:
            last.notes.append(note)
        else:
            found.append(Call(note.start, note.end, note.thread, [note]))
    return [call for call in found if any(map(note_name, call.notes))]


def fields_of(
    notes: Sequence[Note], said: dict[str, Any], kernel: str, groups: dict[str, TraceGroup]
) -> Fields:
    """Put together what notes, the fields of a kernel and its name say.

    Parameters
    ----------
    notes : sequence of Note
        Of the call.
    said : dict
        Fields of the kernel; may be empty.
    kernel : str
        Its name; may be empty.
    groups : dict of str to TraceGroup
        Of the trace; where there is only one, it is the one.
    """
    records = [note.args for note in notes if note.name == "record_param_comms"]
    told = [said, *records]
    of_kernel = kernel_name(kernel)
    names = [collective_name(str(_first(told, "Collective name") or ""))]
    names += [note_name(note) for note in reversed(notes)]
    name = next(filter(None, names), of_kernel.collective) or "unknown"
    size, out, dtype = _by_shapes(notes, name)
    size = whole(_first(told, "In msg nelems"), size)
    dtype = dtype_name(_first(told, "dtype")) or dtype or of_kernel.dtype
    group = str(_first(told, "Process Group Name") or "")
    if not group and len(groups) == 1:
        group = next(iter(groups))
    known = groups.get(group)
    members = whole(_first(told, "Group size"), (known and known.size) or -1)
    out = whole(_first(told, "Out msg nelems"), out)
    if members < 0 and name in ("all_gather", "reduce_scatter") and min(size, out) > 0:
        members = max(size, out) // min(size, out)
    if out < 0 <= size:
        out = _output_size(name, size, members)
    sequence = whole(_first(told, "Seq"))
    ways = of_kernel.algorithm, of_kernel.protocol
    return Fields(name, size, out, dtype, group, members, sequence, _peer(told, notes, name), *ways)


def _peer(told: Sequence[dict[str, Any]], notes: Sequence[Note], name: str) -> int:
    """The other rank of a message, by its fields or by an event such as ``nccl:send 0->1``."""
    if name not in PEERS:
        return -1
    written = (_WAY.search(note.name) for note in notes)
    shown = next((int(way[2]) for way in written if way), -1)
    return whole(_first(told, PEERS[name]), shown)


def _first(told: Iterable[dict[str, Any]], key: str) -> Any:
    return next((fields[key] for fields in told if key in fields), None)


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
    found, out, dtype = -1, -1, ""
    for note in notes:
        shapes, types = note.args.get("Input Dims"), note.args.get("Input type")
        if not isinstance(shapes, list) or not isinstance(types, list):
            continue
        sizes = [num_elements(shape, kind) for shape, kind in zip(shapes, types, strict=False)]
        at = 0
        if note.name.startswith("c10d::") and name in _OUTPUT_FIRST and len(sizes) > 1:
            at, out = 1, sizes[0]
        if at < len(sizes) and sizes[at] >= 0:  # what lies further in speaks of inputs alone
            found, dtype = sizes[at], dtype_name(types[at]) or dtype
    return found, out, dtype


def num_elements(shape: Any, kind: Any) -> int:
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


def ranks_of(written: Any) -> tuple[int, ...] | None:
    """Read the ranks of a group, a list or ``"[0, 1]"``; None if there are none, or it is cut."""
    if isinstance(written, str):
        if "..." in written or not re.fullmatch(r"\[\s*\d*(\s*,\s*\d+)*\s*\]", written):
            return None
        written = [int(digits) for digits in re.findall(r"\d{1,9}", written)]
    if not isinstance(written, list) or not written:
        return None
    if not all(type(rank) is int and rank >= 0 for rank in written):
        return None
    return tuple(written)


def groups_of(config: Any, told: Iterable[dict[str, Any]]) -> dict[str, TraceGroup]:
    """Collect the process groups that the head of a trace and its collectives name."""
    found: dict[str, TraceGroup] = {}
    for entry in config if isinstance(config, list) else ():
        if isinstance(entry, dict) and "pg_name" in entry:
            name, ranks = str(entry["pg_name"]), ranks_of(entry.get("ranks"))
            size = whole(entry.get("pg_size"), len(ranks) if ranks else -1)
            backend = backend_of(str(entry.get("backend_config", "")))
            said = str(entry.get("pg_desc", ""))
            found[name] = TraceGroup(name, said, backend, ranks, size if size >= 0 else None)
    for fields in told:
        name = str(fields.get("Process Group Name", ""))
        if not name or (name in found and found[name].ranks is not None):
            continue
        size = whole(fields.get("Group size"))
        ranks = ranks_of(fields.get("Process Group Ranks")) or _strided(fields, size)
        known = found.get(name, TraceGroup(name, "", "", None, None))
        found[name] = TraceGroup(
            name,
            known.description or str(fields.get("Process Group Description", "")),
            known.backend,
            ranks,
            known.size or (size if size >= 0 else None),
        )
    return found


def _strided(fields: dict[str, Any], size: int) -> tuple[int, ...] | None:
    """Ranks of a group whose list is cut, but which lie at equal distances."""
    start, stride = (whole(fields.get(f"Global rank {word}")) for word in ("start", "stride"))
    if start < 0 or stride <= 0 or not 0 < size <= 2**20:
        return None
    return tuple(range(start, start + stride * size, stride))


def backend_of(config: str) -> str:
    """Name the backend of ``"cuda:nccl"`` or ``"cpu:gloo,cuda:nccl"``: that of the device."""
    parts = dict(part.partition(":")[::2] for part in config.split(",") if ":" in part)
    return parts.get("cuda") or next(iter(parts.values()), config)
