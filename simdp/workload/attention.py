"""What ``attention: eager`` or ``flash`` does to a model: which kernels its attention runs in."""

from __future__ import annotations

from dataclasses import replace

from simdp.workload.graph import Call, Graph
from simdp.workload.layers import Layer
from simdp.workload.layers.attention import Attention, Implementation


def in_kernels(graph: Graph, implementation: Implementation) -> Graph:
    """Make every attention of a graph one of this kind, with the same numbers."""
    other: dict[int, Layer] = {
        id(call.layer): call.layer.model_copy(update={"implementation": implementation})
        for call in graph.calls
        if has_kernels(call.layer)
    }
    return replace(
        graph,
        registered=tuple(other.get(id(layer), layer) for layer in graph.registered),
        calls=tuple(Call(other.get(id(c.layer), c.layer), c.inputs) for c in graph.calls),
    )


def has_kernels(layer: Layer) -> bool:
    """Whether there are two ways to run a layer."""
    return isinstance(layer, Attention)
