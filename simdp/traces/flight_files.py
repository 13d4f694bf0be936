"""Dumps of NCCL's flight recorder.

Python's own reader is given only the opcodes of numbers, texts, lists, tuples, sets and
dictionaries. Its Python version keeps its memo in a dictionary, so that a small file cannot
allocate much memory either.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from simdp.errors import ScenarioError, shown
from simdp.traces.calls import backend_of, ranks_of
from simdp.traces.gathering import collective_name, dtype_name
from simdp.traces.rows import TraceGroup, listed, mapping, number, quantity, text
from simdp.traces.stream import opened


@dataclass(frozen=True)
class FlightEntry:
    """A collective or a message."""

    record_id: int  # number of the record on its rank
    group: str  # name of the process group
    # sequence, op_id: number of the collective in its group, and of the operation; -1 unknown
    sequence: int
    op_id: int
    p2p_sequence: int  # number of the message in its group; -1 unknown
    is_p2p: bool  # whether it is a message
    name: str  # in torch's terms: ``"all_reduce"``, ``"send"``
    profiling_name: str  # as it is written: ``"nccl:all_reduce"``, ``"nccl:send 1->2"``
    # source, target: of a message: group ranks
    source: int | None
    target: int | None
    # input_sizes, output_sizes: shapes of the tensors
    input_sizes: tuple[tuple[int, ...], ...]
    output_sizes: tuple[tuple[int, ...], ...]
    # input_dtypes, output_dtypes: in torch's names: ``"float32"``
    input_dtypes: tuple[str, ...]
    output_dtypes: tuple[str, ...]
    state: str  # ``"scheduled"``, ``"started"`` or ``"completed"``
    retired: bool  # whether the watchdog is done with it; retired, yet not completed: it timed out
    created_ns: int  # when the host enqueued it [ns]
    # started_ns, completed_ns: when the watchdog saw it started and completed, which may be late
    # [ns]
    started_ns: int | None
    completed_ns: int | None
    duration_s: float | None  # on the device, where timing was on [s]
    timeout_s: float | None  # after which it times out [s]
    frames: tuple[str, ...]  # where it was called: ``"train.py:31 step"``, the innermost first


@dataclass(frozen=True)
class GroupStatus:
    """Progress of a rank in a process group: numbers of collectives, -1 for none."""

    last_enqueued: int
    last_started: int
    last_completed: int


@dataclass(frozen=True)
class FlightRecord:
    """The dump of one rank."""

    path: Path  # which file
    rank: int | None  # rank; None if neither the file nor its name gives it
    version: str  # of the format: ``"2.5"``
    groups: dict[str, TraceGroup]  # process groups, by their names
    status: dict[str, GroupStatus]  # how far the rank came in each
    entries: tuple[FlightEntry, ...]  # in the order in which they were recorded
    remarks: tuple[str, ...]  # missing or unusual data: whole sentences


# Pickles ------------------------------------------------------------------------------------------

CODES = (
    "PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "NONE", "NEWTRUE", "NEWFALSE", "INT",
    "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING",
    "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
    "BINBYTES", "SHORT_BINBYTES", "EMPTY_LIST", "LIST", "APPEND", "APPENDS", "EMPTY_DICT", "DICT",
    "SETITEM", "SETITEMS", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_SET",
    "ADDITEMS", "FROZENSET", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "GET", "BINGET",
    "LONG_BINGET",
)  # fmt: skip
"""Globals of a pickle that are read."""

GLOBALS = ("GLOBAL", "STACK_GLOBAL", "INST")
"""Codes that ask for a function or a class by its name."""


class RefusedError(Exception):
    """The pickle contains more than plain values."""


def _other(code: str) -> Callable[[object], NoReturn]:
    def refuse(_: object) -> NoReturn:
        raise RefusedError(f"the instruction {code}")

    return refuse


class _Plain(pickle._Unpickler):  # type: ignore[misc, name-defined, unused-ignore]
    """Makes plain values only."""

    dispatch: ClassVar[dict[int, Callable[..., Any]]] = {
        code[0]: pickle._Unpickler.dispatch[code[0]]  # type: ignore[attr-defined, unused-ignore]
        if name in (*CODES, *GLOBALS)
        else _other(name)
        for name, code in vars(pickle).items()
        if name.isupper() and isinstance(code, bytes) and len(code) == 1
    }

    def find_class(self, module: str, name: str) -> NoReturn:
        raise RefusedError(f"the global {module}.{name}")


def read_plain(raw: bytes, where: str, wanted: str) -> object:
    """Read a pickle of plain values.

    Parameters
    ----------
    raw : bytes
        The pickle.
    where : str
        How messages call it.
    wanted : str
        Expected content.

    Raises
    ------
    ScenarioError
        If it needs a global or a call, or is damaged.
    """
    try:
        return _Plain(io.BytesIO(raw)).load()
    except RefusedError as refused:
        raise ScenarioError(
            [
                f"{where}: this pickle asks for {shown(str(refused))[1:-1]}, which could run any "
                f"program; only plain values are read: {wanted}."
            ]
        ) from None
    except Exception as error:  # a damaged pickle may raise anything
        reason = shown(str(error) or type(error).__name__)[1:-1]
        raise ScenarioError([f"{where}: is a damaged pickle ({reason}); {wanted}."]) from None


# Flight files -------------------------------------------------------------------------------------

MAX_BYTES = 256 * 2**20
"""Of one dump; one of ten thousand collectives with their call stacks has a tenth of it."""

MAX_ENTRIES = 1_000_000
MAX_FRAMES = 64

WANTED = (
    "take a dump of NCCL's flight recorder (TORCH_FR_BUFFER_SIZE=2000, "
    "TORCH_NCCL_DUMP_ON_TIMEOUT=1), one file per rank"
)
"""Wanted content of a file, for errors."""

_AT_THE_END = re.compile(r"(\d{1,6})(?:\.(?:pkl|pickle|json|bin|dump|trace))*$")
_PEERS = re.compile(r"(?<!\d)(\d++)\s*(->|<-)\s*(\d+|\?)")


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


def parse_json(raw: bytes, where: str, wanted: str) -> object:
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
        reason = shown(str(error))[1:-1]
        raise ScenarioError([f"{where}: is no JSON ({reason}); {wanted}."]) from None


def read_record(path: Path) -> FlightRecord:
    """Read one dump.

    Raises
    ------
    ScenarioError
        If it is no dump, or contains more than plain values.
    """
    raw = read_bytes(path)
    is_json = raw.lstrip()[:1] in (b"{", b"[")
    dump = parse_json(raw, str(path), WANTED) if is_json else read_plain(raw, str(path), WANTED)
    fields = mapping(dump)
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
    rank = number(fields.get("rank"))
    if rank is None and (at_the_end := _AT_THE_END.search(path.name)):
        rank = int(at_the_end[1])
    kept = [_entry(entry) for entry in listed(entries, MAX_ENTRIES) if isinstance(entry, dict)]
    groups = _groups(fields.get("pg_config"), kept)
    status = {str(name): _status(entry) for name, entry in mapping(fields.get("pg_status")).items()}
    return FlightRecord(
        path, rank, version, groups, status, tuple(kept), tuple(_remarks(kept, rank, len(entries)))
    )


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


def _groups(config: object, entries: list[FlightEntry]) -> dict[str, TraceGroup]:
    groups = {}
    for key, entry in mapping(config).items():
        entry = mapping(entry)
        ranks = ranks_of(entry.get("ranks"))
        name = text(entry.get("name"), str(key))
        size = len(ranks) if ranks else None
        backend = backend_of(text(entry.get("backend_config")))
        groups[name] = TraceGroup(name, text(entry.get("desc")), backend, ranks, size)
    nameless = groups.pop("", None) if len(groups) == 1 else None
    for recorded in entries:
        if recorded.group not in groups:
            groups[recorded.group] = TraceGroup(recorded.group, "", "", None, None)
    if nameless and len(groups) == 1:  # so gloo's only group is written
        (name,) = groups
        groups[name] = replace(nameless, name=name)
    return groups


def _status(entry: object) -> GroupStatus:
    fields = mapping(entry)
    names = [f"last_{what}_collective" for what in ("enqueued", "started", "completed")]
    return GroupStatus(*(_or(number(fields.get(name))) for name in names))


def _entry(fields: Mapping[object, object]) -> FlightEntry:
    name = text(fields.get("profiling_name"))
    group = listed(fields.get("process_group")) or [fields.get("pg_id", "")]
    sequence = number(fields.get("collective_seq_id", fields.get("seq_id")))
    source, target = _peers(name)
    return FlightEntry(
        record_id=_or(number(fields.get("record_id"))),
        group=str(group[0]),
        sequence=_or(sequence),
        op_id=_or(number(fields.get("op_id"))),
        p2p_sequence=_or(number(fields.get("p2p_seq_id"))),
        is_p2p=fields.get("is_p2p") is True or source is not None or target is not None,
        name=collective_name(name),
        profiling_name=name,
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


def _or(count: int | None, otherwise: int = -1) -> int:
    return otherwise if count is None else count


def _peers(name: str) -> tuple[int | None, int | None]:
    """Sender and receiver: ``nccl:send 1->2``, ``nccl:recv 3<-0``, ``recv 3<-?``."""
    ranks = _PEERS.search(name)
    if not ranks:
        return None, None
    source, target = (ranks[1], ranks[3]) if ranks[2] == "->" else (ranks[3], ranks[1])
    return number(source), number(target)


def _shapes(shapes: object) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(_or(number(n)) for n in listed(shape)) for shape in listed(shapes))


def _dtypes(dtypes: object) -> tuple[str, ...]:
    return tuple(dtype_name(kind) or str(kind) for kind in listed(dtypes))


def _frame(frame: object) -> str:
    fields = mapping(frame)
    if not fields:
        return ""
    file, line = text(fields.get("filename")), number(fields.get("line"))
    return f"{file}:{_or(line, 0)} {text(fields.get('name'))}".strip()


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
