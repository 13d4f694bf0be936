"""Communication between the devices of one process: ``torch.nn.parallel.comm``, DataParallel.

Copies of the model run one after the other here, and beside each other on the virtual clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from math import gcd
from typing import Any

import torch
import torch.cuda.comm as cuda_comm
from torch._utils import ExceptionWrapper, _flatten_dense_tensors, _unflatten_dense_tensors
from torch.nn.parallel import _functions, comm

from simdp.torch.cuda.machine import Machine
from simdp.torch.cuda.moving import copied, place_of
from simdp.torch.cuda.patches import Patches
from simdp.torch.cuda.queries import device as device_guard
from simdp.torch.cuda.queries import here, index_of
from simdp.torch.cuda.streams import Stream, current_stream

BUFFER = 10 * 2**20
"""Tensors are copied out together up to so many bytes (torch: buffer_size)."""

GIL = 1.0
"""The part of a kernel's launch for which its thread holds the interpreter's lock, as by default in
``strategy: data_parallel``."""


def patch(patches: Patches) -> None:
    """Put all of them in place."""
    functions = (broadcast, broadcast_coalesced, reduce_add, reduce_add_coalesced, scatter, gather)
    for function in functions:
        patches.put(comm, function.__name__, function)
        patches.put(cuda_comm, function.__name__, function)
    for module in ("parallel_apply", "data_parallel"):
        owner = import_module(f"torch.nn.parallel.{module}")
        patches.put(owner, "parallel_apply", parallel_apply)
    patches.put(torch.nn.parallel, "parallel_apply", parallel_apply)
    patches.put(_functions, "_get_stream", _current)


def _current(device: torch.device) -> Stream | None:
    """The stream on which batches are copied, as time is counted here: that which waits for it."""
    return current_stream(device) if device.type == "cuda" else None


# Time ---------------------------------------------------------------------------------------------


def _together(machine: Machine, places: Iterable[int], seconds: float) -> None:
    """Let the current streams of devices be busy with one another, from when all are ready."""
    if not machine.quiet:
        lanes = [machine.devices[place].lane for place in sorted(set(places))]
        end = max(machine.clock(lane) for lane in lanes) + seconds
        for lane in lanes:
            machine.hold_back(lane, end)


def _put(machine: Machine, tensor: Any, place: int) -> Any:
    """The numbers of a tensor on a device, at no cost."""
    with machine.silence():
        return copied(machine, tensor, place)


def _nbytes(tensors: Iterable[Any]) -> float:
    return float(sum(tensor.numel() * tensor.element_size() for tensor in tensors))


# One to all ---------------------------------------------------------------------------------------


def broadcast(tensor: Any, devices: Any = None, *, out: Any = None) -> tuple[Any, ...]:
    """Copy a tensor to devices.

    Raises
    ------
    RuntimeError
        As torch's, unless either devices or ``out`` is given.
    """
    if (devices is None) == (out is None):
        raise RuntimeError(
            "Exactly one of 'devices' and 'out' must be specified, but got "
            f"devices={devices} and out={out}"
        )
    places = [index_of(d) for d in devices] if out is None else [place_of(t) for t in out]
    found = [copies[0] for copies in broadcast_coalesced([tensor], places)]
    return tuple(found) if out is None else _written(out, found)


def broadcast_coalesced(
    tensors: Sequence[Any], devices: Sequence[Any], buffer_size: int = BUFFER
) -> list[tuple[Any, ...]]:
    """Copy tensors of one device to several devices, those together that fit into a buffer."""
    machine, places = here("comm.broadcast_coalesced"), [index_of(device) for device in devices]
    if not tensors:
        return [() for _ in places]
    root = place_of(tensors[0])
    others = [place for place in places if place != root]
    for nbytes in _buffers(tensors, buffer_size) if others else ():
        if root < 0:
            seconds = machine.copying(-1, others[0], nbytes)
            _together(machine, others, seconds)
        else:
            seconds = machine.links.collective("broadcast", root, others, nbytes)
            _together(machine, [root, *others], seconds)
    return [
        tuple(tensors)
        if place == root
        else tuple(_put(machine, tensor, place) for tensor in tensors)
        for place in places
    ]


def _buffers(tensors: Sequence[Any], most: int) -> list[float]:
    """Bytes of each buffer; one is full when it holds as much or more than it may."""
    found = [0.0]
    for tensor in tensors:
        if found[-1] >= most:
            found.append(0.0)
        found[-1] += _nbytes([tensor])
    return found


def scatter(
    tensor: Any, devices: Any = None, chunk_sizes: Any = None, dim: int = 0, streams: Any = None,
    *, out: Any = None,
) -> tuple[Any, ...]:  # fmt: skip
    """Cut a tensor, and copy each device's piece there."""
    machine, root = here("comm.scatter"), place_of(tensor)
    if out is not None:
        devices = [place_of(piece) for piece in out]
        chunk_sizes = [piece.size(dim) for piece in out]
    places = [index_of(device) for device in devices]
    with machine.silence():
        if chunk_sizes is None:
            pieces = tensor.chunk(len(places), dim)
        else:
            pieces = tensor.split(list(chunk_sizes), dim)
    places = places[: len(pieces)]
    found = tuple(
        piece if place == root else _put(machine, piece, place)
        for piece, place in zip(pieces, places, strict=True)
    )
    _spread(machine, root, pieces, places, back=False)
    return found if out is None else _written(out, found)


