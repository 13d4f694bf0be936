"""Lines of ranks that stop: the NCCL watchdog's timeouts, and how processes end."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from simdp.traces.gathering import collective_name


class WaitingCall(NamedTuple):
    """A collective in which a rank waited until its timeout."""

    rank: int | None  # of the job, where the line says it
    group: str  # process group; empty if unknown
    sequence: int | None  # its number in the group
    name: str  # in torch's terms
    # num_in, num_out: elements of the rank's input and output; None in old versions
    num_in: int | None
    num_out: int | None
    timeout_s: float | None
    waited_s: float | None


class RankProgress(NamedTuple):
    """Numbers of the last collectives of a rank in a process group."""

    rank: int | None
    group: str
    enqueued: int
    completed: int


class RankEnd(NamedTuple):
    """A process that ended before the others."""

    rank: int | None  # local rank, where the line names no other
    code: int | None  # exit status; negative: the signal; None for an exception
    text: str  # how it ended, in words


@dataclass(frozen=True)
class WatchdogLog:
    """What a log has on ranks that stopped."""

    calls: tuple[WaitingCall, ...]  # each once, in the order of the log
    progress: tuple[RankProgress, ...]
    ends: tuple[RankEnd, ...]
    saving: bool  # whether a rank was saving a checkpoint, or evaluating, just before
    experts: bool  # whether the log names a mixture of experts
    # unused: parameters without gradients, as DDP lists them (or that there are some); else empty
    unused: str = ""


_PREFIX = re.compile(r"\[rank(\d+)\]|\brank=(\d+)\b", re.IGNORECASE)
_GROUP_RANK = re.compile(r"\[Rank (\d+)\]")
_CALL = re.compile(
    r"(?:SeqNum=(\d+),\s*)?OpType=(\w+)(?:,\s*NumelIn=(\d+))?"
    r"(?:,\s*NumelOut=(\d+))?(?:,\s*Timeout\(ms\)=(\d+))?"
)
_RAN = re.compile(r"ran for (\d+) milliseconds")
_PROGRESS = re.compile(
    r"\[PG(?: ID)? (\w+)(?: PG GUID (\w+))?[^\]]*? Rank (\d+)\].*?"
    r"last enqueued (?:NCCL )?work: (-?\d+), last completed (?:NCCL )?work: (-?\d+)"
)
_EXIT = re.compile(
    r"exitcode:? *: *(-?\d+)\)?(?: local_rank: (\d+))?"  # of torch elastic
    r"|exits with return code = (-?\d+)"  # of DeepSpeed
)
_LOCAL_RANK = re.compile(r"local_rank[=:]\s*(\d+)")
_KILLED = re.compile(
    r"Out of memory: Killed process|oom[-_ ]kill|is killed by signal: Killed|Killed\s*$", re.I
)
_BUS = re.compile(r"insufficient shared memory \(shm\)|killed by signal: Bus error", re.IGNORECASE)
_RAISED = re.compile(
    r"^\[?rank ?(\d++)\]?:?\s*(?:[\w.]+\.)?(\w*(?:Error|Exception))\b:?\s*(.*)", re.I
)
_CONSEQUENCE = re.compile(r"DistBackendError|OutOfMemory")
_SAVING = re.compile(
    r"saving (?:model |latest |the )*checkpoint|save_checkpoint|saving model|"
    r"\* Running Evaluation|evaluating",
    re.IGNORECASE,
)
_FINGERPRINT = re.compile(
    r"Rank (\d+) is running (?:in)?(?:consistent )?collective: CollectiveFingerPrint\("
    r"(?:SequenceNumber=(\d+), ?)?OpType=(\w+), TensorShape=\[([\d, ]*)\]"
)
_UNUSED = re.compile(
    r"Parameters? (?:indices )?which did not receive grad for rank \d+: ([^\n]*)"
    r"|Expected to have finished reduction in the prior iteration"
)
_EXPERTS = re.compile(r"mixtral|num_local_experts|num_experts|moe_block|\bMoE\b|qwen\d?_?moe", re.I)
ENDINGS = ("kill", "exit", "oom", "shared memory", "error", "exception")
"""Parts of lines of processes that end."""


def read_watchdog(lines: Sequence[str]) -> WatchdogLog | None:
    """Read the lines of ranks that stopped; None if there are none."""
    calls, progress = list[WaitingCall](), list[RankProgress]()
    ends = list[RankEnd]()
    saving = experts = False
    unused = ""
    for line in lines:
        if ("grad" in line or "reduction" in line) and (match := _UNUSED.search(line)):
            unused = match[1] or unused or "some"
        if "CollectiveFingerPrint" in line:
            calls += [call for call in _fingerprints(line) if call not in calls]
        elif "OpType=" in line and (call := _call(line)) and call not in calls:
            calls.append(call)
        elif "last enqueued" in line and (row := _progress(line)):
            progress.append(row)
        low = line.lower()  # searched before patterns, as logs are long
        if any(word in low for word in ENDINGS):
            ends += [end for end in _ends(line) if end not in ends]
        if not (saving or calls) and ("sav" in low or "evaluat" in low):
            saving = bool(_SAVING.search(line))
        if not experts and ("expert" in low or "mixtral" in low or "moe" in low):
            experts = bool(_EXPERTS.search(line))
    if not (calls or progress or ends or unused):
        return None
    rows = tuple(dict.fromkeys(progress))
    return WatchdogLog(_once(calls, progress), rows, tuple(ends), saving, experts, unused)


def _fingerprints(line: str) -> Iterator[WaitingCall]:
    """Calls that torch compared itself (TORCH_DISTRIBUTED_DEBUG=DETAIL)."""
    for rank, number, op, shape in _FINGERPRINT.findall(line):
        name = collective_name(op) or op.lower()
        num_in = prod(int(size) for size in shape.split(",") if size.strip())
        yield WaitingCall(int(rank), "", _whole(number), name, num_in, None, None, None)


def _whole(digits: str | None) -> int | None:
    return int(digits) if digits else None


def rank_of(line: str) -> int | None:
    """Return the rank in a line: that of the job, else that of a group."""
    if match := _PREFIX.search(line):
        return int(match[1] or match[2])
    match = _GROUP_RANK.search(line)
    return int(match[1]) if match else None


def _call(line: str) -> WaitingCall | None:
    match = _CALL.search(line)
    if match is None:
        return None
    number, op, num_in, num_out, limit = match.groups()
    ran = _RAN.search(line)
    return WaitingCall(
        rank_of(line),
        "",
        _whole(number),
        collective_name(op) or op.lower().strip("_"),
        _whole(num_in),
        _whole(num_out),
        int(limit) / 1e3 if limit else None,
        int(ran[1]) / 1e3 if ran else None,
    )


def _progress(line: str) -> RankProgress | None:
    if not (match := _PROGRESS.search(line)):
        return None
    group, guid, in_group, enqueued, completed = match.groups()
    prefix = _PREFIX.search(line)
    rank = int(prefix[1] or prefix[2]) if prefix else int(in_group)
    return RankProgress(rank, guid or group, int(enqueued), int(completed))


def _once(
    calls: Sequence[WaitingCall], progress: Sequence[RankProgress]
) -> tuple[WaitingCall, ...]:
    """Drop repeated lines, and give each call the group whose next collective it is."""
    waiting = dict[tuple[object, ...], WaitingCall]()
    for call in calls:
        groups = {
            row.group
            for row in progress
            if row.rank == call.rank and row.completed + 1 == (call.sequence or -1)
        }
        group = groups.pop() if len(groups) == 1 else ""
        key = (call.rank, call.sequence, call.name, call.num_in)
        known = waiting.setdefault(key, call._replace(group=group))
        if known.waited_s is None and call.waited_s is not None:
            waiting[key] = call._replace(group=group)
    return tuple(_with_group(call, waiting.values(), progress) for call in waiting.values())


def _with_group(
    call: WaitingCall, calls: Iterable[WaitingCall], progress: Sequence[RankProgress]
) -> WaitingCall:
    """A call whose group is that of its like, or the only one; many logs lack lines of ranks."""
    if call.group:
        return call
    like = {
        other.group
        for other in calls
        if other.group and (other.sequence, other.name) == (call.sequence, call.name)
    }
    groups = like or {row.group for row in progress}
    return call._replace(group=groups.pop()) if len(groups) == 1 else call


def _ends(line: str) -> Iterator[RankEnd]:
    if match := _EXIT.search(line):
        code = int(match[1] or match[3])
        local = match[2] or (written[1] if (written := _LOCAL_RANK.search(line)) else None)
        if code:
            yield RankEnd(_whole(local), code, f"exit status {code}")
    elif _BUS.search(line):
        yield RankEnd(rank_of(line), -7, "a bus error in shared memory")
    elif _KILLED.search(line):
        yield RankEnd(rank_of(line), -9, "killed by the kernel for its memory")
    elif (match := _RAISED.match(line.strip())) and not _CONSEQUENCE.search(match[2]):
        yield RankEnd(int(match[1]), None, f"{match[2]}: {match[3][:100]}".rstrip(": "))
