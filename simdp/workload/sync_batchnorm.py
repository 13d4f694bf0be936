"""What ``sync_batchnorm: true`` does to a model: torch's convert_sync_batchnorm."""

from __future__ import annotations

from dataclasses import replace

from simdp.workload.graph import Call, Graph
from simdp.workload.layers import Layer
from simdp.workload.layers.batch_norm import BatchNorm
from simdp.workload.layers.sync_batch_norm import SyncBatchNorm


def synchronised(graph: Graph) -> Graph:
    """Make every batch norm of a graph a SyncBatchNorm with the same tensors."""
    other: dict[int, Layer] = {}
    for layer in graph.registered:
        if isinstance(layer, BatchNorm):
            given = layer.model_dump(exclude={"kind"})
            other[id(layer)] = SyncBatchNorm(**given)
    return replace(
        graph,
        registered=tuple(other.get(id(layer), layer) for layer in graph.registered),
        calls=tuple(Call(other.get(id(c.layer), c.layer), c.inputs) for c in graph.calls),
    )
