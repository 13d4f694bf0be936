"""Placing: on which device an operator runs, by its arguments, and that of what it returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from simdp.torch.cuda.machine import NOBODY, Machine
from simdp.torch.cuda.tags import CPU, UNCLAIMED

aten = torch.ops.aten

MIXING = {
    aten.copy_.default,
    aten._foreach_copy_.default,
    aten._to_copy.default,
    aten.set_.source_Tensor,
    aten.is_same_size.default,
}
"""What takes tensors of several devices."""

INDEXING = {
    aten.index.Tensor,
    aten.index_put_.default,
    aten.index_put.default,
    aten._index_put_impl_.default,
    aten._unsafe_index.Tensor,
    aten._unsafe_index_put.default,
}
"""What takes indices of the CPU on any device."""

WAITING = {aten._local_scalar_dense.default, aten.nonzero.default}
"""What the host waits for, to know what came out."""


NOWHERE, MADE_BY_TORCH = -2, -3
"""Places of what has no tensors to tell; of tensors that no Python code asked for."""


def placed(
    machine: Machine, func: Any, args: Any, kwargs: Mapping[str, Any]
) -> tuple[int, Mapping[str, Any]]:
    """The device that an operator runs on, and its arguments by name as the CPU takes them.

    Raises
    ------
    RuntimeError
        As torch's, where tensors of two devices meet.
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
            continue  # of an optimizer, whose tensors each stay where they are
        raise RuntimeError(_mixed(func, place, here))
    if "device" in kwargs or machine.asked is not NOBODY:
        return _told(machine, place, kwargs)
    if place == NOWHERE:
        place = MADE_BY_TORCH if machine.asked is NOBODY else -1
    if place >= 0 and func in WAITING:
        machine.synchronize(place)
    return place, kwargs


def _by_reducer() -> bool:
    """Whether DDP puts a gradient into its bucket, which it takes for one of the same device."""
    node: Any = torch._C._current_autograd_node()
    return node is not None and bool(node.name() == "torch::autograd::AccumulateGrad")


def _told(machine: Machine, place: int, kwargs: Mapping[str, Any]) -> tuple[int, Mapping[str, Any]]:
    """Where a factory is told to make a tensor.

    Code of torch's own in C++ sees tensors of the CPU alone, and asks for more of that kind.
    """
    told, changed = kwargs.get("device"), dict(kwargs)
    changed.pop("pin_memory", None)
    asked = machine.asked
    if told is None and asked is not NOBODY:
        told = asked
    if told is not None and told.type == "cuda":
        changed["device"] = CPU
        return int(machine.device_of(told).index), changed
    if told is not None and told.type != "cpu" and not (machine.fake and told.type == "meta"):
        return -1, changed
    if asked is NOBODY:
        return (MADE_BY_TORCH if place == NOWHERE else place), changed
    if asked is None and place != NOWHERE:
        return place, changed
    return -1, changed


def results(machine: Machine, place: int, out: Any) -> None:
    """Put what an operator returned onto its device, and claim what nobody had."""
    if isinstance(out, torch.Tensor):
        _hold(machine, place, out)
    elif isinstance(out, (list, tuple)):
        for inner in out:
            if isinstance(inner, torch.Tensor):
                _hold(machine, place, inner)


def _hold(machine: Machine, place: int, tensor: Any) -> None:
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


def _mixed(func: Any, one: int, other: int) -> str:
    names = ["cpu" if place < 0 else f"cuda:{place}" for place in (one, other)]
    return (
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"{names[0]} and {names[1]}! (when checking arguments in {func._schema.name})"
    )