def _spread(
    machine: Machine, root: int, pieces: Sequence[Any], places: Sequence[int], back: bool
) -> None:
    """Let time pass for pieces that go from one device to others, or back."""
    sizes = [0] * len(machine.devices)
    for piece, place in zip(pieces, places, strict=True):
        if place >= 0:
            sizes[place] += int(_nbytes([piece]))
    if root < 0:
        for place in set(places):
            _together(machine, [place], machine.copying(-1, place, float(sizes[place])))
        return
    whole = float(sum(sizes))
    if whole and set(places) != {root}:
        links = machine.links
        seconds = (links.gather if back else links.scatter)(root, _parts(sizes), whole)
        _together(machine, [root, *places], seconds)


def _parts(sizes: Sequence[int]) -> list[int]:
    """Sizes as few equal parts."""
    unit = gcd(*sizes)
    return [size // unit for size in sizes]


def gather(
    tensors: Sequence[Any], dim: int = 0, destination: Any = None, *, out: Any = None
) -> Any:
    """Copy tensors of several devices to one, one behind the other along an axis."""
    machine = here("comm.gather")
    places = [place_of(tensor) for tensor in tensors]
    root = -1 if str(destination) == "cpu" else index_of(destination)
    if out is not None:
        root = place_of(out)
    if root < 0:
        for tensor, place in zip(tensors, places, strict=True):
            _together(machine, [place], machine.copying(place, -1, _nbytes([tensor])))
    else:
        _spread(machine, root, tensors, places, back=True)
    with machine.silence():
        there = [
            t if p == root else _put(machine, t, root) for t, p in zip(tensors, places, strict=True)
        ]
        found = torch.cat(there, dim)
    return found if out is None else _written([out], [found])[0]


def _written(out: Sequence[Any], found: Sequence[Any]) -> tuple[Any, ...]:
    for target, source in zip(out, found, strict=True):
        target.copy_(source)
    return tuple(out)


# All to one ---------------------------------------------------------------------------------------


def reduce_add(inputs: Sequence[Any], destination: Any = None) -> Any:
    """Sum tensors of several devices on one of them, in their order, this one's first.

    Raises
    ------
    RuntimeError
        As torch's, if none is there.
    """
    return reduce_add_coalesced([[tensor] for tensor in inputs], destination)[0]


def reduce_add_coalesced(
    inputs: Sequence[Sequence[Any]], destination: Any = None, buffer_size: int = BUFFER
) -> tuple[Any, ...]:
    """Sum lists of tensors of several devices on one of them.

    Raises
    ------
    RuntimeError
        As torch's, if none is there.
    """
    machine, root = here("comm.reduce_add_coalesced"), index_of(destination)
    places = [place_of(tensors[0]) for tensors in inputs]
    if root not in places:
        raise RuntimeError(
            "reduce_add expects destination to be on the same GPU with one of the tensors"
        )
    first = places.index(root)
    if len(inputs) == 1:
        return tuple(inputs[0])
    others = [tensors for number, tensors in enumerate(inputs) if number != first]
    for nbytes in _closed_buffers(inputs[0], buffer_size):
        seconds = machine.links.collective("reduce", root, places, nbytes)
        _together(machine, places, seconds)
    found = []
    with machine.silence():
        for number, own in enumerate(inputs[first]):
            total = own + _put(machine, others[0][number], root)
            for more in others[1:]:
                total.add_(_put(machine, more[number], root))
            found.append(total)
        flat = _unflatten_dense_tensors(_flatten_dense_tensors(found), found)
    return tuple(flat)


def _closed_buffers(tensors: Sequence[Any], most: int) -> list[float]:
    """Bytes of each buffer; one closes before the tensor that would not fit."""
    found = [0.0]
    for tensor in tensors:
        size = _nbytes([tensor])
        if found[-1] and found[-1] + size > most:
            found.append(0.0)
        found[-1] += size
    return found


# Forward on all -----------------------------------------------------------------------------------


def parallel_apply(
    modules: Sequence[Any],
    inputs: Sequence[Any],
    kwargs_tup: Sequence[dict[str, Any]] | None = None,
    devices: Sequence[Any] | None = None,
) -> list[Any]:
    """Apply each module to its input, on its device, all at once on the virtual clock."""
    machine = here("parallel_apply")
    named = kwargs_tup or [{}] * len(modules)
    chosen = devices or [None] * len(modules)
    for what, given in (("inputs", inputs), ("kwargs_tup", named), ("devices", chosen)):
        if len(given) != len(modules):
            raise AssertionError(
                f"The number of modules {len(modules)} is not equal to the number of {what} "
                f"{len(given)}"
            )
    found = []
    before = machine.launches
    machine.launches = 1 + GIL * (len(modules) - 1)
    try:
        for number, (module, given) in enumerate(zip(modules, inputs, strict=True)):
            place = index_of(chosen[number]) if chosen[number] is not None else _first(given)
            args = given if isinstance(given, (list, tuple)) else (given,)
            with device_guard(place):
                try:
                    found.append(module(*args, **named[number]))
                except Exception:
                    ExceptionWrapper(where=f"in replica {number} on device {place}").reraise()
    finally:
        machine.launches = before
    return found


def _first(value: Any) -> int:
    """The device of the first tensor among arguments."""
    if isinstance(value, torch.Tensor):
        return place_of(value)
    inner = value.values() if isinstance(value, dict) else value
    return next(
        (_first(one) for one in inner if isinstance(one, (torch.Tensor, list, tuple, dict))), 0
    )
