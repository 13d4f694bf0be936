"""What ``workload.quantized`` does to a model: weights of linear layers in 4 bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeGuard

from simdp.workload.frozen import ends_match
from simdp.workload.graph import Call, Graph
from simdp.workload.layers import Layer
from simdp.workload.layers.linear import Linear
from simdp.workload.layers.quantized_linear import QuantizedLinear
from simdp.workload.quantized import Quantized


def can_be_stored(layer: Layer, targets: Sequence[str]) -> TypeGuard[Linear]:
    """Whether a layer's weight is one of those that are stored in 4 bits."""
    return isinstance(layer, Linear) and ends_match(layer.name, targets)


def in_4_bits(graph: Graph, chosen: Quantized, itemsize: int) -> Graph:
    """Store the weights of some linear layers of a graph in 4 bits.

    Parameters
    ----------
    graph : Graph
        The model's.
    chosen : Quantized
        Which, and how.
    itemsize : int
        Bytes of the numbers that they are packed into: those of the other weights.
    """
    more = {"storage_itemsize": itemsize, "block": chosen.block, "double": chosen.double}
    other: dict[int, Layer] = {
        id(layer): QuantizedLinear(**layer.model_dump(exclude={"kind"}), **more)
        for layer in graph.registered
        if can_be_stored(layer, chosen.targets)
    }
    return replace(
        graph,
        registered=tuple(other.get(id(layer), layer) for layer in graph.registered),
        calls=tuple(Call(other.get(id(c.layer), c.layer), c.inputs) for c in graph.calls),
    )


def stored_weights(graph: Graph) -> list[str]:
    """Names of the weights that are stored in 4 bits."""
    layers = [layer for layer in graph.registered if isinstance(layer, QuantizedLinear)]
    return [layer.parameters()[0].name for layer in layers]
