"""TransformerEncoderLayer, as torch.nn.TransformerEncoderLayer with the samples first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from simdp.workload.layers.attention import KeyPadding
from simdp.workload.layers.encoder_layer import EncoderLayer
from simdp.workload.layers.transformer_layer import TransformerLayer

if TYPE_CHECKING:
    from simdp.workload.graph import GraphBuilder, Value


class TransformerEncoderLayer(TransformerLayer, EncoderLayer):
    """Self-attention, then two linear maps on every token alone.

    Attributes
    ----------
    mask : {"none", "causal"}
        Whether a token looks only at those before it, and itself.
    """

    kind: Literal["transformer_encoder_layer"] = "transformer_encoder_layer"
    mask: Literal["none", "causal"] = "none"

    def encode(self, graph: GraphBuilder, x: Value, padding: KeyPadding | None = None) -> Value:
        attention = self.attention("self_attn", self.mask)
        own = attention.register(graph, cross=False)
        linears = [graph.register(self.linear(number)) for number in (1, 2)]
        norms = [graph.register(self.norm(number)) for number in (1, 2)]

        x = self.residual(
            graph, 1, norms[0], x, lambda h: attention.attend(graph, own, h, h, padding)
        )
        return self.residual(graph, 2, norms[1], x, lambda h: self.feedforward(graph, linears, h))
