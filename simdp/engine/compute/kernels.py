"""Kernels besides those of layers: casts, additions, attention's parts, and fused chains."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from simdp.workload import Workload
from simdp.workload.finetuning import kept_of, learned_elements
from simdp.workload.layers.attention import Attention
from simdp.workload.layers.base import Kernel, ModelGraph, Shape, Value
from simdp.workload.layers.batchnorm import BatchNormSettings
from simdp.workload.layers.tensor_ops import Add
from simdp.workload.precision import numpy_dtype

INDEX = 8
"""Bytes of a target, and of a batch norm's counter: int64."""


class Flow(NamedTuple):
    """Values of a model: their shapes per sample, and the dtype of each call."""

    workload: Workload
    shapes: Sequence[Shape]
    ran: Sequence[str]

    @property
    def graph(self) -> ModelGraph:
        """The model's graph."""
        return self.workload.graph

    @property
    def full(self) -> int:
        """Bytes of an element in the workload's own dtype."""
        return numpy_dtype(self.workload.dtype).itemsize

    def itemsize(self, value: Value) -> int:
        """Bytes of a value's element."""
        made_by = value - len(self.graph.inputs)
        return self.full if made_by < 0 else numpy_dtype(self.ran[made_by]).itemsize

    def elements(self, value: Value) -> float:
        """Elements of a value, per sample."""
        return float(prod(self.shapes[value]))


def with_those_beside(
    kernels_of_calls: Sequence[Sequence[Kernel]], activity: str, flow: Flow
) -> list[list[Kernel]]:
    """Kernels of each call, and those that torch runs around it.

    Forward: inputs in another dtype than autocast's are cast; a batch norm counts its batches;
    plain attention scales and masks its scores. Backward: the same casts and products again; values
    used by several calls, and parameters shared by several layers, have several gradients, which
    are added.
    """
    sums = _sums(flow) if activity == "backward" else {}
    shared = _shared(flow) if activity == "backward" else {}
    return [
        [*kernels, *_around(number, activity, flow), *sums.get(number, ()), *shared.get(number, ())]
        for number, kernels in enumerate(kernels_of_calls)
    ]


def _around(number: int, activity: str, flow: Flow) -> list[Kernel]:
    call, needs = flow.graph.calls[number], flow.graph.needs[number]
    layer, inside = call.layer, numpy_dtype(flow.ran[number]).itemsize
    kernels = _casts_of_weights(number, activity, flow, inside) if layer.autocast == "lower" else []
    for value, wanted in zip(call.inputs, needs, strict=True):
        if value < len(flow.graph.inputs) and isinstance(layer, Attention):
            continue  # tokens for the mask
        if value >= len(flow.graph.inputs) and flow.workload.precision.wide_units:
            continue  # cast where it leaves or enters a unit
        outside = flow.itemsize(value)
        # Sums accept inputs of two dtypes, and backward casts the gradient of one.
        casts = layer.autocast != "promote" or activity == "backward"
        if outside != inside and casts and (activity == "forward" or wanted):
            kernels.append(Kernel(0.0, flow.elements(value) * (outside + inside)))
    if isinstance(layer, Attention):
        kernels += _of_attention(layer, activity, flow, call.inputs, inside)
    if isinstance(layer, BatchNormSettings) and layer.track_running_stats:
        kernels += [Kernel(0.0, 0.0, 2.0 * INDEX)] * (activity == "forward")
    return kernels


def _casts_of_weights(number: int, activity: str, flow: Flow, inside: int) -> list[Kernel]:
    """Casts of each parameter, or of its gradient."""
    precision, dtype = flow.workload.precision, flow.workload.dtype
    stored = numpy_dtype(precision.weight_dtype(dtype)).itemsize
    layer = flow.graph.calls[number].layer
    sizes = {parameter.name: parameter.num_elements for parameter in layer.parameters()}
    names = list(sizes) if activity == "forward" else flow.graph.learned(number)
    casts = [Kernel(0.0, 0.0, float(sizes[name] * (stored + inside))) for name in names]
    return casts if inside < stored else []


