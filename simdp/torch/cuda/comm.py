"""torch.cuda.comm, nn.DataParallel and SyncBatchNorm on virtual devices.

Variances are those of the batch, as computed by CUDA's kernels; sums may be in another order.

Copies of the model run one after the other here, and concurrently on the virtual clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib import import_module
from math import gcd
from typing import Any

import torch
import torch.cuda.comm as cuda_comm
import torch.distributed
from torch._utils import ExceptionWrapper, _flatten_dense_tensors, _unflatten_dense_tensors
from torch.nn.parallel import _functions, comm

from simdp.torch.cuda.machine import VirtualMachine, copied, machine, place_of
from simdp.torch.cuda.queries import device as device_guard
from simdp.torch.cuda.queries import here, index_of
from simdp.torch.cuda.streams import Stream, current_stream
from simdp.torch.kernels import OperatorKernels, Sizes, tensors_in
from simdp.torch.ranks import Patches


def patch_several(patches: Patches) -> None:
    """Split coalesced broadcasts by device."""
    patches.wrap(torch.distributed, "_broadcast_coalesced", _device_by_device, machine)


def _device_by_device(
    here: VirtualMachine, real: Any, group: Any, tensors: Any, *others: Any
) -> None:
    # Not named as a method of the group: pybind11 takes such a caller for that method itself.
    parts: dict[int, list[Any]] = {}
    for tensor in tensors:
        parts.setdefault(place_of(tensor), []).append(tensor)
    for part in parts.values():
        real(group, part, *others)


# Sync batch norm ----------------------------------------------------------------------------------


def patch_sync_batch_norm(patches: Patches) -> None:
    """Let SyncBatchNorm run on virtual devices."""
    for function, passes in FUNCTIONS.items():
        patches.wrap(torch, function.__name__, partial(_charged, function, passes), machine)


def _charged(
    function: Callable[..., Any], passes: tuple[float, float], here: VirtualMachine, real: Any,
    first: Any, *others: Any,
) -> Any:  # fmt: skip
    """Call the function at the cost of one kernel, in FLOPs and passes per number."""
    place = place_of(first)
    if place < 0:
        return real(first, *others)
    with here.silence():
        out = function(first, *others)
    kernel = Sizes(passes[0] * first.numel(), passes[1] * first.numel())
    seconds = here.devices[place].speed.seconds(
        OperatorKernels((kernel,)), first.dtype, first.element_size()
    )
    backward = torch._C._current_graph_task_id() >= 0
    here.charge(place, seconds, "backward" if backward else "forward")
    return out


def _axes(x: Any) -> list[int]:
    return [0, *range(2, x.ndim)]


def _along(values: Any, x: Any) -> Any:
    """Return numbers of the channels, shaped to broadcast over a batch."""
    return values.view(1, -1, *[1] * (x.ndim - 2))


def batch_norm_stats(x: Any, eps: float) -> tuple[Any, Any]:
    """Return mean and 1 / standard deviation of each channel."""
    variance, mean = torch.var_mean(x, _axes(x), correction=0)
    return mean, (variance + eps).rsqrt()


def batch_norm_gather_stats_with_counts(
    x: Any,
    means: Any,
    inverses: Any,
    running_mean: Any,
    running_var: Any,
    momentum: float,
    eps: float,
    counts: Any,
) -> tuple[Any, Any]:
    """Return mean and 1 / standard deviation over all ranks, each with its mean and its count."""
    weights = counts.view(-1, 1).to(means.dtype)
    count = weights.sum()
    mean = (means * weights).sum(0) / count
    squares = inverses.reciprocal().square() - eps + (means - mean).square()
    variance = (squares * weights).sum(0) / count
    if running_mean is not None:
        running_mean.mul_(1 - momentum).add_(mean, alpha=momentum)
        unbiased = variance * count / (count - 1)
        running_var.mul_(1 - momentum).add_(unbiased.to(running_var.dtype), alpha=momentum)
    return mean, (variance + eps).rsqrt()


def batch_norm_elemt(x: Any, weight: Any, bias: Any, mean: Any, inverse: Any, eps: float) -> Any:
    """Apply the statistics."""
    y = (x - _along(mean, x)) * _along(inverse, x)
    if weight is not None:
        y = y * _along(weight, x) + _along(bias, x)
    return y.to(x.dtype)


def batch_norm_backward_reduce(
    dy: Any,
    x: Any,
    mean: Any,
    inverse: Any,
    weight: Any,
    of_input: bool,
    of_weight: bool,
    of_bias: bool,
) -> tuple[Any, Any, Any, Any]:
    """Return a rank's sums of the gradients, and of these times the centred input."""
    sums = dy.sum(_axes(dy)).to(mean.dtype)
    projected = (dy * (x - _along(mean, x))).sum(_axes(dy)).to(mean.dtype)
    kind = mean.dtype if weight is None else weight.dtype
    return sums, projected, (projected * inverse).to(kind), sums.to(kind)


