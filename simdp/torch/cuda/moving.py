"""Moves tensors between virtual devices."""

from __future__ import annotations

from typing import Any

import torch

from simdp.torch.cuda.machine import Block, VirtualMachine

# Tags ---------------------------------------------------------------------------------------------

PLAIN = (torch.Tensor, torch.nn.Parameter)

CPU = torch.device("cpu")


class Unclaimed:
    """Of a storage created by autograd: it belongs to the first device that uses it."""

    place, device = -1, CPU
    nbytes = 0

    def resize(self, nbytes: int) -> None:
        """Do nothing; it is not counted yet."""


UNCLAIMED = Unclaimed()


def block_of(tensor: Any) -> Block | Unclaimed | None:
    """Return the block of the tensor's storage on a device; None on the CPU."""
    try:
        found: Block | Unclaimed | None = tensor.untyped_storage().block
    except NotImplementedError:  # sparse tensors have none; nor have wrappers
        inner = inner_of(tensor)
        return None if inner is None else block_of(inner)
    if found is None and type(tensor) not in PLAIN:
        inner = inner_of(tensor)
        return None if inner is None else block_of(inner)
    return found


def inner_of(tensor: Any) -> Any:
    """Return the plain tensor inside a wrapper of another class; None for all others."""
    if tensor.layout in (torch.sparse_coo,):
        return tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc):
        return tensor.values()
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None or type(tensor) in PLAIN:
        return None
    names, _ = flatten()
    return getattr(tensor, names[0]) if names else None


def device_of(tensor: Any) -> torch.device | None:
    """Return the virtual device of a tensor; None on the CPU."""
    found = block_of(tensor)
    return None if found is None or found.place < 0 else found.device


# Moving -------------------------------------------------------------------------------------------


class Moved(torch.autograd.Function):
    """A tensor on another device; its gradient is copied back."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, machine: VirtualMachine, place: int, blocking: bool) -> Any:
        """Copy it."""
        ctx.machine, ctx.back, ctx.blocking = machine, place_of(tensor), blocking
        return copied(machine, tensor, place, blocking)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Copy its gradient."""
        return copied(ctx.machine, grads[0], ctx.back, ctx.blocking), None, None, None


def place_of(tensor: Any) -> int:
    """Return the number of a tensor's device; -1 for the CPU."""
    block = block_of(tensor)
    return -1 if block is None else block.place


def moved(machine: VirtualMachine, tensor: Any, place: int, blocking: bool = True) -> Any:
    """Return a copy of a tensor on another device, through which gradients flow."""
    if tensor.requires_grad and torch.is_grad_enabled():
        return Moved.apply(tensor, machine, place, blocking)
    return copied(machine, tensor, place, blocking)


def copied(machine: VirtualMachine, tensor: Any, place: int, blocking: bool = True) -> Any:
    """Return a copy of a tensor's numbers on another device, and its time."""
    before = place_of(tensor)
    if tensor.layout is not torch.strided:
        raise NotImplementedError(
            f"a tensor of layout {tensor.layout} cannot be moved between virtual devices; make it "
            "dense first, with to_dense()."
        )
    if inner_of(tensor) is not None:
        return _wrapper_copied(machine, tensor, place, blocking)
    with torch._C._DisableTorchDispatch(), torch.no_grad():
        found = tensor.detach().clone()
    if place >= 0:
        machine.hold(found.untyped_storage(), place)
    if machine.used and not machine.quiet and max(before, place) >= 0:
        _take_time(machine, before, place, found.untyped_storage().nbytes(), blocking)
    return found


def _wrapper_copied(machine: VirtualMachine, tensor: Any, place: int, blocking: bool) -> Any:
    """Return the same wrapper, as a DTensor, of copied tensors."""
    names, context = tensor.__tensor_flatten__()
    parts = {name: getattr(tensor, name) for name in names}  # a DTensor's mesh is one of them
    for name, part in parts.items():
        if isinstance(part, torch.Tensor):
            parts[name] = copied(machine, part, place, blocking)
    kind = type(tensor)
    return kind.__tensor_unflatten__(parts, context, tensor.shape, tensor.stride()).detach()


def _take_time(
    machine: VirtualMachine, source: int, target: int, nbytes: float, blocking: bool
) -> None:
    seconds = machine.copying(source, target, nbytes)
    busy = target if target >= 0 else source
    if min(source, target) < 0:
        machine.charge(busy, seconds, "compute")
        if blocking:
            machine.synchronize(busy)
        return
    lanes = [machine.devices[place].lane for place in (source, target)]
    end = max(machine.clock(lane) for lane in lanes) + seconds
    for lane in lanes:
        machine.hold_back(lane, end)
