"""Finds and reads trace files."""

from __future__ import annotations

import json
import re
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Literal, cast

from simdp.errors import ScenarioError, shown
from simdp.traces import ddp_files, flight_files
from simdp.traces.building import read_stream
from simdp.traces.ddp_files import DdpLogging
from simdp.traces.flight_files import FlightRecord
from simdp.traces.rows import RankTrace
from simdp.traces.stream import opened, unpacked

# Sources ------------------------------------------------------------------------------------------

ENDINGS = (".json", ".json.gz")
"""Of files that may be traces."""

MAX_FILES = 4_096
"""Files of one folder that are read."""

BEGINNING = 2**22
"""Characters within which a trace says that it is one."""

TELLING = (b'"traceEvents"', b'"deviceProperties"', b'"distributedInfo"')
"""Fields of which a trace has one near its beginning."""

_RANK = re.compile(r"(?:rank|worker|gpu|device)[-_ ]?(\d{1,6})(?!\d)", re.IGNORECASE)
_FAR_APART_NS = 3_600 * 10**9
_SINCE_1970_NS = 10**18


def of_path(path: Path) -> list[RankTrace]:
    """Read all traces of a path, sorted by rank; see `reading.read_traces`."""
    if path.is_dir():
        files, others = _in_folder(path)
        traces = _of_one_job(path, [trace for file in files for trace in of_file(file)])
        if others:
            remark = f"Files of its folder that are no traces were passed over: {_named(others)}."
            traces[0] = _with_remark(traces[0], remark)
        return traces
    if is_packed_folder(path):
        return _of_one_job(path, list(_in_archive(path)))
    return _of_one_job(path, of_file(path))


def of_file(path: Path) -> list[RankTrace]:
    """Read the traces of one file; a missing rank is taken from the file's name."""
    with opened(path) as stream:
        return [_with_rank(trace) for trace in read_stream(stream, path)]


def is_packed_folder(path: Path) -> bool:
    """Return whether a file is a .tar or a .tar.gz, by its beginning."""
    try:
        with opened(path) as stream:
            return stream.read(262)[257:] == b"ustar"
    except (OSError, EOFError, zlib.error):
        return False


def beginning(stream: IO[bytes], nbytes: int) -> bytes:
    """Read the first bytes of a stream; none if its file is damaged."""
    try:
        return stream.read(nbytes)
    except (OSError, EOFError, zlib.error):
        return b""


def is_trace(stream: IO[bytes]) -> bool:
    """Return whether a file holds events, by its beginning."""
    text = beginning(stream, BEGINNING)
    begin = text[:4096].lstrip(b"\xef\xbb\xbf \t\r\n")
    if begin.startswith(b"["):
        return b'"ph"' in text
    return begin.startswith(b"{") and any(field in text for field in TELLING)


def _named(files: Sequence[Path]) -> str:
    more = f" and {len(files) - 5} more" if len(files) > 5 else ""
    return ", ".join(file.name for file in files[:5]) + more


def _in_folder(path: Path) -> tuple[list[Path], list[Path]]:
    """Give the files of a folder that are traces, and those that might have been."""
    files, traces = files_in(path, ENDINGS), []
    for file in files:
        with opened(file) as stream:
            if is_trace(stream):
                traces.append(file)
    if not traces:
        raise ScenarioError(
            [
                f"{path}: no trace is in this folder ({len(files)} files end in "
                f"{' or '.join(ENDINGS)}); put one file per rank there, as torch.profiler's "
                "export_chrome_trace writes it."
            ]
        )
    return traces, [file for file in files if file not in traces]


def _in_archive(path: Path) -> Iterator[RankTrace]:
    """Read the files of an archive as they come; nothing is unpacked to disk."""
    num_files = 0
    try:
        with opened(path) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                inner = archive.extractfile(member) if member.isfile() else None
                if inner is None or not member.name.endswith(ENDINGS):
                    continue
                num_files += 1
                if num_files > MAX_FILES:
                    raise ScenarioError([f"{path}: holds more than {MAX_FILES} files."])
                with unpacked(inner, member.name.endswith(".gz")) as raw:
                    for trace in read_stream(raw, path / member.name):
                        yield _with_rank(trace)
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise ScenarioError(
            [f"{path}: is a damaged archive ({error}); pack the folder again."]
        ) from None
    if not num_files:
        raise ScenarioError([f"{path}: no trace is in this archive; pack one file per rank."])


def _with_rank(trace: RankTrace) -> RankTrace:
    if trace.rank is not None:
        return trace
    ranks = _RANK.findall(trace.path.name)
    if len(set(ranks)) != 1:
        return trace
    remark = f"It does not say its rank: {int(ranks[0])} is taken from the name of the file."
    return _with_remark(replace(trace, rank=int(ranks[0])), remark)


