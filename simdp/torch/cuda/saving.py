"""Saving: storages that are copied, written to files, and read back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import serialization

from simdp.torch.cuda.machine import machine
from simdp.torch.cuda.patches import Patches
from simdp.torch.cuda.tags import UNCLAIMED

FIRST = 0
"""Priority of the reader of tags: before torch's own of the CPU (10) and CUDA (20)."""

_HOST_DEVICE = torch._C.StorageBase.device.__get__


def patch(patches: Patches) -> None:
    """Put all of it in place."""
    storage = torch.UntypedStorage
    patches.put(storage, "device", property(_device))
    patches.put(storage, "is_cuda", property(lambda self: _device(self).type == "cuda"))
    for name in ("clone", "__deepcopy__"):
        patches.wrap(storage, name, _copied)
    patches.wrap(storage, "resize_", _resized)
    patches.wrap(storage, "cpu", _to_host)
    registry = serialization._package_registry
    before = list(registry)
    serialization.register_package(FIRST, _tag, _restored)
    patches.undo(lambda: registry.__setitem__(slice(None), before))


def _device(self: Any) -> torch.device:
    block = self.block
    if block is None or block is UNCLAIMED:
        found: torch.device = _HOST_DEVICE(self)
        return found
    return torch.device(block.device)


def _copied(original: Callable[..., Any]) -> Callable[..., Any]:
    def copied(self: Any, memo: Any = None) -> Any:
        here, block = machine(), self.block
        if here is None or block is None:
            return original(self) if memo is None else original(self, memo)
        if memo is not None and self._cdata in (known := memo.setdefault("torch", {})):
            return known[self._cdata]
        found = torch.UntypedStorage(self.nbytes(), device=_HOST_DEVICE(self))
        if found.device.type == "cpu":
            found.copy_(self, False)
        if block.place >= 0:
            here.hold(found, block.place)
        if memo is not None:
            known[self._cdata] = found
        return found

    return copied


def _resized(original: Callable[..., Any]) -> Callable[..., Any]:
    def resize_(self: Any, size: int) -> Any:
        if self.block is not None:
            self.block.resize(size)
        return original(self, size)

    return resize_


def _to_host(original: Callable[..., Any]) -> Callable[..., Any]:
    def cpu(self: Any) -> Any:
        if self.block is None:
            return original(self)
        found = torch.UntypedStorage(self.nbytes())
        return found.copy_(self, False)

    return cpu


def _tag(storage: Any) -> str | None:
    block = getattr(storage, "block", None) or getattr(
        getattr(storage, "_untyped_storage", None), "block", None
    )
    return f"cuda:{block.place}" if block is not None and block.place >= 0 else None


def _restored(storage: Any, location: str) -> Any:
    here = machine()
    if here is None or not str(location).startswith("cuda"):
        return None
    plain = getattr(storage, "_untyped_storage", storage)
    here.hold(plain, int(_validated(location, "cuda").index))
    return storage


def _validated(location: Any, backend_name: str) -> torch.device:
    here = machine()
    found = torch.device(location) if here is None else here.device_of(location)
    if here is not None and found.type == "cuda":
        return found
    raise RuntimeError(
        f"Attempting to deserialize object on a {found} device where there is none; use "
        "torch.load with map_location=torch.device('cpu') to map your storages to the CPU."
    )
