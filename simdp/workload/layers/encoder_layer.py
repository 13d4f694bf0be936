"""EncoderLayer: base of the blocks that a transformer's encoder is a stack of."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from simdp.workload.layers.attention import KeyPadding
from simdp.workload.layers.base import Module

if TYPE_CHECKING:
    from simdp.workload.graph import GraphBuilder, Value


class EncoderLayer(Module):
    """Takes a sequence and gives one of the same shape."""

    def add_to(self, graph: GraphBuilder, *inputs: Value) -> Value:
        return self.encode(graph, inputs[0])

    @abstractmethod
    def encode(self, graph: GraphBuilder, x: Value, padding: KeyPadding | None = None) -> Value:
        """Append to a graph.

        Parameters
        ----------
        graph : GraphBuilder
            The model's.
        x : Value
            The sequence.
        padding : KeyPadding, optional
            Of the sequence.
        """