def _with_remark(trace: RankTrace, remark: str) -> RankTrace:
    return replace(trace, remarks=(*trace.remarks, remark))


def _of_one_job(path: Path, traces: Sequence[RankTrace]) -> list[RankTrace]:
    """Sort traces by their ranks, once it is clear that they belong together."""
    if len(traces) < 2:
        return list(traces)
    problems = [*_unknown(traces), *_twice(traces)] or [*_strangers(traces)]
    if problems:
        raise ScenarioError([f"{path}: {problem}" for problem in problems])
    ordered = sorted(traces, key=lambda trace: cast("int", trace.rank))
    first = ordered[0]
    apart = max(abs(trace.origin_ns - first.origin_ns) for trace in ordered)
    if apart > _FAR_APART_NS and min(trace.origin_ns for trace in ordered) > _SINCE_1970_NS:
        hours = apart / _FAR_APART_NS
        remark = f"By their clocks, the traces of the ranks begin {hours:,.1f} hours apart."
        ordered[0] = _with_remark(ordered[0], remark)
    return ordered


def _unknown(traces: Sequence[RankTrace]) -> Iterator[str]:
    for trace in traces:
        if trace.rank is None:
            yield (
                f"{trace.path.name} does not say its rank (distributedInfo), nor does its name; "
                "name it rank0.json, rank1.json and so on, or give one file alone."
            )


def _twice(traces: Sequence[RankTrace]) -> Iterator[str]:
    known: dict[int | None, RankTrace] = {}
    for trace in traces:
        other = known.setdefault(trace.rank, trace)
        if other is not trace and trace.rank is not None:
            yield (
                f"{other.path.name} and {trace.path.name} are both of rank {trace.rank}; keep "
                "one file per rank of one job."
            )


def _strangers(traces: Sequence[RankTrace]) -> Iterator[str]:
    """Remark on traces of different jobs, by world size, members of groups, and steps."""
    advice = "keep the files of one job only."
    first = traces[0]
    for trace in traces:
        pair = f"{first.path.name} and {trace.path.name}"
        rank, size = cast("int", trace.rank), trace.world_size
        if first.world_size != size and None not in (first.world_size, size):
            yield (
                f"{pair} are of different jobs: of {first.world_size} and of {size} ranks; {advice}"
            )
        elif size is not None and rank >= size:
            yield f"{trace.path.name} is of rank {rank}, but of a job of {size} ranks; {advice}"
        elif different := _other_group(first, trace):
            yield f"{pair} are of different jobs: {different}; {advice}"
        elif first.source != trace.source:
            yield f"{pair} are of different jobs: only one is simulated; {advice}"
        elif _no_step_in_common(first, trace):
            listed = [f"{t.steps.number[0]} to {t.steps.number[-1]}" for t in (first, trace)]
            yield f"{pair} have no step in common: {' and '.join(listed)}; {advice}"


def _other_group(first: RankTrace, trace: RankTrace) -> str:
    """Name a group of all ranks with other members in another trace; empty if there is none."""
    for name, group in trace.groups.items():
        known = first.groups.get(name)
        if known is None or None in (group.size, known.size) or trace.world_size is None:
            continue
        if trace.world_size in (group.size, known.size) and (
            group.size != known.size
            or (None not in (group.ranks, known.ranks) and group.ranks != known.ranks)
        ):
            mine, other = shown(known.ranks or known.size), shown(group.ranks or group.size)
            return f"their process group {name!r} has the ranks {mine} and {other}"
    return ""


def _no_step_in_common(first: RankTrace, trace: RankTrace) -> bool:
    if not len(first.steps) or not len(trace.steps):
        return False
    return not set(first.steps.number.tolist()) & set(trace.steps.number.tolist())


# Reading ------------------------------------------------------------------------------------------

PathKind = Literal["traces", "flight_records", "ddp_logging"]
"""Contents of a path, by the function that reads it: `read_traces` and so on."""

ALLOWED = (
    "traces of torch.profiler or of simdp (.json, .json.gz, a folder or .tar.gz of them), dumps of "
    "NCCL's flight recorder, or JSON of DDP's logging data"
)

_PICKLE = re.compile(rb"\x80[\x02-\x05]|[(}\]]")
_DUMP = re.compile(rb'"(?:pg_config|pg_status|collective_seq_id|entries)"')