def _of_attention(
    layer: Attention, activity: str, flow: Flow, inputs: Sequence[Value], inside: int
) -> list[Kernel]:
    """Kernels that scale and mask scores, or join the gradients of packed inputs."""
    if layer.implementation == "eager":
        scores = layer.scores([flow.shapes[value] for value in inputs])
        steps = 1 + (layer.causal or layer.pad_id is not None)
        return [Kernel(0.0, 2.0 * scores * inside)] * steps
    packed = len(inputs) - (layer.pad_id is not None) == 1 and activity == "backward"
    return [Kernel(0.0, 2.0 * flow.elements(inputs[0]) * inside)] * packed


def _sums(flow: Flow) -> dict[int, list[Kernel]]:
    """Additions of gradients of one value, at the call that produces the last of them."""
    takers: dict[Value, list[int]] = {}
    graph = flow.graph
    for number, (call, needs) in enumerate(zip(graph.calls, graph.needs, strict=True)):
        for value, wanted in zip(call.inputs, needs, strict=True):
            if wanted:
                takers.setdefault(value, []).append(number)
    sums: dict[int, list[Kernel]] = {}
    for value, numbers in takers.items():
        size = flow.elements(value) * flow.itemsize(value)
        sums.setdefault(numbers[0], []).extend([Kernel(0.0, 3 * size)] * (len(numbers) - 1))
    return sums


def _shared(flow: Flow) -> dict[int, list[Kernel]]:
    """Additions of gradients of one parameter, at the call that produces the last of them."""
    graph, additions = flow.graph, dict[int, list[Kernel]]()
    sizes = {parameter.name: parameter.num_elements for parameter in graph.parameters}
    first: dict[str, int] = {}
    itemsize = numpy_dtype(flow.workload.precision.gradient_dtype(flow.workload.dtype)).itemsize
    for number in range(len(graph.calls)):
        for name in graph.learned(number):
            if name in first:
                addition = Kernel(0.0, 0.0, 3.0 * sizes[name] * itemsize)
                additions.setdefault(first[name], []).append(addition)
            first.setdefault(name, number)
    return additions


def accumulating(workload: Workload) -> list[list[Kernel]]:
    """Additions to gradients of an earlier micro-step, by the call that completes the gradient."""
    graph = workload.graph
    itemsize = numpy_dtype(workload.precision.gradient_dtype(workload.dtype)).itemsize
    sizes = {parameter.name: parameter.num_elements for parameter in graph.parameters}
    return [
        [Kernel(0.0, 0.0, 3.0 * sizes[name] * itemsize) for name in names]
        for names in graph.ready_at
    ]


def kernels_of_loss(activity: str, flow: Flow) -> list[Kernel]:
    """Kernels of a loss on the model's outputs.

    Cross entropy is a log_softmax and the selection of one number per row; backward clears a
    gradient, writes one number per row, and passes through the log_softmax. Autocast runs the
    log_softmax in 16 bits and the rest in 32. Backward begins with a gradient of 1.
    """
    kernels = [Kernel(0.0, 0.0, float(flow.full))] * (activity == "backward")
    for value, _ in flow.graph.outputs:
        kernels += _of_output(activity, value, flow)
    if flow.workload.grad_accum != 1:  # the loss is divided
        kernels.append(Kernel(0.0, 0.0, 2.0 * flow.full))
    return kernels


def _of_output(activity: str, value: Value, flow: Flow) -> list[Kernel]:
    width, full, low = flow.elements(value), flow.full, flow.itemsize(value)
    forward, kind = activity == "forward", flow.workload.loss.kind
    cast = [Kernel(0.0, width * (low + full))] * (low != full)
    if flow.workload.precision.widens_outputs:
        low = full
    if kind not in ("cross_entropy", "nll"):
        return [*cast, Kernel(4 * width, (2 + (not forward)) * width * full)]
    rows = width / flow.shapes[value][-1]
    chosen = Kernel(rows, rows * (INDEX + full))
    cleared = [] if forward else [Kernel(0.0, width * full)]
    if kind == "nll":
        return [*cast, *cleared, chosen]
    passes, flops = (2, 5) if forward else (3, 4)
    return [*cast, *cleared, chosen, Kernel(flops * width, passes * width * low)]


