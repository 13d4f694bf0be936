"""Memory: the functions of ``torch.cuda`` that tell what lies on a device."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch

from simdp.torch.cuda.ledger import Ledger
from simdp.torch.cuda.patches import Patches
from simdp.torch.cuda.queries import here, index_of


def ledger(device: Any = None) -> Ledger:
    """What lies on a device."""
    return here("memory").devices[index_of(device)].ledger


def memory_allocated(device: Any = None) -> int:
    """Bytes in tensors."""
    return ledger(device).allocated


def max_memory_allocated(device: Any = None) -> int:
    """Most bytes in tensors since the peak was reset."""
    return ledger(device).peak


def memory_reserved(device: Any = None) -> int:
    """Bytes that the allocator holds."""
    return ledger(device).reserved


def max_memory_reserved(device: Any = None) -> int:
    """Most bytes that the allocator held since the peak was reset."""
    return ledger(device).peak_reserved


def reset_peak_memory_stats(device: Any = None) -> None:
    """Count the most from here on."""
    ledger(device).reset_peak()


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Count what came and went from here on."""
    found = ledger(device)
    found.total_allocated = found.total_freed = found.num_allocs = found.num_frees = 0
    found.num_ooms = 0


def empty_cache() -> None:
    """Hand back what is kept for later tensors, on all devices."""
    for device in here("empty_cache").devices:
        device.ledger.trim()


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Bytes that are free, and all."""
    found = ledger(device)
    return found.free, found.capacity


def memory_stats(device: Any = None) -> OrderedDict[str, int]:
    """Figures of the allocator under torch's names; those of pools other than ``all`` are left."""
    found, stats = ledger(device), OrderedDict[str, int]()
    taken, given = found.total_allocated, found.total_freed
    for name, now, peak in (
        ("allocated_bytes", found.allocated, found.peak),
        ("active_bytes", found.allocated, found.peak),
        ("requested_bytes", found.allocated, found.peak),
        ("reserved_bytes", found.reserved, found.peak_reserved),
    ):
        stats[f"{name}.all.current"], stats[f"{name}.all.peak"] = now, peak
        stats[f"{name}.all.allocated"], stats[f"{name}.all.freed"] = taken, given
    stats["allocation.all.current"] = found.num_allocs - found.num_frees
    stats["allocation.all.allocated"] = found.num_allocs
    stats["allocation.all.freed"] = found.num_frees
    stats["num_ooms"], stats["num_alloc_retries"] = found.num_ooms, 0
    return OrderedDict(sorted(stats.items()))


def memory_stats_as_nested_dict(device: Any = None) -> dict[str, Any]:
    """The same, with a dictionary for each part of a name."""
    nested: dict[str, Any] = {}
    for name, value in memory_stats(device).items():
        *parts, last = name.split(".")
        inner = nested
        for part in parts:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return nested


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """The main figures as lines of text."""
    found = ledger(device)
    rows = [
        ("Allocated memory", found.allocated, found.peak),
        ("Reserved memory", found.reserved, found.peak_reserved),
    ]
    lines = [f"| {name:<18} | {now:>16} B | peak {most:>16} B |" for name, now, most in rows]
    return "\n".join([f"| simulated memory of cuda:{found.index} |", *lines])


def get_per_process_memory_fraction(device: Any = None) -> float:
    """Share of the device's memory that the process may take."""
    return ledger(device).fraction


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Let the process take a share of the device's memory.

    Raises
    ------
    ValueError
        As torch's, if it is no share.
    """
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    ledger(device).fraction = fraction


FUNCTIONS = (
    memory_allocated,
    max_memory_allocated,
    memory_reserved,
    max_memory_reserved,
    reset_peak_memory_stats,
    reset_accumulated_memory_stats,
    empty_cache,
    mem_get_info,
    memory_stats,
    memory_stats_as_nested_dict,
    memory_summary,
    get_per_process_memory_fraction,
    set_per_process_memory_fraction,
)

OLD_NAMES = {
    "memory_cached": memory_reserved,
    "max_memory_cached": max_memory_reserved,
    "reset_max_memory_allocated": reset_peak_memory_stats,
    "reset_max_memory_cached": reset_peak_memory_stats,
}


def patch(patches: Patches) -> None:
    """Put all of them in place."""
    names = {function.__name__: function for function in FUNCTIONS} | OLD_NAMES
    for name, function in names.items():
        patches.put(torch.cuda, name, function)
        patches.put(torch.cuda.memory, name, function)
