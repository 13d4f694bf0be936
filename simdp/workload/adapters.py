"""What ``workload.lora`` does to a model: adapters beside linear layers, and all else is frozen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias, TypeGuard

from simdp.workload.frozen import ends_match
from simdp.workload.graph import Call, Graph, Value
from simdp.workload.layers import Layer, Parameter
from simdp.workload.layers.add import Add
from simdp.workload.layers.dropout import Dropout
from simdp.workload.layers.linear import Linear
from simdp.workload.layers.parameter import constant
from simdp.workload.layers.scale import Scale
from simdp.workload.layers.transposed_linear import TransposedLinear
from simdp.workload.lora import Lora

Adapted: TypeAlias = Linear | TransposedLinear
"""What can have an adapter."""


class ZeroLinear(Linear):
    """A linear map whose weight starts at 0."""

    def parameters(self) -> list[Parameter]:
        return [parameter._replace(initial=constant(0.0)) for parameter in super().parameters()]


def is_target(layer: Layer, targets: Sequence[str]) -> TypeGuard[Adapted]:
    """Whether a layer gets an adapter."""
    return isinstance(layer, Linear | TransposedLinear) and ends_match(layer.name, targets)


def adapted(graph: Graph, lora: Lora) -> Graph:
    """Add adapters to a graph, and freeze the parameters that it has had."""
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
    """The layers beside one that is adapted."""

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
        """Calls behind that of the layer, which takes ``x`` and whose output comes before them."""
        chain: list[Layer] = [*self.dropout, self.a, self.b, self.scale]
        found, base = [Call(chain[0], (x,))], Value(output - 1)
        for step, layer in enumerate(chain[1:]):
            found.append(Call(layer, (Value(output + step),)))
        return [*found, Call(self.add, (base, Value(output + len(chain) - 1)))]
