"""Out-of-memory messages of torch, and ``torch.cuda.memory_summary``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from simdp.traces.logs.watchdog import rank_of


class OutOfMemory(NamedTuple):
    """One message; sizes are as printed, to two decimals [bytes]."""

    rank: int | None
    device: int | None  # GPU of its host
    asked: float  # tried to allocate
    rounding: float  # half of the last printed digit of ``asked``
    total: float | None  # capacity
    free: float | None
    allocated: float | None  # by torch's tensors
    unused: float | None  # reserved by torch and not allocated
    in_use: float | None  # of this process
    # of other processes
    others: tuple[float, ...]


class MemorySummary(NamedTuple):
    """Peaks of ``torch.cuda.memory_summary()`` [bytes]."""

    device: int | None
    allocated: float
    reserved: float
    non_releasable: float
    # ooms, retries: out-of-memory errors, and calls of cudaMalloc that had to be repeated
    ooms: int
    retries: int


@dataclass(frozen=True)
class MemoryLog:
    """What a log has on device memory."""

    failures: tuple[OutOfMemory, ...]
    summaries: tuple[MemorySummary, ...]


UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
UNITS |= {"B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30}

_SIZE = r"(?<![\d.])([\d.]++) ?(bytes|[KMGT]iB|[KMG]B|B)\b"
_ASKED = re.compile(rf"[Tt]ried to allocate {_SIZE}")
_TOTAL = re.compile(rf"{_SIZE} total capacity|total capacity of {_SIZE}")
_FREE = re.compile(rf"of which {_SIZE} is free|{_SIZE} free\b")
_ALLOCATED = re.compile(rf"{_SIZE} already allocated|{_SIZE} is allocated by PyTorch")
_UNUSED = re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated")
_RESERVED = re.compile(rf"{_SIZE} (?:reserved in total by PyTorch|cached)")
_OTHER = re.compile(rf"Process \d+ has {_SIZE} memory in use")
_OWN = re.compile(rf"this process has {_SIZE} memory in use")
_DEVICE = re.compile(r"\bGPU (\d+)\b")
_ROWS = ("Allocated", "GPU reserved", "Non-releasable")
_ROW = re.compile(rf"^\|\s*({'|'.join(_ROWS)}) memory\s*\|(.*)\|\s*$")
_CELL = re.compile(r"(?<!\d)(\d++) +([KMGT]i?B|B)\b")
_SUMMARY = re.compile(r"memory summary, device ID (\d+)")
_COUNTS = re.compile(r"CUDA OOMs: (\d+)\s*\|\s*cudaMalloc retries: (\d+)")


def read_memory(lines: Sequence[str]) -> MemoryLog | None:
    """Read messages and summaries; None if there are none."""
    failures = list[OutOfMemory]()
    for line in lines:
        if "ried to allocate" in line and (failure := _failure(line)) and failure not in failures:
            failures.append(failure)
    summaries = _summaries(lines)
    if not (failures or summaries):
        return None
    return MemoryLog(tuple(failures), summaries)


def _size(pattern: re.Pattern[str], line: str) -> float | None:
    match = pattern.search(line)
    if match is None:
        return None
    number, unit = [group for group in match.groups() if group is not None][:2]
    return float(number) * UNITS[unit]


def _failure(line: str) -> OutOfMemory | None:
    request = _ASKED.search(line)
    if request is None:
        return None
    decimals = len(request[1].partition(".")[2])
    allocated, reserved = _size(_ALLOCATED, line), _size(_RESERVED, line)
    unused = _size(_UNUSED, line)
    if unused is None and reserved is not None and allocated is not None:
        unused = max(reserved - allocated, 0.0)
    device = _DEVICE.search(line)
    return OutOfMemory(
        rank_of(line),
        int(device[1]) if device else None,
        float(request[1]) * UNITS[request[2]],
        0.5 * 10.0**-decimals * UNITS[request[2]],
        _size(_TOTAL, line),
        _size(_FREE, line),
        allocated,
        unused,
        _size(_OWN, line),
        tuple(float(number) * UNITS[unit] for number, unit in _OTHER.findall(line)),
    )


def _summaries(lines: Sequence[str]) -> tuple[MemorySummary, ...]:
    summaries = list[MemorySummary]()
    device, ooms, retries = None, 0, 0
    rows = dict[str, float]()
    for line in lines:
        if match := _SUMMARY.search(line):
            device, rows = int(match[1]), {}
        elif match := _COUNTS.search(line):
            ooms, retries = int(match[1]), int(match[2])
        elif match := _ROW.match(line.strip()):
            sizes = [int(number) * UNITS[unit] for number, unit in _CELL.findall(match[2])]
            if len(sizes) >= 2:
                rows[match[1]] = sizes[1]  # current, peak, total allocated, total freed
        if len(rows) == 3:
            allocated, reserved, split = (rows[name] for name in _ROWS)
            summaries.append(MemorySummary(device, allocated, reserved, split, ooms, retries))
            rows = {}
    return tuple(summaries)
