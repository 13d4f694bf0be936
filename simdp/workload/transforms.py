"""Transformations of a graph: adapters, frozen and quantized layers, SyncBatchNorm, fusion.

Inductor fuses operations element by element or row by row: norms, activations, sums, dropout,
rotary embeddings. Values inside a chain are never written; backward computes them again. Matrix
products, pooling, look-ups and layers that exchange numbers between ranks stay separate kernels.
Blocks are compiled one by one, so that no chain leaves its block.

References
----------
Ansel et al., "PyTorch 2: faster machine learning through dynamic Python bytecode transformation and
graph compilation", ASPLOS 2024, sections 4.2 and 6.5; "regional compilation" in torch's tutorials.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias, TypeGuard

from simdp.workload.finetuning import Lora, Quantized, ends_match
from simdp.workload.layers.attention import Attention, Implementation
from simdp.workload.layers.base import (
    Call,
    Kept,
    Layer,
    ModelGraph,
    Parameter,
    Synchronised,
    Value,
    constant,
)
from simdp.workload.layers.batchnorm import BatchNorm, SyncBatchNorm
from simdp.workload.layers.embedding import EmbeddingTable
from simdp.workload.layers.linear import Linear, QuantizedLinear, TransposedLinear
from simdp.workload.layers.operator import TimedLayer
from simdp.workload.layers.pooling import AveragePool, Upsample, WindowPool
from simdp.workload.layers.tensor_ops import Add, Dropout, Scale


def evaluated(graph: ModelGraph) -> ModelGraph:
    """Switch every layer to torch's ``eval()`` mode, and drop calls that only training needs.

    Dropout does nothing, batch norm uses its running statistics, and auxiliary outputs, which only
    a loss takes, are not computed. The tensors stay, in their order.
    """
    other: dict[int, Layer] = {id(layer): layer.evaluated() for layer in graph.registered}
    output, weight = graph.outputs[0]
    needed = _needed(graph, output)
    first = len(graph.inputs)
    place = {value: Value(value) for value in range(first)}
    calls = []
    for number in needed:
        call = graph.calls[number]
        calls.append(Call(other[id(call.layer)], tuple(place[value] for value in call.inputs)))
        place[first + number] = Value(first + len(calls) - 1)
    return replace(
        graph,
        registered=tuple(other[id(layer)] for layer in graph.registered),
        calls=tuple(calls),
        outputs=((place[output], weight),),
    )


def _needed(graph: ModelGraph, output: Value) -> list[int]:
    """Numbers of the calls that a value depends on, ascending."""
    first = len(graph.inputs)
    needed: set[int] = set()
    waiting = [output]
    while waiting:
        number = waiting.pop() - first
        if number >= 0 and number not in needed:
            needed.add(number)
            waiting += graph.calls[number].inputs
    return sorted(needed)


# Adapters -----------------------------------------------------------------------------------------

Adapted: TypeAlias = Linear | TransposedLinear
"""Layers that can have an adapter."""


class ZeroLinear(Linear):
    """A linear map with a weight that starts at 0."""

    def parameters(self) -> list[Parameter]:
        return [parameter._replace(initial=constant(0.0)) for parameter in super().parameters()]


def is_target(layer: Layer, targets: Sequence[str]) -> TypeGuard[Adapted]:
    """Whether a layer gets an adapter."""
    return isinstance(layer, Linear | TransposedLinear) and ends_match(layer.name, targets)


def adapted(graph: ModelGraph, lora: Lora) -> ModelGraph:
    """Add adapters to a graph, and freeze its original parameters."""
    adapters = {
        id(layer): (layer, _Adapter(layer, lora))
        for layer in (*graph.registered, *(call.layer for call in graph.calls))
        if is_target(layer, lora.targets)
    }
    registered: list[Layer] = []
    for layer in graph.registered:
        registered.append(layer)
        if id(layer) in adapters:
            registered += adapters[id(layer)][1].layers()
    first, calls = len(graph.inputs), list[Call]()
    place = {Value(number): Value(number) for number in range(first)}
    for number, call in enumerate(graph.calls):
        inputs = tuple(place[value] for value in call.inputs)
        calls.append(Call(call.layer, inputs))
        if id(call.layer) in adapters:
            calls += adapters[id(call.layer)][1].calls(inputs[0], first + len(calls))
        place[Value(first + number)] = Value(first + len(calls) - 1)
    return replace(
        graph,
        registered=tuple(registered),
        calls=tuple(calls),
        outputs=tuple((place[value], weight) for value, weight in graph.outputs),
        frozen=frozenset(parameter.name for parameter in graph.parameters),
    )


class _Adapter:
    """The layers of an adapter."""

    def __init__(self, layer: Adapted, lora: Lora) -> None:
        name, rank = layer.name, lora.rank
        fan_in, fan_out = layer.in_features, layer.out_features
        self.dropout = (
            [Dropout(name=f"{name}.lora_dropout.default", p=lora.dropout)] if lora.dropout else []
        )
        self.a = Linear(
            name=f"{name}.lora_A.default", in_features=fan_in, out_features=rank, bias=False
        )
        self.b = ZeroLinear(
            name=f"{name}.lora_B.default", in_features=rank, out_features=fan_out, bias=False
        )
        self.scale = Scale(name=f"{name}.scaling", factor=lora.alpha / rank)
        self.add = Add(name=f"{name}.add")

    def layers(self) -> list[Layer]:
        return [*self.dropout, self.a, self.b, self.scale, self.add]

    def calls(self, x: Value, output: int) -> list[Call]:
        """Calls of the adapter of a layer that takes ``x`` and makes value ``output - 1``."""
        chain: list[Layer] = [*self.dropout, self.a, self.b, self.scale]
        calls, base = [Call(chain[0], (x,))], Value(output - 1)
        for step, layer in enumerate(chain[1:]):
            calls.append(Call(layer, (Value(output + step),)))
        return [*calls, Call(self.add, (base, Value(output + len(chain) - 1)))]


def _with_layers(graph: ModelGraph, other: dict[int, Layer]) -> ModelGraph:
    """Replace layers, given by the id of the old one."""
    return replace(
        graph,
        registered=tuple(other.get(id(layer), layer) for layer in graph.registered),
        calls=tuple(Call(other.get(id(c.layer), c.layer), c.inputs) for c in graph.calls),
    )


def synchronised(graph: ModelGraph) -> ModelGraph:
    """Replace every batch norm by a SyncBatchNorm with the same tensors."""
    other: dict[int, Layer] = {
        id(layer): SyncBatchNorm(**layer.model_dump(exclude={"kind"}))
        for layer in graph.registered
        if isinstance(layer, BatchNorm)
    }
    return _with_layers(graph, other)


# Quantization -------------------------------------------------------------------------------------


def can_be_stored(layer: Layer, targets: Sequence[str]) -> TypeGuard[Linear]:
    """Whether a layer's weight is to be stored in 4 bits."""
    return isinstance(layer, Linear) and ends_match(layer.name, targets)


