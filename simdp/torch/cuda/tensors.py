"""Tensors: what ``torch.Tensor`` answers of the virtual device that it is on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from simdp.torch.cuda.machine import Machine, machine
from simdp.torch.cuda.moving import copied, moved, place_of
from simdp.torch.cuda.patches import Patches
from simdp.torch.cuda.tags import CPU, UNCLAIMED, block_of

_HOST_DEVICE = torch._C.TensorBase.device.__get__


def patch(patches: Patches) -> None:
    """Put the methods of tensors in place."""
    tensor = torch.Tensor
    patches.put(torch.UntypedStorage, "block", None)
    patches.put(torch.UntypedStorage, "bucket", False)
    patches.put(torch.UntypedStorage, "pinned", False)
    patches.put(torch.UntypedStorage, "mask", False)
    patches.put(tensor, "device", property(device))
    patches.put(tensor, "is_cuda", property(lambda self: device(self).type == "cuda"))
    patches.put(tensor, "is_cpu", property(lambda self: device(self).type == "cpu"))
    patches.put(tensor, "get_device", _get_device)
    patches.wrap(tensor, "to", _to)
    patches.wrap(tensor, "cuda", _cuda)
    patches.wrap(tensor, "cpu", _cpu)
    patches.wrap(tensor, "pin_memory", _pin_memory)
    patches.wrap(tensor, "is_pinned", _is_pinned)
    patches.wrap(tensor, "type", _type)
    patches.wrap(torch._C, "_group_tensors_by_device_and_dtype", _grouped)
    for name in ("numpy", "__array__"):
        patches.wrap(tensor, name, _of_host_only)
    for name in ("tolist", "__dlpack__"):
        patches.wrap(tensor, name, _waited_for)


def device(self: Any) -> torch.device:
    """Where a tensor is, as scripts see it."""
    here = machine()
    block = None if here is None else block_of(self)
    if here is None or block is None:
        found: torch.device = _HOST_DEVICE(self)
        return CPU if here is not None and here.fake and found.type == "meta" else found
    if block is UNCLAIMED:
        return here.devices[here.place].device if here.devices else CPU
    return block.device


def _get_device(self: Any) -> int:
    return place_of(self)


def target(here: Machine, asked: Any) -> int | None:
    """The number of a device that a script names, -1 for the CPU; None for others, as meta."""
    found = here.device_of(asked)
    if found.type == "cuda":
        return int(found.index)
    return -1 if found.type == "cpu" else None


def _to(original: Callable[..., Any]) -> Callable[..., Any]:
    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        here = machine()
        if here is None or (args and isinstance(args[0], torch.dtype)):
            return original(self, *args, **kwargs)
        if args and isinstance(args[0], torch.Tensor):
            args = (args[0].device, args[0].dtype, *args[1:])
        copy = kwargs.pop("copy", len(args) > 3 and args[3])
        if args and isinstance(args[0], int):
            args = (here.device_of(args[0]), *args[1:])
        asked, dtype, non_blocking, layout = torch._C._nn._parse_to(*args[:3], **kwargs)
        there = None if asked is None else target(here, asked)
        rest = {} if layout is None else {"memory_format": layout}
        before = place_of(self)
        if asked is None or (there is not None and there == before):
            return original(self, dtype or self.dtype, copy=copy, **rest)
        if there is None or (self.is_meta and not here.fake) or not _is_plain(self):
            return original(self, asked, dtype or self.dtype, non_blocking, copy, **rest)
        found = moved(here, self, there, not (non_blocking and is_pinned(self)))
        if (dtype is None or dtype == found.dtype) and not rest:
            return found
        return original(found, dtype or found.dtype, **rest)

    return to


def _is_plain(tensor: Any) -> bool:
    """Whether a tensor is no wrapper, whose own operators move what it holds."""
    return getattr(type(tensor), "__torch_dispatch__", None) is torch.Tensor.__torch_dispatch__


def _cuda(original: Callable[..., Any]) -> Callable[..., Any]:
    def cuda(self: Any, device: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
        here = machine()
        if here is None:
            return original(self, device, non_blocking, **kwargs)
        return self.to(here.device_of(device), non_blocking=non_blocking, **kwargs)

    return cuda


def _cpu(original: Callable[..., Any]) -> Callable[..., Any]:
    def cpu(self: Any, **kwargs: Any) -> Any:
        return original(self, **kwargs) if machine() is None else self.to(CPU, **kwargs)

    return cpu


def is_pinned(tensor: Any) -> bool:
    """Whether a tensor of the host lies where devices can read by themselves."""
    return bool(tensor.untyped_storage().pinned)


def _pin_memory(original: Callable[..., Any]) -> Callable[..., Any]:
    def pin_memory(self: Any, device: Any = None) -> Any:
        here = machine()
        if here is None:
            return original(self)
        if place_of(self) >= 0:
            raise RuntimeError(f"cannot pin '{self.type()}' only dense CPU tensors can be pinned")
        if is_pinned(self):
            return self
        found = copied(here, self, -1)
        found.untyped_storage().pinned = True
        return found

    return pin_memory


def _is_pinned(original: Callable[..., Any]) -> Callable[..., Any]:
    def answer(self: Any, device: Any = None) -> bool:
        return bool(original(self)) if machine() is None else is_pinned(self)

    return answer


def _type(original: Callable[..., Any]) -> Callable[..., Any]:
    def answer(self: Any, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
        here = machine()
        if here is None:
            return original(self, dtype, non_blocking, **kwargs)
        if dtype is None:
            found = original(self)
            return found.replace("torch.", "torch.cuda.", 1) if place_of(self) >= 0 else found
        name = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", "")
        if name.startswith("torch.cuda."):
            converted = original(self, name.replace("cuda.", ""), **kwargs)
            return converted.cuda(non_blocking=non_blocking)
        return original(self, dtype, non_blocking, **kwargs)

    return answer


def _of_host_only(original: Callable[..., Any]) -> Callable[..., Any]:
    def answer(self: Any, *args: Any, **kwargs: Any) -> Any:
        if machine() is not None and place_of(self) >= 0:
            raise TypeError(
                f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to "
                "copy the tensor to host memory first."
            )
        return original(self, *args, **kwargs)

    return answer


def _waited_for(original: Callable[..., Any]) -> Callable[..., Any]:
    def answer(self: Any, *args: Any, **kwargs: Any) -> Any:
        here = machine()
        if here is not None and (place := place_of(self)) >= 0:
            here.synchronize(place)
        return original(self, *args, **kwargs)

    return answer


def _grouped(original: Callable[..., Any]) -> Callable[..., Any]:
    """How optimizers and clipping sort their tensors."""

    def group(lists: Any, with_indices: bool = False) -> Any:
        here = machine()
        if here is None or not here.used:
            return original(lists, with_indices)
        found: dict[Any, Any] = {}
        for number, first in enumerate(lists[0]):
            key = (first.device, first.dtype)
            columns, indices = found.setdefault(key, ([[] for _ in lists], []))
            for column, tensors in zip(columns, lists, strict=True):
                if tensors:
                    column.append(tensors[number])
            if with_indices:
                indices.append(number)
        return found

    return group
