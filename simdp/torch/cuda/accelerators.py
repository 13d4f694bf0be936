"""``torch.accelerator`` and random numbers of virtual devices."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from simdp.torch.cuda import queries
from simdp.torch.cuda.machine import VirtualMachine, machine
from simdp.torch.ranks import Patches


def current_accelerator(check_available: bool = False) -> torch.device | None:
    """Return the type of the devices."""
    return torch.device("cuda") if queries.is_available() else None


def _accelerator(here: VirtualMachine, original: Any, *args: Any) -> torch.device:
    """Detect for ``fully_shard`` without a mesh whether ranks use devices, or NCCL."""
    meets = dist.is_initialized() and dist.get_backend() == "nccl"
    if queries.is_available() and (here.used or meets):
        return torch.device("cuda")
    return original(*args)


def _check_capture(here: VirtualMachine, original: Any, *args: Any) -> None:
    """Check where devices are used only: Adam looks at the current stream, which would use one."""
    if here.used:
        original(*args)


SAME = (
    *("is_available", "device_count", "current_stream", "set_stream", "synchronize", "empty_cache"),
    *("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"),
    *("memory_stats", "reset_peak_memory_stats"),
)
"""Functions with the name of those of ``torch.cuda``."""

RENAMED = {
    **dict.fromkeys(("current_device_index", "current_device_idx"), "current_device"),
    **dict.fromkeys(("set_device_index", "set_device_idx"), "set_device"),
    "device_index": "device",
    "get_memory_info": "mem_get_info",
}
"""Names in ``torch.cuda`` of other functions."""


def patch(patches: Patches) -> None:
    """Install the functions, once those of ``torch.cuda`` are."""
    check = "_accelerator_graph_capture_health_check"
    patches.wrap(torch.optim.Optimizer, check, _check_capture, machine)
    patches.wrap(torch._C, "_get_accelerator", _accelerator, machine)
    patches.put(torch.accelerator, "current_accelerator", current_accelerator)
    for name, of_cuda in {**dict(zip(SAME, SAME, strict=True)), **RENAMED}.items():
        if hasattr(torch.accelerator, name):
            patches.put(torch.accelerator, name, getattr(torch.cuda, of_cuda))
    _random(patches)


def _random(patches: Patches) -> None:
    """Let devices draw from the rank's generator.

    A device's seed does not change it, so that a script draws the same numbers as without devices.
    """
    functions: dict[str, Any] = {
        **dict.fromkeys(("manual_seed", "manual_seed_all"), lambda seed: None),
        **dict.fromkeys(("seed", "seed_all"), lambda: None),
        "initial_seed": lambda: torch.initial_seed(),
        "get_rng_state": lambda device="cuda": torch.get_rng_state(),
        "set_rng_state": lambda new_state, device="cuda": torch.set_rng_state(new_state),
        "get_rng_state_all": lambda: [torch.get_rng_state() for _ in range(queries.device_count())],
        "set_rng_state_all": _set_states,
    }
    for owner in (torch.cuda, torch.cuda.random):
        for name, function in functions.items():
            patches.put(owner, name, function)


def _set_states(new_states: Any) -> None:
    for state in list(new_states)[:1]:
        torch.set_rng_state(state)