def batch_norm_backward_elemt(
    dy: Any,
    x: Any,
    mean: Any,
    inverse: Any,
    weight: Any,
    sums: Any,
    projected: Any,
    counts: Any,
) -> Any:
    """Return the input's gradient, from the sums of all ranks."""
    count = counts.sum()
    share = _along(projected / count * inverse.square(), x)
    slope = dy - _along(sums / count, x) - (x - _along(mean, x)) * share
    scale = inverse if weight is None else inverse * weight
    return (slope * _along(scale, x)).to(x.dtype)


FUNCTIONS: dict[Callable[..., Any], tuple[float, float]] = {
    batch_norm_stats: (4.0, 1.0),
    batch_norm_gather_stats_with_counts: (0.0, 0.0),
    batch_norm_elemt: (4.0, 2.0),
    batch_norm_backward_reduce: (4.0, 2.0),
    batch_norm_backward_elemt: (5.0, 3.0),
}
"""FLOPs and passes over the batch, as `simdp.workload.layers.batchnorm` counts them."""


BUFFER = 10 * 2**20
"""Size of the buffers of broadcast tensors (torch: buffer_size) [bytes]."""

GIL = 1.0
"""Fraction of a kernel's launch for which its thread holds the interpreter lock, as by default in
``strategy: data_parallel``."""


def patch(patches: Patches) -> None:
    """Install all of them."""
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
    """Return the stream of batch copies in virtual time: the one that waits for them."""
    return current_stream(device) if device.type == "cuda" else None


def _put(machine: VirtualMachine, tensor: Any, place: int) -> Any:
    """Return the numbers of a tensor on a device, at no cost."""
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
    copies = tuple(tensors[0] for tensors in broadcast_coalesced([tensor], places))
    return copies if out is None else _written(out, copies)


def broadcast_coalesced(
    tensors: Sequence[Any], devices: Sequence[Any], buffer_size: int = BUFFER
) -> list[tuple[Any, ...]]:
    """Copy tensors of one device to several devices, in buffers."""
    machine, places = here("comm.broadcast_coalesced"), [index_of(device) for device in devices]
    if not tensors:
        return [() for _ in places]
    root = place_of(tensors[0])
    others = [place for place in places if place != root]
    for nbytes in _buffers(tensors, buffer_size, fits=False) if others else ():
        if root < 0:
            machine.keep_busy(others, machine.copying(-1, others[0], nbytes))
        else:
            seconds = machine.links.collective("broadcast", root, others, nbytes)
            machine.keep_busy([root, *others], seconds)
    return [
        tuple(tensors)
        if place == root
        else tuple(_put(machine, tensor, place) for tensor in tensors)
        for place in places
    ]


def _buffers(tensors: Sequence[Any], most: int, fits: bool) -> list[float]:
    """Return the bytes of each buffer, which closes before a tensor that does not fit.

    Without ``fits`` one is full when it holds at least ``most``.
    """
    buffers = [0.0]
    for tensor in tensors:
        size = _nbytes([tensor])
        full = buffers[-1] + size > most if fits else buffers[-1] >= most
        if buffers[-1] and full:
            buffers.append(0.0)
        buffers[-1] += size
    return buffers


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
    copies = tuple(
        piece if place == root else _put(machine, piece, place)
        for piece, place in zip(pieces, places, strict=True)
    )
    _spread(machine, root, pieces, places, back=False)
    return copies if out is None else _written(out, copies)


