"""What frozen parameters spare: kernels of backward, and what these would need of forward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from simdp.workload.graph import Graph
from simdp.workload.layers import Kernel
from simdp.workload.layers.base import Kept, Shape


def matching(patterns: Sequence[str], names: Iterable[str]) -> frozenset[str]:
    """Names that match one of some patterns, as in an optimizer's groups."""
    return frozenset(n for n in names if any(fnmatchcase(n, pattern) for pattern in patterns))


def ends_match(name: str, targets: Sequence[str]) -> bool:
    """Whether the end of a layer's dotted name, or all of it, matches one of some patterns."""
    return bool(matching([*targets, *(f"*.{target}" for target in targets)], [name]))


def with_frozen(graph: Graph, patterns: Sequence[str]) -> Graph:
    """Freeze the parameters of a graph that match, beside those that are frozen already."""
    found = matching(patterns, [parameter.name for parameter in graph.parameters])
    return replace(graph, frozen=graph.frozen | found)


def backward_kernels(
    graph: Graph, number: int, inputs: Sequence[Shape], itemsize: int
) -> list[Kernel]:
    """Kernels of a call's backward, without those that only frozen parameters would need.

    They are those that run where no input wants a gradient, in layers of which that is true
    (`Layer.splits_backward`); other layers are charged whole. Where each parameter has a kernel,
    those of frozen ones are left out; else all, if all parameters are frozen.

    Parameters
    ----------
    graph : Graph
        The model's.
    number : int
        Of the call.
    inputs, itemsize
        As of `Layer.backward_cost`.
    """
    layer, needs = graph.calls[number].layer, graph.needs[number]
    if not graph.frozen:
        return layer.backward_cost(inputs, itemsize, needs)
    if not graph.flows[number]:
        return []
    kernels = layer.backward_cost(inputs, itemsize, needs)
    names, learned = layer.ready_order(), graph.learned(number)
    if len(learned) == len(names) or not layer.splits_backward:
        return kernels
    of_parameters = layer.backward_cost(inputs, itemsize, [False] * len(needs))
    spared = of_parameters if not learned else []
    if len(of_parameters) == len(names):
        pairs = zip(names, of_parameters, strict=True)
        spared = [kernel for name, kernel in pairs if name not in learned]
    return list((Counter(kernels) - Counter(spared)).elements())


def kept_of(graph: Graph, number: int, inputs: Sequence[Shape], itemsize: int) -> Kept:
    """What a call keeps for backward, without what only frozen parameters would need.

    A product needs its input for its weight's gradient alone, and a call through which no gradient
    flows needs nothing.
    """
    layer = graph.calls[number].layer
    if not graph.frozen:
        return layer.kept(inputs, itemsize)
    if not graph.flows[number]:
        return Kept()
    matrices = [p.name for p in layer.parameters() if len(p.shape) > 1]
    if layer.keeps_for_weights and graph.frozen.issuperset(matrices):
        return Kept()
    return layer.kept(inputs, itemsize)


def learned_elements(graph: Graph, number: int) -> int:
    """Elements of a call's parameters that are not frozen."""
    learned = set(graph.learned(number))
    layer = graph.calls[number].layer
    return sum(p.num_elements for p in layer.parameters() if p.name in learned)
