"""Fused: the kernels of a model whose elementwise calls are compiled, chain by chain."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from simdp.workload.chains import Chain, Fused
from simdp.workload.frozen import kept_of, learned_elements
from simdp.workload.graph import Graph, Value
from simdp.workload.layers import Kernel
from simdp.workload.layers.add import Add
from simdp.workload.layers.base import Shape


class Flowing(NamedTuple):
    """What flows through a graph.

    Attributes
    ----------
    graph : Graph
        The model's.
    shapes : sequence of Shape
        Of each value, per sample.
    itemsizes : sequence of int
        Bytes per element of each value.
    """

    graph: Graph
    shapes: Sequence[Shape]
    itemsizes: Sequence[int]

    def nbytes(self, value: Value) -> float:
        """Bytes of a value, per sample."""
        return float(prod(self.shapes[value]) * self.itemsizes[value])


def fuse(activity: str, plain: Sequence[list[Kernel]], flowing: Flowing) -> list[list[Kernel]]:
    """Put one kernel, at the last of its calls, in place of those of each chain.

    Forward reads what enters a chain and writes what leaves it. Backward reads the gradients of
    what leaves, and from what backward's slopes are computed; it writes the gradients of what
    enters: of terms of a sum, which have the same, one, or none if that is there. Gradients of
    weights are sums over all rows, by one more kernel for each call that learns, which reads two
    tensors of its size.

    Parameters
    ----------
    activity : {"forward", "backward"}
        Which.
    plain : sequence of list of Kernel
        Of each call, one by one: the arithmetic stays.
    flowing : Flowing
        The tensors.
    """
    found, fused = list(plain), Fused(flowing.graph)
    for chain in fused.chains:
        kernels = [kernel for number in chain.calls for kernel in plain[number]]
        for number in chain.calls:
            found[number] = []
        if kernels:  # else it hands on what it gets
            flops = sum(kernel.flops for kernel in kernels)
            of = _forward if activity == "forward" else _backward
            found[chain.calls[-1]] = of(chain, flops, flowing, fused)
    return found


def _forward(chain: Chain, flops: float, flowing: Flowing, fused: Fused) -> list[Kernel]:
    moved = sum(map(flowing.nbytes, (*chain.reads, *chain.writes)))
    return [Kernel(flops, moved, sum(_learned(flowing, number) for number in chain.calls))]


def _backward(chain: Chain, flops: float, flowing: Flowing, fused: Fused) -> list[Kernel]:
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