def kinds_of(path: Path) -> list[PathKind]:
    """Detect what a file or a folder holds, from the beginnings of files; text is no such kind.

    Raises
    ------
    ScenarioError
        If there is no such path.
    """
    path = Path(path)
    if path.is_dir():
        kinds = {kind for file in files_in(path) if (kind := _kind_of_file(file))}
        folders: tuple[PathKind, ...] = ("traces", "flight_records")
        return [kind for kind in folders if kind in kinds]
    if is_packed_folder(path):
        return ["traces"]
    kind = _kind_of_file(path)
    return [] if kind is None else [kind]


def kind_of(path: Path) -> PathKind:
    """Detect the content of a path from the beginning of its first file.

    Raises
    ------
    ScenarioError
        If there is no such path, or it holds nothing that is read here.
    """
    kinds = kinds_of(path)
    if not kinds:
        raise ScenarioError([f"{path}: holds nothing that is read here; allowed are {ALLOWED}."])
    return kinds[0]


def read_trace(path: Path) -> RankTrace:
    """Read the trace of one rank: ``.json`` or ``.json.gz``.

    Raises
    ------
    ScenarioError
        If there is no such file, or it is no trace, or it holds more than one rank.
    """
    traces = of_file(Path(path))
    if len(traces) > 1:
        raise ScenarioError(
            [f"{path}: holds {len(traces)} ranks, where one is due; read all of them at once."]
        )
    return traces[0]


def read_traces(path: Path | Sequence[Path]) -> list[RankTrace]:
    """Read the traces of one or more ranks of one job, sorted by rank.

    Parameters
    ----------
    path : Path, or sequence of Path
        A file, a folder with one file per rank, or a ``.tar.gz`` of those; or several of these. A
        trace that simdp wrote holds all its ranks.

    Raises
    ------
    ScenarioError
        If there is no such path, or no trace in it, or its files are not of one job.
    """
    if not isinstance(path, str | Path):
        if len(path) > 1:
            return _of_one_job(path[0], [trace for part in path for trace in of_path(Path(part))])
        path = path[0]
    return of_path(Path(path))


def read_flight_records(path: Path | Sequence[Path]) -> list[FlightRecord]:
    """Read dumps of NCCL's flight recorder, pickled or JSON: files, or folders of them.

    No pickle can run code: only Python's own containers are accepted.

    Raises
    ------
    ScenarioError
        If there is no such path, or no dump in it, or one needs a global.
    """
    paths = list(map(Path, [path] if isinstance(path, str | Path) else path))
    files = list[Path]()
    for place in paths:
        dumps = [place]
        if place.is_dir():
            dumps = [file for file in files_in(place) if _kind_of_file(file) == "flight_records"]
        if not dumps:
            raise ScenarioError([f"{place}: no dump is in this folder; {flight_files.WANTED}."])
        files += dumps
    return flight_files.of_path(paths[0], files)


def read_ddp_logging(path: Path) -> DdpLogging:
    """Read a JSON file of ``_get_ddp_logging_data()``.

    Raises
    ------
    ScenarioError
        If there is no such file, or it is another.
    """
    return ddp_files.read(Path(path))


def files_in(
    path: Path, endings: tuple[str, ...] = ("",), unread: list[str] | None = None
) -> list[Path]:
    """List the files of a folder that can be read, sorted; reasons of others go to ``unread``.

    A ScenarioError if the folder or none of its files can be read, or they are too many.
    """
    try:
        files = sorted(f for f in path.iterdir() if f.name.endswith(endings) and f.is_file())
    except OSError as error:
        raise ScenarioError([f"{path}: cannot be read: {error.strerror or error}."]) from None
    if len(files) > MAX_FILES:
        raise ScenarioError(
            [f"{path}: holds {len(files)} files; at most {MAX_FILES} are read at once."]
        )
    readable, problems = list[Path](), [] if unread is None else unread
    for file in files:
        try:
            opened(file).close()
            readable.append(file)
        except ScenarioError as error:
            problems += error.problems
    if files and not readable:
        raise ScenarioError(problems)
    return readable


def _kind_of_file(path: Path) -> PathKind | None:
    """Detect a file's type from its beginning; None if unsupported."""
    with opened(path) as stream:
        if is_trace(stream):
            return "traces"
    with opened(path) as stream:
        begin = beginning(stream, ddp_files.MAX_BYTES)
    if begin.lstrip()[:1] == b"{" and not begin.startswith(b"}"):
        try:
            if ddp_files.is_logging(json.loads(begin)):
                return "ddp_logging"
        except (ValueError, RecursionError):
            pass
        return "flight_records" if _DUMP.search(begin) else None
    return "flight_records" if _PICKLE.match(begin) and b"entries" in begin else None
