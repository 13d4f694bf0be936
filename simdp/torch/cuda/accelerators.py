"""``torch.accelerator`` and random numbers of virtual devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from simdp.torch.cuda import queries, streams
from simdp.torch.cuda.machine import machine
from simdp.torch.ranks import Patches


def current_accelerator(check_available: bool = False) -> torch.device | None:
    """Return the type of the devices."""
    return torch.device("cuda") if queries.is_available() else None


def _found(original: Callable[..., Any]) -> Callable[..., Any]:
    """Detect for ``fully_shard`` without a mesh whether ranks use devices, or NCCL."""

    def accelerator(*args: Any) -> torch.device:
        here = machine()
        meets = dist.is_initialized() and dist.get_backend() == "nccl"
        if here is not None and queries.is_available() and (here.used or meets):
            return torch.device("cuda")
        return original(*args)

    return accelerator


def _asked(original: Callable[..., None]) -> Callable[..., None]:
    """Ask where devices are used only: Adam looks at the current stream, which would use one."""

    def check(*args: Any) -> None:
        here = machine()
        if here is None or here.used:
            original(*args)

    return check


def patch(patches: Patches) -> None:
    """Install the functions."""
    patches.wrap(torch.optim.Optimizer, "_accelerator_graph_capture_health_check", _asked)
    accelerator = torch.accelerator
    patches.wrap(torch._C, "_get_accelerator", _found)
    for name, value in {
        "is_available": queries.is_available,
        "current_accelerator": current_accelerator,
        "device_count": queries.device_count,
        "current_device_index": queries.current_device,
        "current_device_idx": queries.current_device,
        "set_device_index": queries.set_device,
        "set_device_idx": queries.set_device,
        "current_stream": streams.current_stream,
        "set_stream": streams.set_stream,
        "synchronize": streams.synchronize,
        "device_index": queries.device,
        "empty_cache": streams.empty_cache,
        "memory_allocated": streams.memory_allocated,
        "max_memory_allocated": streams.max_memory_allocated,
        "memory_reserved": streams.memory_reserved,
        "max_memory_reserved": streams.max_memory_reserved,
        "memory_stats": streams.memory_stats,
        "reset_peak_memory_stats": streams.reset_peak_memory_stats,
        "get_memory_info": streams.mem_get_info,
    }.items():
        if hasattr(accelerator, name):
            patches.put(accelerator, name, value)
    _random(patches)


def _random(patches: Patches) -> None:
    """Let devices draw from the rank's generator.

    A device's seed does not change it, so that a script draws the same numbers as without devices.
    """
    for owner in (torch.cuda, torch.cuda.random):
        patches.put(owner, "manual_seed", lambda seed: None)
        patches.put(owner, "manual_seed_all", lambda seed: None)
        patches.put(owner, "seed", lambda: None)
        patches.put(owner, "seed_all", lambda: None)
        patches.put(owner, "initial_seed", lambda: torch.initial_seed())
        patches.put(owner, "get_rng_state", lambda device="cuda": torch.get_rng_state())
        patches.put(
            owner, "set_rng_state", lambda new_state, device="cuda": torch.set_rng_state(new_state)
        )
        patches.put(owner, "get_rng_state_all", _states)
        patches.put(owner, "set_rng_state_all", _set_states)


def _states() -> list[Any]:
    found = machine()
    return [torch.get_rng_state() for _ in (found.devices if found else ())]


def _set_states(new_states: Any) -> None:
    for state in list(new_states)[:1]:
        torch.set_rng_state(state)
