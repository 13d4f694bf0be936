"""Tensors on virtual devices: creation, placement, saving."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import serialization
from torch.utils import _device

from simdp.errors import ProgramError
from simdp.torch.buffers import in_use
from simdp.torch.cuda.machine import (
    CPU,
    NOT_REQUESTED,
    UNCLAIMED,
    VirtualMachine,
    block_of,
    copied,
    inner_of,
    machine,
    moved,
    place_of,
)
from simdp.torch.ranks import Patches

# Tensors ------------------------------------------------------------------------------------------

_HOST_DEVICE = torch._C.TensorBase.device.__get__


def patch(patches: Patches) -> None:
    """Install the methods of tensors."""
    tensor = torch.Tensor
    patches.put(torch.UntypedStorage, "block", None)
    patches.put(torch.UntypedStorage, "bucket", False)
    patches.put(torch.UntypedStorage, "pinned", False)
    patches.put(torch.UntypedStorage, "mask", False)
    patches.put(tensor, "device", property(device))
    patches.put(tensor, "is_cuda", property(lambda self: device(self).type == "cuda"))
    patches.put(tensor, "is_cpu", property(lambda self: device(self).type == "cpu"))
    patches.put(tensor, "get_device", lambda self: place_of(self))
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
    """Return the device of a tensor, as seen by scripts."""
    here = machine()
    block = None if here is None else block_of(self)
    if here is None or block is None:
        found: torch.device = _HOST_DEVICE(self)
        return CPU if here is not None and here.fake and found.type == "meta" else found
    if block is UNCLAIMED:
        return here.devices[here.place].device if here.devices else CPU
    return block.device


def target(here: VirtualMachine, asked: Any) -> int | None:
    """Return the number of a requested device, -1 for the CPU; None for others, as meta."""
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
        if there is None or (self.is_meta and not here.fake) or not _can_move(self):
            return original(self, asked, dtype or self.dtype, non_blocking, copy, **rest)
        found = moved(here, self, there, not (non_blocking and is_pinned(self)))
        if (dtype is None or dtype == found.dtype) and not rest:
            return found
        return original(found, dtype or found.dtype, **rest)

    return to


def _can_move(tensor: Any) -> bool:
    """Return whether a tensor is plain, or a wrapper whose inner tensors are known."""
    plain = getattr(type(tensor), "__torch_dispatch__", None) is torch.Tensor.__torch_dispatch__
    return plain or inner_of(tensor) is not None


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
    """Return whether a tensor of the host is in pinned memory."""
    try:
        return bool(tensor.untyped_storage().pinned)
    except NotImplementedError:  # wrappers have no storage
        return is_pinned(inner_of(tensor))


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
    """Group tensors of optimizers and clipping by device."""

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


# Factories ----------------------------------------------------------------------------------------

METHODS = ("new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros")
"""Methods that create tensors, by default on the same device."""

LIKE = (
    "empty_like",
    "full_like",
    "ones_like",
    "rand_like",
    "randint_like",
    "randn_like",
    "zeros_like",
)
"""Functions that create a tensor like another one, by default on its device."""

FROM_DATA = ("tensor", "as_tensor", "asarray", "scalar_tensor", "sparse_coo_tensor")
"""Functions that read data of the host."""


def patch_factories(patches: Patches) -> None:
    """Install all factories."""
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
        device, before = kwargs.get("device"), here.requested
        here.requested = None if device is None else here.device_of(device)
        if device is not None:
            kwargs["device"] = here.requested
        pinned = kwargs.pop("pin_memory", False)
        try:
            found = original(*args, **kwargs)
        finally:
            here.requested = before
        return found.pin_memory() if pinned else found

    factory.__name__ = original.__name__
    factory.__doc__ = original.__doc__
    return factory


def _own_device(original: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        here = machine()
        if here is None:
            return original(self, *args, **kwargs)
        before = here.requested
        device = kwargs.get("device")
        if device is None:
            kwargs.pop("device", None)
        here.requested = None if device is None else here.device_of(device)
        try:
            return original(self, *args, **kwargs)
        finally:
            here.requested = before

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
        before, here.requested = here.requested, CPU
        try:
            with torch._C.DisableTorchFunction():
                made = original(*args, **kwargs)
        finally:
            here.requested = before
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
    """Return the effect of ``with torch.device`` and ``torch.set_default_device`` on a call."""
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
    """A generator of a virtual device draws like one of the CPU."""

    def __new__(cls, device: Any = "cpu") -> Any:
        """Create one; its numbers do not depend on its device."""
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
        """The device that it was created for."""
        return self._asked


# Placing ------------------------------------------------------------------------------------------

aten = torch.ops.aten

MIXING = {
    aten.copy_.default,
    aten._foreach_copy_.default,
    aten._to_copy.default,
    aten.set_.source_Tensor,
    aten.is_same_size.default,
}
"""Operators with tensors of several devices."""

INDEXING = {
    aten.index.Tensor,
    aten.index_put_.default,
    aten.index_put.default,
    aten._index_put_impl_.default,
    aten._unsafe_index.Tensor,
    aten._unsafe_index_put.default,
}
"""Operators that allow indices of the CPU on any device."""

WAITING = {aten._local_scalar_dense.default, aten.nonzero.default}
"""Operators whose result the host waits for."""


NOWHERE, MADE_BY_TORCH = -2, -3
"""Places of operators without tensors, and of tensors that no Python code requested."""


def placed(
    machine: VirtualMachine, func: Any, args: Any, kwargs: Mapping[str, Any]
) -> tuple[int, Mapping[str, Any]]:
    """Return the device of an operator, and its arguments by name for the CPU.

    Raises
    ------
    RuntimeError
        As torch's, for tensors of two devices.
    """
    place = NOWHERE
    for tensor in _tensors(args, kwargs):
        block = _block(tensor)
        here = -1 if block is None else block.place
        if here == place or block is UNCLAIMED:
            continue
        if place == NOWHERE:
            place, first = here, tensor
            continue
        if func in MIXING:
            if func is aten._foreach_copy_.default or func is aten.copy_.default:
                break
            continue
        if func in INDEXING or tensor.dim() == 0 or first.dim() == 0:
            # A number on the CPU goes with everything.
            if here >= 0 and place < 0 and first.dim() == 0:
                place, first = here, tensor
                continue
            if here < 0:
                continue
        if func.__name__.startswith("_foreach_") or _by_reducer():
            continue  # of an optimizer; its tensors keep their devices
        names = ["cpu" if one < 0 else f"cuda:{one}" for one in (place, here)]
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{names[0]} and {names[1]}! (when checking arguments in {func._schema.name})"
        )
    if "device" in kwargs or machine.requested is not NOT_REQUESTED:
        return _factory_device(machine, place, kwargs)
    if place == NOWHERE:
        place = MADE_BY_TORCH if machine.requested is NOT_REQUESTED else -1
    if place >= 0 and func in WAITING:
        machine.synchronize(place)
    return place, kwargs


def _by_reducer() -> bool:
    """Return whether DDP copies a gradient into its bucket, which it assumes on the same device."""
    node: Any = torch._C._current_autograd_node()
    return node is not None and bool(node.name() == "torch::autograd::AccumulateGrad")


def _factory_device(
    machine: VirtualMachine, place: int, kwargs: Mapping[str, Any]
) -> tuple[int, Mapping[str, Any]]:
    """Return the device of a factory call.

    torch's C++ code sees only CPU tensors, and creates more of that kind.
    """
    wanted, changed = kwargs.get("device"), dict(kwargs)
    changed.pop("pin_memory", None)
    asked = machine.requested
    if wanted is None and asked is not NOT_REQUESTED:
        wanted = asked
    if wanted is not None and wanted.type == "cuda":
        changed["device"] = CPU
        return int(machine.device_of(wanted).index), changed
    if wanted is not None and wanted.type != "cpu" and not (machine.fake and wanted.type == "meta"):
        return -1, changed
    if asked is NOT_REQUESTED:
        return (MADE_BY_TORCH if place == NOWHERE else place), changed
    if asked is None and place != NOWHERE:
        return place, changed
    return -1, changed


def results(machine: VirtualMachine, place: int, out: Any) -> None:
    """Put an operator's results onto its device, and claim unowned storages."""
    if isinstance(out, torch.Tensor):
        _hold(machine, place, out)
    elif isinstance(out, (list, tuple)):
        for inner in out:
            if isinstance(inner, torch.Tensor):
                _hold(machine, place, inner)


