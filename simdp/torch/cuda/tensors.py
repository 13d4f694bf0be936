"""Tensors on virtual devices: creation, placement, saving; DTensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from typing import Any

import torch
from torch import serialization
from torch.distributed.device_mesh import DeviceMesh
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
    calls: dict[str, Callable[..., Any]] = {
        "to": _to,
        "cuda": _cuda,
        "cpu": lambda here, original, self, **kwargs: self.to(CPU, **kwargs),
        "pin_memory": _pin_memory,
        "is_pinned": lambda here, original, self, device=None: is_pinned(self),
        "type": _type,
        **dict.fromkeys(("numpy", "__array__"), _refuse_on_device),
        **dict.fromkeys(("tolist", "__dlpack__"), _wait_for),
    }
    for name, call in calls.items():
        patches.wrap(tensor, name, call, machine)
    patches.wrap(torch._C, "_group_tensors_by_device_and_dtype", _group, machine)


def device(self: Any) -> torch.device:
    """Return the device of a tensor, as seen by scripts."""
    here = machine()
    block = None if here is None else block_of(self)
    if here is None or block is None:
        host: torch.device = _HOST_DEVICE(self)
        return CPU if here is not None and here.fake and host.type == "meta" else host
    if block is UNCLAIMED:
        return here.devices[here.place].device if here.devices else CPU
    return block.device


def target(here: VirtualMachine, request: Any) -> int | None:
    """Return the number of a requested device, -1 for the CPU; None for others, as meta."""
    device = here.device_of(request)
    if device.type == "cuda":
        return int(device.index)
    return -1 if device.type == "cpu" else None


def _to(here: VirtualMachine, original: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    if args and isinstance(args[0], torch.dtype):
        return original(tensor, *args, **kwargs)
    if args and isinstance(args[0], torch.Tensor):
        args = (args[0].device, args[0].dtype, *args[1:])
    copy = kwargs.pop("copy", len(args) > 3 and args[3])
    if args and isinstance(args[0], int):
        args = (here.device_of(args[0]), *args[1:])
    device, dtype, non_blocking, layout = torch._C._nn._parse_to(*args[:3], **kwargs)
    there = None if device is None else target(here, device)
    rest = {} if layout is None else {"memory_format": layout}
    if device is None or (there is not None and there == place_of(tensor)):
        return original(tensor, dtype or tensor.dtype, copy=copy, **rest)
    if there is None or (tensor.is_meta and not here.fake) or not _can_move(tensor):
        return original(tensor, device, dtype or tensor.dtype, non_blocking, copy, **rest)
    tensor = moved(here, tensor, there, not (non_blocking and is_pinned(tensor)))
    if (dtype is None or dtype == tensor.dtype) and not rest:
        return tensor
    return original(tensor, dtype or tensor.dtype, **rest)


def _can_move(tensor: Any) -> bool:
    """Return whether a tensor is plain, or a wrapper whose inner tensors are known."""
    plain = getattr(type(tensor), "__torch_dispatch__", None) is torch.Tensor.__torch_dispatch__
    return plain or inner_of(tensor) is not None


def _cuda(
    here: VirtualMachine, original: Any, tensor: Any, device: Any = None,
    non_blocking: bool = False, **kwargs: Any,
) -> Any:  # fmt: skip
    return tensor.to(here.device_of(device), non_blocking=non_blocking, **kwargs)


def is_pinned(tensor: Any) -> bool:
    """Return whether a tensor of the host is in pinned memory."""
    try:
        return bool(tensor.untyped_storage().pinned)
    except NotImplementedError:  # wrappers have no storage
        return is_pinned(inner_of(tensor))


def _pin_memory(here: VirtualMachine, original: Any, tensor: Any, device: Any = None) -> Any:
    if place_of(tensor) >= 0:
        raise RuntimeError(f"cannot pin '{tensor.type()}' only dense CPU tensors can be pinned")
    if is_pinned(tensor):
        return tensor
    pinned = copied(here, tensor, -1)
    pinned.untyped_storage().pinned = True
    return pinned


def _type(
    here: VirtualMachine, original: Any, tensor: Any, dtype: Any = None,
    non_blocking: bool = False, **kwargs: Any,
) -> Any:  # fmt: skip
    if dtype is None:
        name = original(tensor)
        return name.replace("torch.", "torch.cuda.", 1) if place_of(tensor) >= 0 else name
    name = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", "")
    if name.startswith("torch.cuda."):
        converted = original(tensor, name.replace("cuda.", ""), **kwargs)
        return converted.cuda(non_blocking=non_blocking)
    return original(tensor, dtype, non_blocking, **kwargs)


def _refuse_on_device(
    here: VirtualMachine, original: Any, tensor: Any, *args: Any, **kwargs: Any
) -> Any:
    if place_of(tensor) >= 0:
        raise TypeError(
            f"can't convert {tensor.device} device type tensor to numpy. Use Tensor.cpu() to "
            "copy the tensor to host memory first."
        )
    return original(tensor, *args, **kwargs)


def _wait_for(here: VirtualMachine, original: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    if (place := place_of(tensor)) >= 0:
        here.synchronize(place)
    return original(tensor, *args, **kwargs)


def _group(here: VirtualMachine, original: Any, lists: Any, with_indices: bool = False) -> Any:
    """Group tensors of optimizers and clipping by device."""
    if not here.used:
        return original(lists, with_indices)
    groups: dict[Any, Any] = {}
    for number, first in enumerate(lists[0]):
        key = (first.device, first.dtype)
        columns, indices = groups.setdefault(key, ([[] for _ in lists], []))
        for column, tensors in zip(columns, lists, strict=True):
            if tensors:
                column.append(tensors[number])
        if with_indices:
            indices.append(number)
    return groups


# Factories ----------------------------------------------------------------------------------------

METHODS = ("new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros")
"""Methods that create tensors, by default on the same device."""

MADE_LIKE = ("empty", "full", "ones", "rand", "randint", "randn", "zeros")
LIKE = tuple(f"{name}_like" for name in MADE_LIKE)
"""Functions that create a tensor like another one, by default on its device."""

FROM_DATA = ("tensor", "as_tensor", "asarray", "scalar_tensor", "sparse_coo_tensor")
"""Functions that read data of the host."""


def patch_factories(patches: Patches) -> None:
    """Install all factories."""
    constructors = {*_device._device_constructors(), *(getattr(torch, name) for name in FROM_DATA)}
    for constructor in constructors:
        name = getattr(constructor, "__name__", "")
        if name not in FROM_DATA and getattr(torch, name, None) is constructor:
            patches.wrap(torch, name, _create, machine)
    for name in LIKE:
        patches.wrap(torch, name, _create, machine)
    for name in FROM_DATA:
        patches.wrap(torch, name, _read, machine)
    for name in METHODS:
        patches.wrap(torch.Tensor, name, _create_there, machine)
    patches.put(torch.Tensor, "new_tensor", _new_tensor)
    patches.wrap(_device.DeviceContext, "__torch_function__", partial(_in_context, constructors))
    patches.put(torch, "Generator", Generator)


@contextmanager
def _requesting(here: VirtualMachine, device: Any) -> Iterator[Any]:
    """Request a device of operators inside."""
    before = here.requested
    here.requested = None if device is None else here.device_of(device)
    try:
        yield here.requested
    finally:
        here.requested = before


def _create(here: VirtualMachine, original: Any, *args: Any, **kwargs: Any) -> Any:
    pinned = kwargs.pop("pin_memory", False)
    with _requesting(here, kwargs.get("device")) as device:
        if device is not None:
            kwargs["device"] = device
        tensor = original(*args, **kwargs)
    return tensor.pin_memory() if pinned else tensor


def _create_there(
    here: VirtualMachine, original: Any, tensor: Any, *args: Any, device: Any = None, **kwargs: Any
) -> Any:
    named = {} if device is None else {"device": device}
    with _requesting(here, device):
        return original(tensor, *args, **kwargs, **named)


def _read(here: VirtualMachine, original: Any, *args: Any, **kwargs: Any) -> Any:
    device = kwargs.get("device")
    if device is None:
        if args and isinstance(args[0], torch.Tensor) and original is not TENSOR:
            return original(*args, **kwargs)
        modes = torch.overrides._get_current_function_mode_stack()
        contexts = [mode for mode in modes if isinstance(mode, _device.DeviceContext)]
        context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
        device = getattr(contexts[-1] if contexts else context, "device", None)
    there = None if device is None else target(here, device)
    if there is None:
        return original(*args, **kwargs)
    kwargs["device"] = "cpu"
    pinned = kwargs.pop("pin_memory", False)
    wants = kwargs.pop("requires_grad", False)
    with _requesting(here, CPU), torch._C.DisableTorchFunction():
        tensor = original(*args, **kwargs)
    tensor = tensor.to("cpu" if there < 0 else here.devices[there].device)
    tensor = tensor.pin_memory() if pinned else tensor
    return tensor.requires_grad_() if wants else tensor


TENSOR = torch.tensor


def _new_tensor(self: Any, data: Any, *, device: Any = None, dtype: Any = None, **kw: Any) -> Any:
    return torch.tensor(data, dtype=dtype or self.dtype, device=device or self.device, **kw)


def _in_context(
    constructors: set[Any], original: Any, context: Any, func: Any, types: Any, args: Any = (),
    kwargs: Any = None,
) -> Any:  # fmt: skip
    """Let ``with torch.device`` and ``torch.set_default_device`` have their effect on a call."""
    kwargs = kwargs or {}
    if func in constructors and kwargs.get("device") is None:
        kwargs["device"] = context.device
    return func(*args, **kwargs)


META: Any = type(torch._C.Generator)


class _AnyGenerator(META):
    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, torch._C.Generator)


class Generator(torch._C.Generator, metaclass=_AnyGenerator):
    """A generator of a virtual device draws like one of the CPU."""

    def __new__(cls, device: Any = "cpu") -> Any:
        """Create one; its numbers do not depend on its device."""
        here = machine()
        device = torch.device(device) if here is None else here.device_of(device)
        plain = device.type in ("cpu", "cuda")
        generator = torch._C.Generator.__new__(cls, CPU if plain else device)
        generator._asked = device
        return generator

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
        own = -1 if block is None else block.place
        if own == place or block is UNCLAIMED:
            continue
        if place == NOWHERE:
            place, first = own, tensor
            continue
        if func in MIXING:
            if func is aten._foreach_copy_.default or func is aten.copy_.default:
                break
            continue
        if func in INDEXING or tensor.dim() == 0 or first.dim() == 0:
            # A number on the CPU goes with everything.
            if own >= 0 and place < 0 and first.dim() == 0:
                place, first = own, tensor
                continue
            if own < 0:
                continue
        if func.__name__.startswith("_foreach_") or _by_reducer():
            continue  # of an optimizer; its tensors keep their devices
        names = ["cpu" if number < 0 else f"cuda:{number}" for number in (place, own)]
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
    requested = machine.requested
    if wanted is None and requested is not NOT_REQUESTED:
        wanted = requested
    if wanted is not None and wanted.type == "cuda":
        changed["device"] = CPU
        return int(machine.device_of(wanted).index), changed
    if wanted is not None and wanted.type != "cpu" and not (machine.fake and wanted.type == "meta"):
        return -1, changed
    if requested is NOT_REQUESTED:
        return (MADE_BY_TORCH if place == NOWHERE else place), changed
    if requested is None and place != NOWHERE:
        return place, changed
    return -1, changed


def results(machine: VirtualMachine, place: int, out: Any) -> None:
    """Put an operator's results onto its device, and claim unowned storages."""
    for tensor in _tensors((out,), {}):
        _hold(machine, place, tensor)


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
        patches.wrap(storage, name, _copy_storage, machine)
    patches.wrap(storage, "resize_", _resize)
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


