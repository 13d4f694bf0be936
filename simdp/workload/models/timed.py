"""TimedModel: base of the models that have times and sizes, but no numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from simdp.workload.graph import Graph, GraphBuilder
from simdp.workload.layers.base import Shape
from simdp.workload.layers.timed import TimedLayer
from simdp.workload.models.base import Model


class TimedModel(Model):
    """A chain of layers that bring their times."""

    timed: ClassVar[bool] = True

    brings_times: ClassVar[bool] = True
    """Whether its layers' times are known, so that nothing else may give them."""

    def input_shapes(self) -> dict[str, Shape | None]:
        return {}


def chain(layers: Sequence[TimedLayer]) -> Graph:
    """Call layers one after the other; the first takes nothing."""
    graph = GraphBuilder()
    value = graph.call(layers[0])
    for layer in layers[1:]:
        value = graph.call(layer, value)
    return graph.build(value)
