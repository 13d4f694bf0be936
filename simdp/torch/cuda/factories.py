"""Factories: functions that make tensors where they are told to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _device

from simdp.torch.cuda.machine import machine
from simdp.torch.cuda.patches import Patches
from simdp.torch.cuda.tags import CPU
from simdp.torch.cuda.tensors import target

METHODS = ("new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros")
"""Methods of tensors that make others, by default on their own device."""

LIKE = (
    "empty_like",
    "full_like",
    "ones_like",
    "rand_like",
    "randint_like",
    "randn_like",
    "zeros_like",
)
"""Functions that make a tensor like another one, by default on its device."""

FROM_DATA = ("tensor", "as_tensor", "asarray", "scalar_tensor", "sparse_coo_tensor")
"""What reads data of the host."""


def patch(patches: Patches) -> None:
    """Put all factories in place."""
    made: dict[Any, Callable[..., Any]] = {}
    constructors: list[Any] = list(_device._device_constructors())
    for original in constructors:
        name = getattr(original, "__name__", "")
        there: Any = getattr(torch, name, None)
        if name in FROM_DATA or there is not original:
            continue
        asking = made[original] = _asking(there)
        patches.put(torch, name, asking)
    for name in LIKE:
        patches.wrap(torch, name, _asking)
    for name in FROM_DATA:
        reader: Any = getattr(torch, name)
        made[reader] = _from_data(reader)
        patches.put(torch, name, made[reader])
    for name in METHODS:
        patches.wrap(torch.Tensor, name, _own_device)
    patches.wrap(torch.Tensor, "new_tensor", lambda original: _new_tensor)
    patches.put(_device.DeviceContext, "__torch_function__", _in_context(made))
    patches.put(torch, "Generator", Generator)


def _asking(original: Callable[..., Any]) -> Callable[..., Any]:
    def factory(*args: Any, **kwargs: Any) -> Any:
        here = machine()
        if here is None:
            return original(*args, **kwargs)
        device, before = kwargs.get("device"), here.asked
        here.asked = None if device is None else here.device_of(device)
        if device is not None:
            kwargs["device"] = here.asked
        pinned = kwargs.pop("pin_memory", False)
        try:
            found = original(*args, **kwargs)
        finally:
            here.asked = before
        return found.pin_memory() if pinned else found

    factory.__name__ = original.__name__
    factory.__doc__ = original.__doc__
    return factory


def _own_device(original: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        here = machine()
        if here is None:
            return original(self, *args, **kwargs)
        before = here.asked
        device = kwargs.get("device")
        if device is None:
            kwargs.pop("device", None)
        here.asked = None if device is None else here.device_of(device)
        try:
            return original(self, *args, **kwargs)
        finally:
            here.asked = before

    return method


def _from_data(original: Callable[..., Any]) -> Callable[..., Any]:
    def factory(*args: Any, **kwargs: Any) -> Any:
        here = machine()
        if here is None:
            return original(*args, **kwargs)
        device = kwargs.get("device")
        if device is None:
            if args and isinstance(args[0], torch.Tensor) and original is not TENSOR:
                return original(*args, **kwargs)
            context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
            modes = torch.overrides._get_current_function_mode_stack()
            contexts = [mode for mode in modes if isinstance(mode, _device.DeviceContext)]
            found = contexts[-1] if contexts else context
            device = None if found is None else found.device
        there = None if device is None else target(here, device)
        if there is None:
            return original(*args, **kwargs)
        kwargs["device"] = "cpu"
        pinned = kwargs.pop("pin_memory", False)
        wants = kwargs.pop("requires_grad", False)
        before, here.asked = here.asked, CPU
        try:
            with torch._C.DisableTorchFunction():
                made = original(*args, **kwargs)
        finally:
            here.asked = before
        made = made.to("cpu" if there < 0 else here.devices[there].device)
        made = made.pin_memory() if pinned else made
        return made.requires_grad_() if wants else made

    factory.__name__ = original.__name__
    factory.__doc__ = original.__doc__
    return factory


TENSOR = torch.tensor


def _new_tensor(self: Any, data: Any, *, device: Any = None, dtype: Any = None, **kw: Any) -> Any:
    return torch.tensor(data, dtype=dtype or self.dtype, device=device or self.device, **kw)


def _in_context(made: dict[Any, Any]) -> Callable[..., Any]:
    """What ``with torch.device(...)`` and ``torch.set_default_device`` do to a call."""
    constructors = set(_device._device_constructors()) | set(made)

    def call(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in constructors and kwargs.get("device") is None:
            kwargs["device"] = self.device
        return func(*args, **kwargs)

    return call


META: Any = type(torch._C.Generator)


class _AnyGenerator(META):
    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, torch._C.Generator)


class Generator(torch._C.Generator, metaclass=_AnyGenerator):
    """A generator of a virtual device draws as one of the CPU does."""

    def __new__(cls, device: Any = "cpu") -> Any:
        """Make one; which device it is for makes no difference to its numbers."""
        here = machine()
        asked = torch.device(device) if here is None else here.device_of(device)
        plain = asked.type in ("cpu", "cuda")
        found = torch._C.Generator.__new__(cls, torch.device("cpu") if plain else asked)
        found._asked = asked
        return found

    def __init__(self, device: Any = "cpu") -> None:
        """As `__new__`."""

    @property
    def device(self) -> torch.device:
        """The device that it was made for."""
        found: torch.device = self._asked
        return found
