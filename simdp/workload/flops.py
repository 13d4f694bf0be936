"""FLOPs of a whole model's forward: what its kernels add up to. Their seconds are the engine's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from simdp.workload.graph import Graph
from simdp.workload.layers.base import Shape

ITEMSIZE = 4
"""Any would do: FLOPs do not depend on it."""


class Flops(NamedTuple):
    """Floating-point operations per sample; a multiply-add counts as two.

    Attributes
    ----------
    total : float
        Of every kernel.
    products : float
        Of layers that multiply matrices, such as convolutions: what publications count, mostly as
        multiply-adds, of which there are half as many.
    """

    total: float
    products: float


def forward_flops(graph: Graph, inputs: Sequence[Shape]) -> Flops:
    """FLOPs of forward on one sample whose inputs have these shapes."""
    found = flops_of_calls(graph, inputs)
    return Flops(sum(one.total for one in found), sum(one.products for one in found))


def passes(graph: Graph, number: int) -> int:
    """How often a call's products run in training: forward, for its input, and for its weights.

    What is frozen needs no gradient of weights, and no gradient of an input with nothing learned
    below it. Without anything frozen it is 3 everywhere, as publications count.
    """
    if not graph.frozen:
        return 3
    if not graph.flows[number]:
        return 1
    matrices = [p.name for p in graph.calls[number].layer.parameters() if len(p.shape) > 1]
    learns = not matrices or not graph.frozen.issuperset(matrices)
    return 1 + learns + any(graph.needs[number])


def flops_of_calls(graph: Graph, inputs: Sequence[Shape]) -> list[Flops]:
    """FLOPs of forward, call by call; as `forward_flops`."""
    flowing, found = graph.shapes(inputs), list[Flops]()
    for call in graph.calls:
        given = [flowing[value] for value in call.inputs]
        flops = sum(kernel.flops for kernel in call.layer.forward_cost(given, ITEMSIZE))
        found.append(Flops(flops, call.layer.model_flops(given)))
    return found