def _spread(
    machine: VirtualMachine, root: int, pieces: Sequence[Any], places: Sequence[int], back: bool
) -> None:
    """Let time pass for pieces that go from one device to others, or back."""
    sizes = [0] * len(machine.devices)
    for piece, place in zip(pieces, places, strict=True):
        if place >= 0:
            sizes[place] += int(_nbytes([piece]))
    if root < 0:
        for place in set(places):
            machine.keep_busy([place], machine.copying(-1, place, float(sizes[place])))
        return
    whole = float(sum(sizes))
    if whole and set(places) != {root}:
        links, unit = machine.links, gcd(*sizes)
        parts = [size // unit for size in sizes]
        machine.keep_busy([root, *places], links.spread(root, parts, whole, back))


def gather(
    tensors: Sequence[Any], dim: int = 0, destination: Any = None, *, out: Any = None
) -> Any:
    """Copy tensors of several devices to one, concatenated along an axis."""
    machine = here("comm.gather")
    places = [place_of(tensor) for tensor in tensors]
    root = -1 if str(destination) == "cpu" else index_of(destination)
    if out is not None:
        root = place_of(out)
    if root < 0:
        for tensor, place in zip(tensors, places, strict=True):
            machine.keep_busy([place], machine.copying(place, -1, _nbytes([tensor])))
    else:
        _spread(machine, root, tensors, places, back=True)
    with machine.silence():
        there = [
            t if p == root else _put(machine, t, root) for t, p in zip(tensors, places, strict=True)
        ]
        whole = torch.cat(there, dim)
    return whole if out is None else _written([out], [whole])[0]


def _written(out: Sequence[Any], sources: Sequence[Any]) -> tuple[Any, ...]:
    for target, source in zip(out, sources, strict=True):
        target.copy_(source)
    return tuple(out)


# All to one ---------------------------------------------------------------------------------------


def reduce_add(inputs: Sequence[Any], destination: Any = None) -> Any:
    """Sum tensors of several devices on one of them, in their order, this one's first.

    Raises
    ------
    RuntimeError
        As torch's, if there is none.
    """
    return reduce_add_coalesced([[tensor] for tensor in inputs], destination)[0]


def reduce_add_coalesced(
    inputs: Sequence[Sequence[Any]], destination: Any = None, buffer_size: int = BUFFER
) -> tuple[Any, ...]:
    """Sum lists of tensors of several devices on one of them.

    Raises
    ------
    RuntimeError
        As torch's, if there is none.
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
    for nbytes in _buffers(inputs[0], buffer_size, fits=True):
        machine.keep_busy(places, machine.links.collective("reduce", root, places, nbytes))
    sums = []
    with machine.silence():
        for number, own in enumerate(inputs[first]):
            total = own + _put(machine, others[0][number], root)
            for more in others[1:]:
                total.add_(_put(machine, more[number], root))
            sums.append(total)
        return tuple(_unflatten_dense_tensors(_flatten_dense_tensors(sums), sums))


def parallel_apply(
    modules: Sequence[Any],
    inputs: Sequence[Any],
    kwargs_tup: Sequence[dict[str, Any]] | None = None,
    devices: Sequence[Any] | None = None,
) -> list[Any]:
    """Apply each module to its input, on its device, concurrently on the virtual clock."""
    machine = here("parallel_apply")
    named = kwargs_tup or [{}] * len(modules)
    chosen = devices or [None] * len(modules)
    for what, values in (("inputs", inputs), ("kwargs_tup", named), ("devices", chosen)):
        if len(values) != len(modules):
            raise AssertionError(
                f"The number of modules {len(modules)} is not equal to the number of {what} "
                f"{len(values)}"
            )
    outputs = []
    before = machine.launches
    machine.launches = 1 + GIL * (len(modules) - 1)
    try:
        for number, (module, args) in enumerate(zip(modules, inputs, strict=True)):
            args = args if isinstance(args, (list, tuple)) else (args,)
            place = next(map(place_of, tensors_in(args)), 0)
            if chosen[number] is not None:
                place = index_of(chosen[number])
            with device_guard(place):
                try:
                    outputs.append(module(*args, **named[number]))
                except Exception:
                    ExceptionWrapper(where=f"in replica {number} on device {place}").reraise()
    finally:
        machine.launches = before
    return outputs
