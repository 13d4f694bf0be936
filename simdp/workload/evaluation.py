"""What ``mode: inference`` does to a model: torch's ``eval()``."""

from __future__ import annotations

from dataclasses import replace

from simdp.workload.graph import Call, Graph, Value
from simdp.workload.layers import Layer


def evaluated(graph: Graph) -> Graph:
    """Let every layer do what it does after training, and drop calls that serve training alone.

    Dropout lets everything through, batch norm uses its running statistics, and auxiliary outputs,
    which only a loss looks at, are not computed. The tensors stay, in their order.
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


def _needed(graph: Graph, output: Value) -> list[int]:
    """Numbers of the calls that a value comes from, in their order."""
    first = len(graph.inputs)
    found: set[int] = set()
    waiting = [output]
    while waiting:
        number = waiting.pop() - first
        if number >= 0 and number not in found:
            found.add(number)
            waiting += graph.calls[number].inputs
    return sorted(found)
