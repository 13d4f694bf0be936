"""What the layers of Hugging Face's BERT and GPT-2 share: their arguments and small parts."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from simdp.spec import Float, Int
from simdp.workload.graph import GraphBuilder, Value
from simdp.workload.layers.activations import activation
from simdp.workload.layers.add import Add
from simdp.workload.layers.base import Module
from simdp.workload.layers.dropout import Dropout
from simdp.workload.layers.layer_norm import LayerNorm

ActivationName = Literal["gelu", "gelu_new", "relu"]
"""As transformers calls them."""

ACTIVATION_KINDS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "relu": "relu"}
"""Kinds of activations by these names."""


class HuggingFaceLayer(Module):
    """Base of the blocks that models of the library transformers are stacks of, with its names.

    Attributes
    ----------
    hidden_size, num_heads, intermediate_size : int
        Width of a token, heads of the attention, width between the two feed-forward maps.
    hidden_dropout, attention_dropout : float
        Behind each sublayer, and of the attention's weights.
    activation : {"gelu", "gelu_new", "relu"}
        Between the two feed-forward maps.
    layer_norm_eps : float
        Added to the variance by every norm.
    """

    hidden_size: Int = Field(ge=1)
    num_heads: Int = Field(ge=1)
    intermediate_size: Int = Field(ge=1)
    hidden_dropout: Float = Field(0.1, ge=0, le=1)
    attention_dropout: Float = Field(0.1, ge=0, le=1)
    activation: ActivationName
    layer_norm_eps: Float = Field(ge=0)

    def norm(self, graph: GraphBuilder, name: str, x: Value) -> Value:
        """Append a LayerNorm."""
        return graph.call(
            LayerNorm(
                name=f"{self.name}.{name}",
                normalized_shape=self.hidden_size,
                eps=self.layer_norm_eps,
            ),
            x,
        )

    def act(self, graph: GraphBuilder, name: str, x: Value) -> Value:
        """Append the activation."""
        return graph.call(activation(ACTIVATION_KINDS[self.activation], f"{self.name}.{name}"), x)

    def add(self, graph: GraphBuilder, name: str, x: Value, sublayer: Value) -> Value:
        """Append a sublayer's dropout, if there is any, and the sum with what went in."""
        if self.hidden_dropout:
            dropout = Dropout(name=f"{self.name}.{name}.dropout", p=self.hidden_dropout)
            sublayer = graph.call(dropout, sublayer)
        return graph.call(Add(name=f"{self.name}.{name}.add"), sublayer, x)
