"""Sorts the files of a job, in any mixture: traces, dumps, logging data, text, and its model."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from simdp.errors import ScenarioError
from simdp.traces.logs import MAX_TEXT_BYTES, READERS, JobLog, read_log
from simdp.traces.sources import ALLOWED, beginning, files_in, is_trace, kinds_of
from simdp.traces.stream import opened

CONFIG = "config.json"
"""File of a model of transformers."""

BEGINNING = 2**13
"""Bytes within which a file with other data than text has a zero byte."""


@dataclass
class JobFiles:
    """Files of a job by what they are; a folder counts as each kind that it holds."""

    traces: list[Path] = field(default_factory=list)
    flight_records: list[Path] = field(default_factory=list)
    ddp_logging: list[Path] = field(default_factory=list)
    logs: list[JobLog] = field(default_factory=list)
    configs: list[Path] = field(default_factory=list)  # config.json of transformers
    unread: list[str] = field(default_factory=list)  # reasons why others were not read


def sort_files(paths: Sequence[Path]) -> JobFiles:
    """Sort files and folders by what they hold.

    Raises
    ------
    ScenarioError
        If none of the paths exists and holds something that is read; one line each.
    """
    job = JobFiles()
    for path in paths:
        before = _count(job)
        try:
            for kind in kinds_of(path):
                getattr(job, kind).append(path)
            texts = files_in(path, unread=job.unread) if path.is_dir() else [path]
            if path.is_dir() or _count(job) == before:
                _take_texts(job, texts)
        except ScenarioError as error:
            job.unread += error.problems
            continue
        if _count(job) == before:
            wanted = f"holds nothing that is read here; allowed are {allowed()}."
            job.unread.append(f"{path}: {wanted}")
    if not _count(job):
        raise ScenarioError(job.unread)
    return job


def allowed() -> str:
    """What is read, in words."""
    return f"{ALLOWED}; {', '.join(READERS)}; or a config.json of transformers"


def _count(job: JobFiles) -> int:
    return sum(len(files) for files in vars(job).values()) - len(job.unread)


def _take_texts(job: JobFiles, files: Iterable[Path]) -> None:
    """Add those that are text with something understood, or a model."""
    for file in files:
        content = _text(file)
        if content is None:
            continue
        if _is_config(file, content):
            job.configs.append(file)
        elif (log := read_log(content, file.name)) is not None:
            job.logs.append(log)


def _text(path: Path) -> str | None:
    """Read a text file, packed or not; None if it is something else, such as a trace."""
    with opened(path) as stream:
        if is_trace(stream):
            return None
    with opened(path) as stream:
        content = beginning(stream, MAX_TEXT_BYTES + 1)
    if len(content) > MAX_TEXT_BYTES or b"\0" in content[:BEGINNING]:
        return None
    return content.decode("utf-8-sig", "replace").replace("\r\n", "\n")


def _is_config(path: Path, content: str) -> bool:
    if not content.lstrip().startswith("{") or '"model_type"' not in content:
        return False
    try:
        return path.suffix == ".json" and "model_type" in json.loads(content)
    except ValueError:
        return False
