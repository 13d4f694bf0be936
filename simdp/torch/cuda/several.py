"""Modules whose parameters are on several devices: DDP sends those of each device by themselves."""

from __future__ import annotations

from typing import Any

import torch.distributed

from simdp.torch.cuda.machine import machine
from simdp.torch.cuda.moving import place_of
from simdp.torch.cuda.patches import Patches


def patch(patches: Patches) -> None:
    """Let what goes out in one piece be of one device."""
    patches.wrap(torch.distributed, "_broadcast_coalesced", _device_by_device)


def _device_by_device(real: Any) -> Any:
    # Not named as a method of the group: pybind11 takes such a caller for that method itself.
    def each_device(group: Any, tensors: Any, *others: Any) -> None:
        parts: dict[int, list[Any]] = {}
        for tensor in tensors:
            place = -1 if machine() is None else place_of(tensor)
            parts.setdefault(place, []).append(tensor)
        for part in parts.values():
            real(group, part, *others)

    return each_device
