"""TransformerDecoderLayer, as torch.nn.TransformerDecoderLayer with the samples first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from simdp.workload.layers.attention import KeyPadding
from simdp.workload.layers.transformer_layer import TransformerLayer

if TYPE_CHECKING:
    from simdp.workload.graph import GraphBuilder, Value


class TransformerDecoderLayer(TransformerLayer):
    """Causal self-attention, attention to the encoder's output, then two linear maps."""

    kind: Literal["transformer_decoder_layer"] = "transformer_decoder_layer"

    def add_to(self, graph: GraphBuilder, *inputs: Value) -> Value:
        return self.decode(graph, inputs[0], inputs[1])

    def decode(
        self,
        graph: GraphBuilder,
        x: Value,
        memory: Value,
        padding: KeyPadding | None = None,
        memory_padding: KeyPadding | None = None,
    ) -> Value:
        """Append to a graph.

        Parameters
        ----------
        graph : GraphBuilder
            The model's.
        x, memory : Value
            The sequence, and what the encoder made of its own.
        padding, memory_padding : KeyPadding, optional
            Of the two.
        """
        looking_back = self.attention("self_attn", "causal")
        own = looking_back.register(graph, cross=False)
        looking_over = self.attention("multihead_attn", "none")
        other = looking_over.register(graph, cross=True)
        linears = [graph.register(self.linear(number)) for number in (1, 2)]
        norms = [graph.register(self.norm(number)) for number in (1, 2, 3)]

        x = self.residual(
            graph, 1, norms[0], x, lambda h: looking_back.attend(graph, own, h, h, padding)
        )
        x = self.residual(
            graph,
            2,
            norms[1],
            x,
            lambda h: looking_over.attend(graph, other, h, memory, memory_padding),
        )
        return self.residual(graph, 3, norms[2], x, lambda h: self.feedforward(graph, linears, h))
