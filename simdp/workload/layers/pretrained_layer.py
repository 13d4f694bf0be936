"""What the layers of transformers' BERT and GPT-2 share: their arguments and small parts."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from simdp.spec import Int
from simdp.workload.graph import GraphBuilder, Value
from simdp.workload.layers.add import Add
from simdp.workload.layers.base import Module
from simdp.workload.layers.dropout import Dropout
from simdp.workload.layers.gelu import GELU
from simdp.workload.layers.gelu_tanh import GELUTanh
from simdp.workload.layers.layer_norm import LayerNorm
from simdp.workload.layers.relu import ReLU

ActivationName = Literal["gelu", "gelu_new", "relu"]
"""As transformers calls them."""

ACTIVATION: dict[str, type[GELU] | type[GELUTanh] | type[ReLU]] = {
    "gelu": GELU,
    "gelu_new": GELUTanh,
    "relu": ReLU,
}


class PretrainedLayer(Module):
    """Base of the layers that transformers' models are stacks of; parameters have its names.

    Attributes
    ----------
    hidden_size, num_heads, intermediate_size : int
        Width of a token, heads of the attention, width between the two feed-forward maps.
    hidden_dropout, attention_dropout : float
        Behind each sublayer, and of the attention's weights.
    """

    hidden_size: Int = Field(ge=1)
    num_heads: Int = Field(ge=1)
    intermediate_size: Int = Field(ge=1)
    hidden_dropout: float = Field(0.1, ge=0, le=1)
    attention_dropout: float = Field(0.1, ge=0, le=1)
    activation: ActivationName
    layer_norm_eps: float = Field(ge=0)

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
        return graph.call(ACTIVATION[self.activation](name=f"{self.name}.{name}"), x)

    def add(self, graph: GraphBuilder, name: str, x: Value, sublayer: Value) -> Value:
        """Append a sublayer's dropout, if there is any, and the sum with what went in."""
        if self.hidden_dropout:
            dropout = Dropout(name=f"{self.name}.{name}.dropout", p=self.hidden_dropout)
            sublayer = graph.call(dropout, sublayer)
        return graph.call(Add(name=f"{self.name}.{name}.add"), sublayer, x)