# fuse ---------------------------------------------------------------------------------------------


class Flowing(NamedTuple):
    """Values of a graph: their shapes per sample, and bytes per element."""

    graph: ModelGraph
    shapes: Sequence[Shape]
    itemsizes: Sequence[int]

    def nbytes(self, value: Value) -> float:
        """Bytes of a value, per sample."""
        return float(prod(self.shapes[value]) * self.itemsizes[value])


def fuse(activity: str, plain: Sequence[list[Kernel]], flowing: Flowing) -> list[list[Kernel]]:
    """Replace the kernels of each elementwise chain by one kernel at its last call.

    Forward reads the inputs of a chain and writes its outputs. Backward reads the gradients of the
    outputs, and the values from which slopes are computed; it writes the gradients of the inputs:
    the terms of a sum share one gradient, or none is written if it exists already. Gradients of
    weights are sums over all rows, by one more kernel for each call with parameters, which reads
    two tensors of its size. The arithmetic is that of the ``plain`` kernels.
    """
    from simdp.workload.transforms import Fused  # imports most layers

    kernels_of_calls, fused = list(plain), Fused(flowing.graph)
    for chain in fused.chains:
        kernels = [kernel for number in chain.calls for kernel in plain[number]]
        for number in chain.calls:
            kernels_of_calls[number] = []
        if kernels:  # else it passes its inputs on
            flops = sum(kernel.flops for kernel in kernels)
            of = _forward if activity == "forward" else _backward
            kernels_of_calls[chain.calls[-1]] = of(chain, flops, flowing, fused)
    return kernels_of_calls


def _forward(chain: Any, flops: float, flowing: Flowing, fused: Any) -> list[Kernel]:
    moved = sum(map(flowing.nbytes, (*chain.reads, *chain.writes)))
    return [Kernel(flops, moved, sum(_learned(flowing, number) for number in chain.calls))]


def _backward(chain: Any, flops: float, flowing: Flowing, fused: Any) -> list[Kernel]:
    graph, learning = flowing.graph, list[Kernel]()
    needed, below = dict[Value, None](), dict[Value, Value]()
    taken = {value for number in chain.calls for value in graph.calls[number].inputs}
    for number in chain.calls:
        call, made = graph.calls[number], Value(len(graph.inputs) + number)
        if not graph.flows[number]:
            continue
        given = [flowing.shapes[value] for value in call.inputs]
        kept = kept_of(graph, number, given, flowing.itemsizes[made])
        needed.update(dict.fromkeys(fused.kept(number, kept)))
        hands_on = isinstance(call.layer, Add)
        is_there = hands_on and made in chain.writes and made not in taken
        for value, wanted in zip(call.inputs, graph.needs[number], strict=True):
            if wanted and value in chain.reads and not is_there:
                below[value] = made if hands_on else value
        if learned := learned_elements(graph, number):
            weights = float(learned * flowing.itemsizes[made])
            size = flowing.nbytes(made)
            learning.append(Kernel(2 * prod(flowing.shapes[made]), 2 * size, weights))
    gradients = [*chain.writes, *dict.fromkeys(below.values())]
    moved = sum(map(flowing.nbytes, (*needed, *gradients)))
    fixed = sum(kernel.fixed for kernel in learning)
    return [Kernel(flops, moved, fixed), *learning]


def _learned(flowing: Flowing, number: int) -> float:
    """Bytes of a call's parameters."""
    call, made = flowing.graph.calls[number], len(flowing.graph.inputs) + number
    elements = sum(parameter.num_elements for parameter in call.layer.parameters())
    return float(elements * flowing.itemsizes[made])