def in_4_bits(graph: ModelGraph, chosen: Quantized, itemsize: int) -> ModelGraph:
    """Store the weights of some linear layers in 4 bits.

    ``itemsize`` are the bytes of the numbers that they are packed into: those of the other weights.
    """
    more = {"storage_itemsize": itemsize, "block": chosen.block, "double": chosen.double}
    other: dict[int, Layer] = {
        id(layer): QuantizedLinear(**layer.model_dump(exclude={"kind"}), **more)
        for layer in graph.registered
        if can_be_stored(layer, chosen.targets)
    }
    return _with_layers(graph, other)


def stored_weights(graph: ModelGraph) -> list[str]:
    """Names of the weights that are stored in 4 bits."""
    layers = [layer for layer in graph.registered if isinstance(layer, QuantizedLinear)]
    return [layer.parameters()[0].name for layer in layers]


def in_kernels(graph: ModelGraph, implementation: Implementation) -> ModelGraph:
    """Set the implementation of every attention, with the same numbers."""
    other: dict[int, Layer] = {
        id(call.layer): call.layer.model_copy(update={"implementation": implementation})
        for call in graph.calls
        if has_kernels(call.layer)
    }
    return _with_layers(graph, other)


def has_kernels(layer: Layer) -> bool:
    """Whether a layer has two implementations."""
    return isinstance(layer, Attention)


