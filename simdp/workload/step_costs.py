"""FLOPs and bytes of a training step."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from simdp.arrays import Floats
from simdp.workload import Workload
from simdp.workload.execution import call_dtypes
from simdp.workload.layers.base import ModelGraph, Shape
from simdp.workload.optimizers.base import Optimizer, launches_over_lists
from simdp.workload.precision import numpy_dtype

Amount = float | Floats

OF_MATRICES = "bfloat16"

Sizes = Mapping[str, int]
"""Elements of each parameter, by name."""


class DeviceRates(Protocol):
    """Figures of a device used here."""

    @property
    def memory_rate(self) -> float:
        """Memory bandwidth of kernels [bytes/s]."""

    @property
    def stream_rate(self) -> float:
        """Memory bandwidth of updates [bytes/s]."""

    @property
    def launch(self) -> float:
        """Time to launch a kernel [s]."""

    @property
    def peak(self) -> Mapping[str, float]:
        """Peak arithmetic by dtype [FLOP/s]."""

    def rate(self, dtype: str) -> float:
        """Achieved arithmetic [FLOP/s]."""


def gradient_nbytes_moved(workload: Workload, elements: Sizes | None = None) -> float:
    """Bytes read and written between backward and the optimizer: scaling, clipping.

    ``elements`` are those of each parameter; by default all of them.
    """
    passes = 2 * (workload.precision.scaler() is not None)  # unscale: read and write
    passes += 3 * (workload.clip_grad_norm is not None)  # norm: read; clip: read and write
    passes += 2 * (workload.clip_grad_value is not None)  # read and write
    sizes = _elements(workload) if elements is None else elements
    return float(passes * sum(sizes.values()) * workload.gradient_itemsize)


def optimizer_nbytes_moved(workload: Workload, elements: Sizes | None = None) -> float:
    """Bytes that the optimizer reads and writes in one step; as `gradient_nbytes_moved`."""
    sizes = _elements(workload) if elements is None else elements
    return sum(
        workload.optimizer.for_parameter(name).nbytes_moved(size, workload.itemsize)
        for name, size in sizes.items()
    )


def optimizer_launches(workload: Workload, elements: Sizes | None = None) -> int:
    """Kernels that the optimizer's loop over tensors launches in one step; 0 in a CUDA graph."""
    if workload.cuda_graphs:
        return 0
    names = _elements(workload) if elements is None else elements
    return sum(workload.optimizer.for_parameter(name).launches_per_tensor() for name in names)


def optimizer_list_launches(workload: Workload, elements: Sizes | None = None) -> int:
    """Launches of kernels over lists of tensors (torch's ``foreach``, ``fused``) in one step.

    0 in a CUDA graph, and if the optimizer loops over tensors; as `optimizer_launches`.
    """
    if workload.cuda_graphs:
        return 0
    sizes = _elements(workload) if elements is None else elements
    groups: dict[Optimizer, list[int]] = {}
    for name in (p.name for p in workload.graph.parameters if p.name in sizes):
        groups.setdefault(workload.optimizer.for_parameter(name), []).append(sizes[name])
    return sum(list_launches(optimizer, sizes) for optimizer, sizes in groups.items())


def list_launches(optimizer: Optimizer, sizes: Sequence[int]) -> int:
    """Launches of an optimizer's kernels over the list of a group's tensors."""
    depths = Counter(optimizer.list_depths())
    return sum(count * launches_over_lists(sizes, depth) for depth, count in depths.items())


def update_seconds(moving: Amount, launching: Amount, in_loop: Amount = 0.0) -> Amount:
    """Time of an update, without matrix products [s].

    Kernels over lists of tensors are launched while the one before works, so that an update takes
    the longer of ``moving`` its bytes and ``launching``; in a loop over tensors each kernel is too
    short for that.
    """
    return np.maximum(moving, launching) + in_loop


def optimizer_flops(workload: Workload, elements: Sizes | None = None) -> float:
    """Arithmetic of the optimizer's matrix products in one step [FLOP]."""
    if not workload.optimizer.whole_tensors:  # no matrix products
        return 0.0
    names = _elements(workload) if elements is None else elements
    shapes = {parameter.name: parameter.shape for parameter in workload.graph.parameters}
    return sum(workload.optimizer.for_parameter(name).flops(shapes[name]) for name in names)


def matrix_dtype(workload: Workload, devices: Sequence[DeviceRates]) -> str:
    """Dtype of these products: bfloat16, as in torch's Muon, on devices that support it."""
    known = all(OF_MATRICES in device.peak for device in devices)
    return OF_MATRICES if known else workload.dtype


