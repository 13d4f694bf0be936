"""Flight record: which collectives a rank called, as NCCL's flight recorder kept them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from simdp.traces.rank_trace import TraceGroup


@dataclass(frozen=True)
class FlightEntry:
    """A collective or a message.

    Attributes
    ----------
    record_id : int
        Counts what the rank recorded.
    group : str
        Name of the process group.
    sequence, op_id : int
        Number of the collective in its group, and of the operation; -1 unknown.
    p2p_sequence : int
        Number of the message in its group; -1 unknown.
    is_p2p : bool
        Whether it is a message.
    name : str
        In torch's terms: ``"all_reduce"``, ``"send"``.
    profiling_name : str
        As it is written: ``"nccl:all_reduce"``, ``"nccl:send 1->2"``.
    source, target : int or None
        Of a message: group ranks.
    input_sizes, output_sizes : tuple of tuple of int
        Shapes of the tensors.
    input_dtypes, output_dtypes : tuple of str
        As torch says them: ``"float32"``.
    state : str
        ``"scheduled"``, ``"started"`` or ``"completed"``.
    retired : bool
        Whether the watchdog is done with it; retired, yet not completed: it timed out.
    created_ns : int
        When the host enqueued it [ns].
    started_ns, completed_ns : int or None
        When the watchdog saw it started and completed, which may be late [ns].
    duration_s : float or None
        On the device, where timing was on [s].
    timeout_s : float or None
        After which it times out [s].
    frames : tuple of str
        Where it was called: ``"train.py:31 step"``, the innermost first.
    """

    record_id: int
    group: str
    sequence: int
    op_id: int
    p2p_sequence: int
    is_p2p: bool
    name: str
    profiling_name: str
    source: int | None
    target: int | None
    input_sizes: tuple[tuple[int, ...], ...]
    output_sizes: tuple[tuple[int, ...], ...]
    input_dtypes: tuple[str, ...]
    output_dtypes: tuple[str, ...]
    state: str
    retired: bool
    created_ns: int
    started_ns: int | None
    completed_ns: int | None
    duration_s: float | None
    timeout_s: float | None
    frames: tuple[str, ...]


@dataclass(frozen=True)
class GroupStatus:
    """How far a rank came in a process group: numbers of collectives, -1 for none."""

    last_enqueued: int
    last_started: int
    last_completed: int


@dataclass(frozen=True)
class FlightRecord:
    """The dump of one rank.

    Attributes
    ----------
    path : Path
        Which file.
    rank : int or None
        Whose; None if neither the file nor its name says.
    version : str
        Of the format: ``"2.5"``.
    groups : dict of str to TraceGroup
        Process groups, by their names.
    status : dict of str to GroupStatus
        How far the rank came in each.
    entries : tuple of FlightEntry
        In the order in which they were recorded.
    remarks : tuple of str
        What is missing or odd: whole sentences.
    """

    path: Path
    rank: int | None
    version: str
    groups: dict[str, TraceGroup]
    status: dict[str, GroupStatus]
    entries: tuple[FlightEntry, ...]
    remarks: tuple[str, ...]