ALONE = (AveragePool, BatchNorm, EmbeddingTable, Synchronised, TimedLayer, Upsample, WindowPool)
"""Layers besides products that are separate kernels."""


class FusedChain(NamedTuple):
    """Calls, by ascending number, that run as one kernel.

    It reads its inputs and writes only the values that other calls take; the rest is never in
    memory.
    """

    calls: tuple[int, ...]
    reads: tuple[Value, ...]
    writes: tuple[Value, ...]


def chains(graph: ModelGraph) -> list[FusedChain]:
    """Find the chains of a model's blocks, in the order of their last calls.

    Two calls are in one chain if one takes the other's output, and no path between them leads
    through a separate kernel.
    """
    home = {number: block.name for block in graph.blocks for number in block.calls}
    first, depth, chain_of = len(graph.inputs), [0] * len(graph.inputs), dict[int, int]()
    for number, call in enumerate(graph.calls):
        fuses = number in home and call.layer.autocast != "lower"
        fuses = fuses and not isinstance(call.layer, ALONE)
        depth.append(max((depth[value] for value in call.inputs), default=0) + (not fuses))
        if not fuses:
            continue
        chain_of[number] = number
        for value in call.inputs:
            maker = value - first
            same = maker in chain_of and home[maker] == home[number]
            if same and depth[value] == depth[-1]:
                old, new = chain_of[number], chain_of[maker]
                chain_of = {n: new if chain == old else chain for n, chain in chain_of.items()}
    members: dict[int, list[int]] = {}
    for number, chain in chain_of.items():
        members.setdefault(chain, []).append(number)
    takers = {value: {-1} for value, _ in graph.outputs}
    for number, call in enumerate(graph.calls):
        for value in call.inputs:
            takers.setdefault(value, set()).add(number)
    fused = [_chain(graph, calls, takers) for calls in members.values()]
    return sorted(fused, key=lambda chain: chain.calls[-1])


def _chain(graph: ModelGraph, calls: list[int], takers: dict[Value, set[int]]) -> FusedChain:
    inside = set(calls)
    made = [Value(len(graph.inputs) + number) for number in calls]
    taken = dict.fromkeys(value for number in calls for value in graph.calls[number].inputs)
    return FusedChain(
        tuple(calls),
        tuple(value for value in taken if value not in made),
        tuple(value for value in made if takers.get(value, inside) - inside),
    )


class Fused:
    """Effect of fusion on a graph's values; ``of`` maps calls to their chains."""

    def __init__(self, graph: ModelGraph) -> None:
        self._graph, self.chains = graph, chains(graph)
        self.of = {number: chain for chain in self.chains for number in chain.calls}

    def is_written(self, value: Value) -> bool:
        """Whether a value is written to memory."""
        chain = self.of.get(value - len(self._graph.inputs))
        return chain is None or value in chain.writes

    def kept(self, number: int, kept: Kept) -> list[Value]:
        """Values in memory that a call of a chain needs for backward, instead of its own.

        Its further kept values are recomputed from its inputs; a dropout's mask from its seed.
        """
        call, made = self._graph.calls[number], Value(len(self._graph.inputs) + number)
        inputs = [call.inputs[i] for i in kept.inputs]
        if kept.nbytes and not isinstance(call.layer, Dropout):
            inputs = list(call.inputs)
        values = [*inputs, *[made] * kept.output]
        return list(dict.fromkeys(source for v in values for source in self.sources(v)))

    def sources(self, value: Value) -> list[Value]:
        """Values in memory from which backward recomputes a value: itself, if it is written."""
        if self.is_written(value):
            return [value]
        inputs = self._graph.calls[value - len(self._graph.inputs)].inputs
        return list(dict.fromkeys(source for v in inputs for source in self.sources(v)))