def _hold(machine: VirtualMachine, place: int, tensor: Any) -> None:
    if tensor.layout is not torch.strided:
        for inner in _parts(tensor):
            _hold(machine, place, inner)
        return
    storage = tensor.untyped_storage()
    block = storage.block
    if place >= 0 and (block is None or block is UNCLAIMED):
        machine.hold(storage, place)
    elif place == MADE_BY_TORCH and block is None and machine.used:
        storage.block = UNCLAIMED


def _parts(tensor: Any) -> tuple[Any, ...]:
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    return ()


def _tensors(args: Any, kwargs: Mapping[str, Any]) -> Any:
    for value in args:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            for inner in value:
                if isinstance(inner, torch.Tensor):
                    yield inner
    for value in kwargs.values():
        if isinstance(value, torch.Tensor):
            yield value


def _block(tensor: Any) -> Any:
    if tensor.layout is torch.strided:
        return tensor.untyped_storage().block
    parts = _parts(tensor)
    return parts[-1].untyped_storage().block if parts else None


# Saving -------------------------------------------------------------------------------------------

FIRST = 0
"""Priority of the reader of tags: before torch's of the CPU (10) and CUDA (20)."""

_SAVED_DEVICE = torch._C.StorageBase.device.__get__


def patch_saving(patches: Patches) -> None:
    """Install all of it."""
    storage = torch.UntypedStorage
    patches.put(storage, "device", property(_saved_device))
    patches.put(storage, "is_cuda", property(lambda self: _saved_device(self).type == "cuda"))
    for name in ("clone", "__deepcopy__"):
        patches.wrap(storage, name, _copied)
    patches.wrap(storage, "resize_", _resized)
    patches.wrap(storage, "cpu", _to_host)
    registry = serialization._package_registry
    before = list(registry)
    serialization.register_package(FIRST, _tag, _restored)
    patches.undo(lambda: registry.__setitem__(slice(None), before))


def _saved_device(self: Any) -> torch.device:
    block = self.block
    if block is None or block is UNCLAIMED:
        return _SAVED_DEVICE(self)
    return torch.device(block.device)


def _copied(original: Callable[..., Any]) -> Callable[..., Any]:
    def copied(self: Any, memo: Any = None) -> Any:
        here, block = machine(), self.block
        if here is None or block is None:
            return original(self) if memo is None else original(self, memo)
        if memo is not None and self._cdata in (known := memo.setdefault("torch", {})):
            return known[self._cdata]
        found = torch.UntypedStorage(self.nbytes(), device=_SAVED_DEVICE(self))
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
        if size != self.nbytes() and in_use(self):
            raise ProgramError(
                "UntypedStorage.resize_: a pending collective or message uses this memory; wait "
                "for its work first."
            )
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
