"""Flight files: dumps of NCCL's flight recorder, versions 2.0 to 2.x, pickled or JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from simdp.errors import ScenarioError, shown
from simdp.traces.calls import backend_of, ranks_of
from simdp.traces.flight_record import FlightEntry, FlightRecord, GroupStatus
from simdp.traces.pickles import read_plain
from simdp.traces.plain import listed, mapping, number, quantity, text
from simdp.traces.rank_trace import TraceGroup
from simdp.traces.stream import opened
from simdp.traces.words import collective_name, dtype_name

MAX_BYTES = 256 * 2**20
"""Of one dump; one of ten thousand collectives with their call stacks has a tenth of it."""

MAX_ENTRIES = 1_000_000
MAX_FRAMES = 64

WANTED = (
    "take a dump of NCCL's flight recorder (TORCH_FR_BUFFER_SIZE=2000, "
    "TORCH_NCCL_DUMP_ON_TIMEOUT=1), one file per rank"
)
"""What a file should have been."""

_AT_THE_END = re.compile(r"(\d{1,6})(?:\.(?:pkl|pickle|json|bin|dump|trace))*$")
_PEERS = re.compile(r"(\d+)\s*->\s*(\d+|\?)|(\d+)\s*<-\s*(\d+|\?)")


def read_bytes(path: Path, wanted: str = WANTED, limit: int = MAX_BYTES) -> bytes:
    """Read a file to a limit, unpacked where it is packed.

    Raises
    ------
    ScenarioError
        If there is none, or it is larger or damaged.
    """
    with opened(path) as stream:
        try:
            raw = stream.read(limit + 1)
        except (OSError, EOFError) as error:
            raise ScenarioError([f"{path}: cannot be read: {error}; {wanted}."]) from None
    if len(raw) > limit:
        raise ScenarioError(
            [f"{path}: is larger than {limit // 2**20} MiB, so it is another file; {wanted}."]
        )
    if not raw.strip():
        raise ScenarioError([f"{path}: is empty; {wanted}."])
    return raw


def parse_json(raw: bytes, where: str, wanted: str) -> Any:
    """Read JSON that is whole.

    Raises
    ------
    ScenarioError
        If it is none.
    """
    try:
        return json.loads(raw)
    except RecursionError:
        raise ScenarioError([f"{where}: is nested too deeply; {wanted}."]) from None
    except ValueError as error:
        said = shown(str(error))[1:-1]
        raise ScenarioError([f"{where}: is no JSON ({said}); {wanted}."]) from None


def read_record(path: Path) -> FlightRecord:
    """Read one dump.

    Raises
    ------
    ScenarioError
        If it is no dump, or asks for more than plain values.
    """
    raw = read_bytes(path)
    is_json = raw.lstrip()[:1] in (b"{", b"[")
    found = parse_json(raw, str(path), WANTED) if is_json else read_plain(raw, str(path), WANTED)
    fields = mapping(found)
    entries = fields.get("entries", [] if "pg_config" in fields else None)  # JSON leaves out none
    if not isinstance(entries, list | tuple):
        raise ScenarioError([f"{path}: holds no list of entries, so it is no dump; {WANTED}."])
    version = text(fields.get("version"))
    if not re.fullmatch(r"2(\.\d{1,3})?", version):
        raise ScenarioError(
            [
                f"{path}: is of version {shown(fields.get('version'))}; versions 2.0 to 2.x are "
                "read, as torch 2.4 and later write them."
            ]
        )
    said = [number(fields.get("rank")), _rank_of(path)]
    rank = next((one for one in said if one is not None), None)
    kept = [_entry(entry) for entry in listed(entries, MAX_ENTRIES) if isinstance(entry, dict)]
    groups = _groups(fields.get("pg_config"), kept)
    status = {str(name): _status(entry) for name, entry in mapping(fields.get("pg_status")).items()}
    return FlightRecord(
        path, rank, version, groups, status, tuple(kept), tuple(_remarks(kept, rank, len(entries)))
    )


def _rank_of(path: Path) -> int | None:
    found = _AT_THE_END.search(path.name)
    return int(found[1]) if found else None


def _remarks(kept: list[FlightEntry], rank: int | None, num_entries: int) -> Iterator[str]:
    if rank is None:
        yield "Neither the dump nor the name of its file says its rank."
    if not kept:
        yield "It holds no entries: no collective was called, or the buffer is off."
    elif kept[0].record_id > 0:
        yield (
            f"It begins with record {kept[0].record_id}: the buffer is circular, and what came "
            "before was overwritten."
        )
    if len(kept) < num_entries:
        yield f"{num_entries - len(kept)} of its {num_entries} entries cannot be read."
    if not any(entry.duration_s is not None for entry in kept):
        yield "It has no durations: set TORCH_NCCL_ENABLE_TIMING=1 to have them."


def _groups(config: Any, entries: list[FlightEntry]) -> dict[str, TraceGroup]:
    found = {}
    for key, entry in mapping(config).items():
        entry = mapping(entry)
        ranks = ranks_of(entry.get("ranks"))
        name = text(entry.get("name"), str(key))
        size = len(ranks) if ranks else None
        backend = backend_of(text(entry.get("backend_config")))
        found[name] = TraceGroup(name, text(entry.get("desc")), backend, ranks, size)
    nameless = found.pop("", None) if len(found) == 1 else None
    for one in entries:
        if one.group not in found:
            found[one.group] = TraceGroup(one.group, "", "", None, None)
    if nameless and len(found) == 1:  # so gloo's only group is written
        (name,) = found
        found[name] = replace(nameless, name=name)
    return found


def _status(entry: Any) -> GroupStatus:
    fields = mapping(entry)
    names = [f"last_{what}_collective" for what in ("enqueued", "started", "completed")]
    return GroupStatus(*(_or(number(fields.get(name))) for name in names))


def _entry(fields: dict[Any, Any]) -> FlightEntry:
    said = text(fields.get("profiling_name"))
    group = listed(fields.get("process_group")) or [fields.get("pg_id", "")]
    sequence = number(fields.get("collective_seq_id", fields.get("seq_id")))
    source, target = _peers(said)
    return FlightEntry(
        record_id=_or(number(fields.get("record_id"))),
        group=str(group[0]),
        sequence=_or(sequence),
        op_id=_or(number(fields.get("op_id"))),
        p2p_sequence=_or(number(fields.get("p2p_seq_id"))),
        is_p2p=fields.get("is_p2p") is True or source is not None or target is not None,
        name=collective_name(said),
        profiling_name=said,
        source=source,
        target=target,
        input_sizes=_shapes(fields.get("input_sizes")),
        output_sizes=_shapes(fields.get("output_sizes")),
        input_dtypes=_dtypes(fields.get("input_dtypes")),
        output_dtypes=_dtypes(fields.get("output_dtypes")),
        state=text(fields.get("state")),
        retired=fields.get("retired") is True,
        created_ns=_or(number(fields.get("time_created_ns")), 0),
        started_ns=number(fields.get("time_discovered_started_ns")) or None,
        completed_ns=number(fields.get("time_discovered_completed_ns")) or None,
        duration_s=quantity(fields.get("duration_ms"), 1e-3),
        timeout_s=quantity(fields.get("timeout_ms"), 1e-3),
        frames=tuple(map(_frame, listed(fields.get("frames"), MAX_FRAMES))),
    )


def _or(found: int | None, otherwise: int = -1) -> int:
    return otherwise if found is None else found


def _peers(said: str) -> tuple[int | None, int | None]:
    """Who sends and who receives: ``nccl:send 1->2``, ``nccl:recv 3<-0``, ``recv 3<-?``."""
    found = _PEERS.search(said)
    if not found:
        return None, None
    source, target = (found[1], found[2]) if found[1] else (found[4], found[3])
    return number(source), number(target)


def _shapes(found: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(_or(number(n)) for n in listed(shape)) for shape in listed(found))


def _dtypes(found: Any) -> tuple[str, ...]:
    return tuple(dtype_name(kind) or str(kind) for kind in listed(found))


def _frame(found: Any) -> str:
    fields = mapping(found)
    if not fields:
        return ""
    file, line = text(fields.get("filename")), number(fields.get("line"))
    return f"{file}:{_or(line, 0)} {text(fields.get('name'))}".strip()


# Folders -----------------------------------------------------------------------------------------


def of_path(path: Path, files: list[Path]) -> list[FlightRecord]:
    """Read the dumps of one job, sorted by rank.

    Parameters
    ----------
    path : Path
        How messages call them.
    files : list of Path
        Each a dump.

    Raises
    ------
    ScenarioError
        If two are of one rank, or one does not say its rank.
    """
    records = [read_record(file) for file in files]
    if len(records) < 2:
        return records
    known: dict[int, FlightRecord] = {}
    problems = []
    for record in records:
        name = record.path.name
        if record.rank is None:
            problems.append(
                f"{path}: {name} does not say its rank; let its name end in it, as in dump_3."
            )
        elif known.setdefault(record.rank, record) is not record:
            problems.append(
                f"{path}: {known[record.rank].path.name} and {name} are both of rank "
                f"{record.rank}; keep one dump per rank of one job."
            )
    if problems:
        raise ScenarioError(problems)
    return [known[rank] for rank in sorted(known)]