def _copy_storage(here: VirtualMachine, original: Any, storage: Any, *memos: Any) -> Any:
    block, copies = storage.block, memos[0].setdefault("torch", {}) if memos else {}
    if block is None:
        return original(storage, *memos)
    if storage._cdata in copies:
        return copies[storage._cdata]
    copy = torch.UntypedStorage(storage.nbytes(), device=_SAVED_DEVICE(storage))
    if copy.device.type == "cpu":
        copy.copy_(storage, False)
    if block.place >= 0:
        here.hold(copy, block.place)
    copies[storage._cdata] = copy
    return copy


def _resize(original: Any, storage: Any, size: int) -> Any:
    if size != storage.nbytes() and in_use(storage):
        raise ProgramError(
            "UntypedStorage.resize_: a pending collective or message uses this memory; wait "
            "for its work first."
        )
    if storage.block is not None:
        storage.block.resize(size)
    return original(storage, size)


def _to_host(original: Any, storage: Any) -> Any:
    if storage.block is None:
        return original(storage)
    return torch.UntypedStorage(storage.nbytes()).copy_(storage, False)


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
    device = torch.device(location) if here is None else here.device_of(location)
    if here is not None and device.type == "cuda":
        return device
    raise RuntimeError(
        f"Attempting to deserialize object on a {device} device where there is none; use "
        "torch.load with map_location=torch.device('cpu') to map your storages to the CPU."
    )


