"""Beside: kernels that eager torch runs between layers, which these do not count as theirs.

Charged where ``compute: {kind: roofline, kernels: torch}`` asks for them. Each tensor is counted
once per kernel; additions, casts and fills have no arithmetic to speak of.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from simdp.workload import Workload
from simdp.workload.graph import Graph, Value
from simdp.workload.layers import Kernel
from simdp.workload.layers.attention import Attention
from simdp.workload.layers.base import Shape
from simdp.workload.layers.batch_norm import BatchNormSettings
from simdp.workload.precision.rounding import numpy_dtype

INDEX = 8
"""Bytes of a target, and of a batch norm's counter: int64."""


class Flow(NamedTuple):
    """What flows through a model.

    Attributes
    ----------
    workload : Workload
        With the model.
    shapes : sequence of Shape
        Of each value, per sample.
    ran : sequence of str
        The dtype that each call runs in.
    """

    workload: Workload
    shapes: Sequence[Shape]
    ran: Sequence[str]

    @property
    def graph(self) -> Graph:
        """The model's."""
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
        """Of a value, per sample."""
        return float(prod(self.shapes[value]))


def with_those_beside(
    found: Sequence[Sequence[Kernel]], activity: str, flow: Flow
) -> list[list[Kernel]]:
    """Kernels of each call, and those that torch runs around it.

    Forward: inputs in another dtype than autocast wants are cast; a batch norm counts its batches;
    plain attention scales and masks its scores. Backward: the same casts and products again; what
    several calls took, or several layers share, has one gradient of each, which are added.
    """
    sums = _sums(flow) if activity == "backward" else {}
    shared = _shared(flow) if activity == "backward" else {}
    return [
        [*kernels, *_around(number, activity, flow), *sums.get(number, ()), *shared.get(number, ())]
        for number, kernels in enumerate(found)
    ]


def _around(number: int, activity: str, flow: Flow) -> list[Kernel]:
    call, needs = flow.graph.calls[number], flow.graph.needs[number]
    layer, inside = call.layer, numpy_dtype(flow.ran[number]).itemsize
    found = _casts_of_weights(number, activity, flow, inside) if layer.autocast == "lower" else []
    for value, wanted in zip(call.inputs, needs, strict=True):
        if value < len(flow.graph.inputs) and isinstance(layer, Attention):
            continue  # tokens, of which a mask is made
        if value >= len(flow.graph.inputs) and flow.workload.precision.wide_units:
            continue  # cast where it leaves its unit, or enters another
        outside = flow.itemsize(value)
        # Sums take inputs of two dtypes as they are, and backward casts the gradient of one.
        casts = layer.autocast != "promote" or activity == "backward"
        if outside != inside and casts and (activity == "forward" or wanted):
            found.append(Kernel(0.0, flow.elements(value) * (outside + inside)))
    if isinstance(layer, Attention):
        found += _of_attention(layer, activity, flow, call.inputs, inside)
    if isinstance(layer, BatchNormSettings) and layer.track_running_stats:
        found += [Kernel(0.0, 0.0, 2.0 * INDEX)] * (activity == "forward")
    return found


def _casts_of_weights(number: int, activity: str, flow: Flow, inside: int) -> list[Kernel]:
    """Of each parameter, and of its gradient."""
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
    """Scores are scaled and masked; gradients of what a fused kernel took packed are joined."""
    if layer.implementation == "eager":
        scores = layer.scores([flow.shapes[value] for value in inputs])
        steps = 1 + (layer.causal or layer.pad_id is not None)
        return [Kernel(0.0, 2.0 * scores * inside)] * steps
    packed = len(inputs) - (layer.pad_id is not None) == 1 and activity == "backward"
    return [Kernel(0.0, 2.0 * flow.elements(inputs[0]) * inside)] * packed


def _sums(flow: Flow) -> dict[int, list[Kernel]]:
    """Additions of gradients of one value, at the call that hands on the last of them."""
    takers: dict[Value, list[int]] = {}
    graph = flow.graph
    for number, (call, needs) in enumerate(zip(graph.calls, graph.needs, strict=True)):
        for value, wanted in zip(call.inputs, needs, strict=True):
            if wanted:
                takers.setdefault(value, []).append(number)
    found: dict[int, list[Kernel]] = {}
    for value, numbers in takers.items():
        size = flow.elements(value) * flow.itemsize(value)
        found.setdefault(numbers[0], []).extend([Kernel(0.0, 3 * size)] * (len(numbers) - 1))
    return found


def _shared(flow: Flow) -> dict[int, list[Kernel]]:
    """Additions of gradients of one parameter, at the call that hands on the last of them."""
    graph, found = flow.graph, dict[int, list[Kernel]]()
    sizes = {parameter.name: parameter.num_elements for parameter in graph.parameters}
    first: dict[str, int] = {}
    itemsize = numpy_dtype(flow.workload.precision.gradient_dtype(flow.workload.dtype)).itemsize
    for number in range(len(graph.calls)):
        for name in graph.learned(number):
            if name in first:
                addition = Kernel(0.0, 0.0, 3.0 * sizes[name] * itemsize)
                found.setdefault(first[name], []).append(addition)
            first.setdefault(name, number)
    return found


def accumulating(workload: Workload) -> list[list[Kernel]]:
    """Additions to gradients that an earlier micro-step has left, by the call that learns."""
    graph = workload.graph
    itemsize = numpy_dtype(workload.precision.gradient_dtype(workload.dtype)).itemsize
    sizes = {parameter.name: parameter.num_elements for parameter in graph.parameters}
    return [
        [Kernel(0.0, 0.0, 3.0 * sizes[name] * itemsize) for name in names]
        for names in graph.ready_at
    ]


def kernels_of_loss(activity: str, flow: Flow) -> list[Kernel]:
    """What a loss launches, of the model's outputs as they are.

    Cross entropy is a log_softmax and the choice of a number of each row; backward clears a
    gradient, puts a number into each row, and goes through the log_softmax. Autocast runs the
    log_softmax in 16 bits and the rest in 32. Backward begins with a gradient of 1.
    """
    found = [Kernel(0.0, 0.0, float(flow.full))] * (activity == "backward")
    for value, _ in flow.graph.outputs:
        found += _of_output(activity, value, flow)
    if flow.workload.grad_accum != 1:  # the loss is divided
        found.append(Kernel(0.0, 0.0, 2.0 * flow.full))
    return found


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
