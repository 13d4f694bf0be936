"""Text that a job leaves: the watchdog's lines, NCCL's, memory, topology, and progress.

One text may hold several kinds. Tables of nccl-tests are read by `simdp.results.collective`, of
which only the listed devices are read here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from simdp.traces.logs.memory import MemoryLog, MemorySummary, OutOfMemory, read_memory
from simdp.traces.logs.nccl_log import NcclDebugLog, NcclWarning, read_nccl_log
from simdp.traces.logs.progress import BarLine, ProgressLog, StepLine, read_progress
from simdp.traces.logs.topology import NodeTopology, read_topology
from simdp.traces.logs.watchdog import (
    RankEnd,
    RankProgress,
    WaitingCall,
    WatchdogLog,
    read_watchdog,
)

READERS: dict[str, Callable[[Sequence[str]], Any]] = {
    "the NCCL watchdog's timeouts and ends of processes": read_watchdog,
    "NCCL_DEBUG=INFO logs and nccl-tests output": read_nccl_log,
    "nvidia-smi topo -m": read_topology,
    "out-of-memory messages and torch.cuda.memory_summary": read_memory,
    "tqdm and step lines": read_progress,
}
"""Reader of each kind of text, by what it is called in messages."""

MAX_TEXT_BYTES = 2**28
"""Bytes of a log; more is another file."""


@dataclass(frozen=True)
class JobLog:
    """One text, by what was found in it."""

    name: str  # file
    text: str
    watchdog: WatchdogLog | None
    nccl: NcclDebugLog | None
    topology: NodeTopology | None
    memory: MemoryLog | None
    progress: ProgressLog | None

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of text that were found."""
        parts = (self.watchdog, self.nccl, self.topology, self.memory, self.progress)
        return tuple(kind for kind, part in zip(READERS, parts, strict=True) if part is not None)


def read_log(text: str, name: str) -> JobLog | None:
    """Read a text; None if nothing in it is understood."""
    lines = text.split("\n")
    parts = [read(lines) for read in READERS.values()]
    if all(part is None for part in parts):
        return None
    return JobLog(name, text, *parts)


__all__ = [
    "MAX_TEXT_BYTES",
    "READERS",
    "BarLine",
    "JobLog",
    "MemoryLog",
    "MemorySummary",
    "NcclDebugLog",
    "NcclWarning",
    "NodeTopology",
    "OutOfMemory",
    "ProgressLog",
    "RankEnd",
    "RankProgress",
    "StepLine",
    "WaitingCall",
    "WatchdogLog",
    "read_log",
]