# DTensors -----------------------------------------------------------------------------------------

# torch's C++ code sees wrappers of tensors on the CPU, as it sees plain tensors. What it chooses
# for the CPU needs rules for DTensors that torch has for GPUs only.


def patch_dtensors(patches: Patches) -> None:
    """Install all of it; what imports DTensors, for half a second, with the first mesh."""
    patches.put(torch.Tensor, "_make_wrapper_subclass", staticmethod(_wrapper))
    prepare = cache(partial(_prepare, patches))

    def with_dtensors(here: Any, original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        prepare()
        original(*args, **kwargs)

    patches.wrap(DeviceMesh, "__init__", with_dtensors, machine)


def _prepare(patches: Patches) -> None:
    patches.put(import_module("torch.distributed.tensor._random"), "_rng_tracker", WithoutOffsets())
    propagator = import_module(
        "torch.distributed.tensor"
    ).DTensor._op_dispatcher.sharding_propagator
    register = import_module("torch.distributed.tensor.experimental").register_sharding
    for operator, num_outputs in ATTENTION.items():
        register(operator)(_attention_shardings(operator, num_outputs))
        patches.undo(partial(propagator.op_strategy_funcs.pop, operator))


_MAKE_WRAPPER = torch.Tensor._make_wrapper_subclass


def _wrapper(*args: Any, **kwargs: Any) -> Any:
    """Make a wrapper; for autograd it is on the CPU, and for scripts where its inner tensor is."""
    device = kwargs.get("device")
    if machine() is not None and device is not None and torch.device(device).type == "cuda":
        kwargs["device"] = CPU
    return _MAKE_WRAPPER(*args, **kwargs)


class WithoutOffsets:
    """Lets random operators of a DTensor draw from the rank's generator, as on a mesh of CPUs."""

    distribute_region_enabled = False

    @contextmanager
    def _distribute_region(self, spec: Any, generator: Any = None) -> Iterator[None]:
        yield

    def _manual_seed(self, parallel_seed: int) -> None:
        pass


ATTENTION = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: 2,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: 3,
}
"""Operators of attention on the CPU, and the number of their outputs."""


def _attention_shardings(operator: Any, num_outputs: int) -> Callable[..., Any]:
    """Return torch's rule for GPUs: whole, or split by samples or heads."""
    placements = import_module("torch.distributed.tensor.placement_types")
    names = [argument.name for argument in operator._schema.arguments]

    def shardings(*args: Any, **kwargs: Any) -> list[Any]:
        inputs = [*args, *(kwargs[name] for name in names[len(args) :] if name in kwargs)]
        return [
            ([place] * num_outputs, [place if hasattr(arg, "shape") else None for arg in inputs])
            for place in (placements.Replicate(), placements.Shard(0), placements.Shard(1))
        ]

    return shardings