def time_beside_compute(
    workload: Workload, microbatch: int, device: DeviceRates, shards: int | None = None
) -> float:
    """Time of a step on one device besides forward and backward: host, exposed copy, update [s].

    ``microbatch`` is the number of samples of the only micro-step; of ``shards`` of the update the
    device has one.
    """
    whole, shards = _update_of(workload), shards or 1
    rate = device.rate(matrix_dtype(workload, [device])) if whole.flops else 1.0
    copy = workload.input.blocking_time(microbatch) if workload.input else 0.0
    update = update_seconds(
        whole.moved / shards / device.stream_rate,
        whole.over_lists * device.launch,
        whole.in_loop * device.launch,
    )
    scaling = whole.scaled / shards / device.memory_rate
    return float(workload.host.step + copy + scaling + update + whole.flops / shards / rate)


class UpdateCosts(NamedTuple):
    """An update of all parameters: bytes of scaling and of the optimizer, its launches and FLOPs.

    Launches are those over lists of tensors, and those in a loop over tensors.
    """

    scaled: float
    moved: float
    over_lists: int
    in_loop: int
    flops: float


_UPDATES: deque[tuple[Workload, UpdateCosts]] = deque(maxlen=8)


def _update_of(workload: Workload) -> UpdateCosts:
    """The update of a workload, which devices share."""
    for other, costs in _UPDATES:
        if other is workload:
            return costs
    costs = UpdateCosts(
        gradient_nbytes_moved(workload),
        optimizer_nbytes_moved(workload),
        optimizer_list_launches(workload),
        optimizer_launches(workload),
        optimizer_flops(workload),
    )
    _UPDATES.append((workload, costs))
    return costs


def _elements(workload: Workload) -> dict[str, int]:
    """Sizes of the parameters that get gradients, in the order in which these are ready."""
    sizes = {parameter.name: parameter.num_elements for parameter in workload.graph.parameters}
    return {name: sizes[name] for name in workload.graph.ready_order}


# FLOPs --------------------------------------------------------------------------------------------

ITEMSIZE = 4
"""Arbitrary: FLOPs do not depend on it."""


class Flops(NamedTuple):
    """Floating-point operations per sample; a multiply-add counts as two."""

    total: float
    """Of every kernel."""
    products: float
    """Of layers that multiply matrices, such as convolutions, as in publications, which mostly
    count multiply-adds (half as many)."""


def forward_flops(graph: ModelGraph, inputs: Sequence[Shape]) -> Flops:
    """FLOPs of forward on one sample with inputs of these shapes."""
    calls = flops_of_calls(graph, inputs)
    return Flops(sum(call.total for call in calls), sum(call.products for call in calls))


def passes(graph: ModelGraph, number: int) -> int:
    """Number of times a call's products run in training: forward, for its input, its weights.

    Frozen weights need no gradient, nor does an input with nothing trainable before it. Without
    frozen parameters it is 3 everywhere, as in publications.
    """
    if not graph.frozen:
        return 3
    if not graph.flows[number]:
        return 1
    matrices = [p.name for p in graph.calls[number].layer.parameters() if len(p.shape) > 1]
    learns = not matrices or not graph.frozen.issuperset(matrices)
    return 1 + learns + any(graph.needs[number])


def flops_of_calls(graph: ModelGraph, inputs: Sequence[Shape]) -> list[Flops]:
    """FLOPs of forward, call by call, as `forward_flops`."""
    flowing, flops_by_call = graph.shapes(inputs), list[Flops]()
    for call in graph.calls:
        given = [flowing[value] for value in call.inputs]
        flops = sum(kernel.flops for kernel in call.layer.forward_cost(given, ITEMSIZE))
        flops_by_call.append(Flops(flops, call.layer.model_flops(given)))
    return flops_by_call


# Arithmetic ---------------------------------------------------------------------------------------

WIDTH_OF_16_BITS = 2
"""Bytes of bfloat16 and float16."""


def arithmetic_of_calls(workload: Workload) -> list[str]:
    """Arithmetic of each call: its dtype, or what torch takes in its place for products."""
    dtypes = list(call_dtypes(workload.graph, workload.precision, workload.dtype))
    for number, (call, dtype) in enumerate(zip(workload.graph.calls, dtypes, strict=True)):
        layer, compute = call.layer, workload.compute
        in_16_bits = numpy_dtype(dtype).itemsize == WIDTH_OF_16_BITS
        if layer.float8_casts and in_16_bits and compute.runs_in_float8(layer.name):
            dtypes[number] = "float8"
        elif layer.autocast == "lower":
            dtypes[number] = compute.arithmetic(dtype, layer.uses_cudnn)
    return dtypes
