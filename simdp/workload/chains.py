"""Chains: elementwise calls between matrix products, of which torch.compile makes one kernel each.

Inductor fuses what is computed element by element or row by row: norms, activations, sums, dropout,
rotary embeddings. What flows inside a chain is never written; for backward it is computed again
from what enters the chain, where that is cheap, which it is. Products, attention, convolutions,
pooling, look-ups and whatever exchanges numbers between ranks stay kernels of their own. Blocks
are compiled one by one, so that no chain leaves its block.

References
----------
Ansel et al., "PyTorch 2: faster machine learning through dynamic Python bytecode transformation and
graph compilation", ASPLOS 2024, sections 4.2 and 6.5; "regional compilation" in torch's tutorials.
"""

from __future__ import annotations

from typing import NamedTuple

from simdp.workload.graph import Graph, Value
from simdp.workload.layers.base import Kept, Layer, Synchronised
from simdp.workload.layers.batch_norm import BatchNorm
from simdp.workload.layers.dropout import Dropout
from simdp.workload.layers.embedding_table import EmbeddingTable
from simdp.workload.layers.pooling import AveragePool, WindowPool
from simdp.workload.layers.timed import TimedLayer
from simdp.workload.layers.upsample import Upsample

ALONE = (AveragePool, BatchNorm, EmbeddingTable, Synchronised, TimedLayer, Upsample, WindowPool)
"""Layers besides products that are kernels of their own."""


class Chain(NamedTuple):
    """Calls that one kernel works off.

    Attributes
    ----------
    calls : tuple of int
        Their numbers, rising.
    reads : tuple of Value
        What enters.
    writes : tuple of Value
        What others take; the rest is never in memory.
    """

    calls: tuple[int, ...]
    reads: tuple[Value, ...]
    writes: tuple[Value, ...]


def chains(graph: Graph) -> list[Chain]:
    """Find the chains of a model's blocks, in the order of their last calls.

    Two calls are in one chain if one takes what the other makes, and no path from one to the other
    leads through a kernel of another kind.
    """
    home = {number: block.name for block in graph.blocks for number in block.calls}
    first, depth, chain_of = len(graph.inputs), [0] * len(graph.inputs), dict[int, int]()
    for number, call in enumerate(graph.calls):
        fuses = number in home and _fuses(call.layer)
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
    found = [_chain(graph, calls, takers) for calls in members.values()]
    return sorted(found, key=lambda chain: chain.calls[-1])


def _fuses(layer: Layer) -> bool:
    return layer.autocast != "lower" and not isinstance(layer, ALONE)


def _chain(graph: Graph, calls: list[int], takers: dict[Value, set[int]]) -> Chain:
    inside = set(calls)
    made = [Value(len(graph.inputs) + number) for number in calls]
    taken = dict.fromkeys(value for number in calls for value in graph.calls[number].inputs)
    return Chain(
        tuple(calls),
        tuple(value for value in taken if value not in made),
        tuple(value for value in made if takers.get(value, inside) - inside),
    )


class Fused:
    """What fusion makes of a graph's values.

    Parameters
    ----------
    graph : Graph
        The model's.

    Attributes
    ----------
    chains : list of Chain
        As of `chains`.
    of : dict of int to Chain
        The chain of each call that is in one.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph, self.chains = graph, chains(graph)
        self.of = {number: chain for chain in self.chains for number in chain.calls}

    def is_written(self, value: Value) -> bool:
        """Whether a value is ever in memory."""
        chain = self.of.get(value - len(self._graph.inputs))
        return chain is None or value in chain.writes

    def kept(self, number: int, kept: Kept) -> list[Value]:
        """What in memory a call of a chain needs for backward, in place of what it keeps alone.

        What it would keep beside its values comes from its inputs; a dropout's mask, of its seed.
        """
        call, made = self._graph.calls[number], Value(len(self._graph.inputs) + number)
        inputs = [call.inputs[i] for i in kept.inputs]
        if kept.nbytes and not isinstance(call.layer, Dropout):
            inputs = list(call.inputs)
        values = [*inputs, *[made] * kept.output]
        return list(dict.fromkeys(source for v in values for source in self.sources(v)))

    def sources(self, value: Value) -> list[Value]:
        """What in memory a value is computed from once more in backward: itself, if it is there."""
        if self.is_written(value):
            return [value]
        inputs = self._graph.calls[value - len(self._graph.inputs)].inputs
        return list(dict.fromkeys(source for v in inputs for source in self.sources(v)))
