"""Reading: from a path to what lies there."""

from __future__ import annotations

import json
import re
import zlib
from pathlib import Path
from typing import Literal

from simdp.errors import ScenarioError
from simdp.traces import ddp_files, flight_files, sources
from simdp.traces.ddp_logging import DdpLogging
from simdp.traces.flight_record import FlightRecord
from simdp.traces.rank_trace import RankTrace
from simdp.traces.stream import opened

PathKind = Literal["traces", "flight_records", "ddp_logging"]
"""What a path may hold, by the function that reads it: `read_traces` and so on."""

ALLOWED = (
    "traces of torch.profiler or of simdp (.json, .json.gz, a folder or .tar.gz of them), dumps of "
    "NCCL's flight recorder, or JSON of DDP's logging data"
)

_PICKLE = re.compile(rb"\x80[\x02-\x05]|[(}\]]")
_DUMP = re.compile(rb'"(?:pg_config|pg_status|collective_seq_id|entries)"')


def kind_of(path: Path) -> PathKind:
    """Tell what a path holds, from the beginning of its first file.

    Raises
    ------
    ScenarioError
        If there is no such path, or it holds nothing that is read here.
    """
    path = Path(path)
    if path.is_dir():
        kinds = {kind for file in _files(path) if (kind := _kind_of_file(file))}
        for kind in ("traces", "flight_records"):
            if kind in kinds:
                return kind  # type: ignore[return-value, unused-ignore]
    elif sources.is_packed_folder(path):
        return "traces"
    elif found := _kind_of_file(path):
        return found
    raise ScenarioError([f"{path}: holds nothing that is read here; allowed are {ALLOWED}."])


def read_trace(path: Path) -> RankTrace:
    """Read the trace of one rank: ``.json`` or ``.json.gz``.

    Raises
    ------
    ScenarioError
        If there is no such file, or it is no trace, or it holds more than one rank.
    """
    found = sources.of_file(Path(path))
    if len(found) > 1:
        raise ScenarioError(
            [f"{path}: holds {len(found)} ranks, where one is due; read all of them at once."]
        )
    return found[0]


def read_traces(path: Path) -> list[RankTrace]:
    """Read the traces of one or more ranks of one job, sorted by rank.

    Parameters
    ----------
    path : Path
        A file, a folder with one file per rank, or a ``.tar.gz`` of those. A trace that simdp
        wrote holds all its ranks.

    Raises
    ------
    ScenarioError
        If there is no such path, or no trace in it, or its files are not of one job.
    """
    return sources.of_path(Path(path))


def read_flight_records(path: Path) -> list[FlightRecord]:
    """Read dumps of NCCL's flight recorder, pickled or JSON: a file, or a folder of them.

    No pickle can run anything: what is not built of Python's own containers is refused.

    Raises
    ------
    ScenarioError
        If there is no such path, or no dump in it, or one asks for any global.
    """
    path = Path(path)
    if not path.is_dir():
        return flight_files.of_path(path, [path])
    files = [file for file in _files(path) if _kind_of_file(file) == "flight_records"]
    if not files:
        raise ScenarioError([f"{path}: no dump is in this folder; {flight_files.WANTED}."])
    return flight_files.of_path(path, files)


def read_ddp_logging(path: Path) -> DdpLogging:
    """Read a JSON file of ``_get_ddp_logging_data()``.

    Raises
    ------
    ScenarioError
        If there is no such file, or it is another.
    """
    return ddp_files.read(Path(path))


def _files(path: Path) -> list[Path]:
    files = sorted(file for file in path.iterdir() if file.is_file())
    if len(files) > sources.MAX_FILES:
        raise ScenarioError(
            [f"{path}: holds {len(files)} files; at most {sources.MAX_FILES} are read at once."]
        )
    return files


def _kind_of_file(path: Path) -> PathKind | None:
    """Tell what a file is by its beginning; None for what is not read here."""
    with opened(path) as stream:
        if sources.is_trace(stream):
            return "traces"
    with opened(path) as stream:
        try:
            begin = stream.read(ddp_files.MAX_BYTES)
        except (OSError, EOFError, zlib.error):
            return None
    if begin.lstrip()[:1] == b"{" and not begin.startswith(b"}"):
        try:
            if ddp_files.is_logging(json.loads(begin)):
                return "ddp_logging"
        except (ValueError, RecursionError):
            pass
        return "flight_records" if _DUMP.search(begin) else None
    return "flight_records" if _PICKLE.match(begin) and b"entries" in begin else None
