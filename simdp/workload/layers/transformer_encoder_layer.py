"""TransformerEncoderLayer, as torch.nn.TransformerEncoderLayer with the samples first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from simdp.workload.layers.multihead_attention import Padding
from simdp.workload.layers.transformer_layer import TransformerLayer

if TYPE_CHECKING:
    from simdp.workload.graph import GraphBuilder, Value


class TransformerEncoderLayer(TransformerLayer):
    """Self-attention, then two linear maps on every token alone.

    Attributes
    ----------
    mask : {"none", "causal"}
        Whether a token looks only at those before it, and itself.
    """

    kind: Literal["transformer_encoder_layer"] = "transformer_encoder_layer"
    mask: Literal["none", "causal"] = "none"

    def add_to(self, graph: GraphBuilder, *inputs: Value) -> Value:
        return self.encode(graph, inputs[0])

    def encode(self, graph: GraphBuilder, x: Value, padding: Padding | None = None) -> Value:
        """Append to a graph.

        Parameters
        ----------
        graph : GraphBuilder
            The model's.
        x : Value
            The sequence.
        padding : Padding, optional
            Of the sequence.
        """
        attention = self.attention("self_attn", self.mask)
        own = attention.register(graph, cross=False)
        linears = [graph.register(self.linear(number)) for number in (1, 2)]
        norms = [graph.register(self.norm(number)) for number in (1, 2)]

        x = self.residual(
            graph, 1, norms[0], x, lambda h: attention.attend(graph, own, h, h, padding)
        )
        return self.residual(graph, 2, norms[1], x, lambda h: self.feedforward(graph, linears, h))
