"""GPTNeoXLayer, as transformers': attention and the feed-forward part side by side."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from simdp.spec import Bool, Float, Int
from simdp.workload.graph import GraphBuilder, Value
from simdp.workload.layers.activations import activation
from simdp.workload.layers.add import Add
from simdp.workload.layers.attention import Attention
from simdp.workload.layers.base import Module
from simdp.workload.layers.dropout import Dropout
from simdp.workload.layers.layer_norm import LayerNorm
from simdp.workload.layers.linear import Linear
from simdp.workload.layers.rotary import Rotary
from simdp.workload.layers.rotary_parameters import RopeParameters


class GPTNeoXLayer(Module):
    """Both sublayers see the layer's input, or the second one what the first one made.

    Attributes
    ----------
    hidden_size, num_heads, intermediate_size : int
        Width of a token, heads of the attention, width between the two feed-forward maps.
    rope : RopeParameters
        How part of each query and key turns.
    parallel : bool
        Whether both sublayers see the layer's input.
    attention_bias : bool
        Whether the maps into attention and out of it have a bias.
    attention_dropout, hidden_dropout : float
        Of the attention's weights, and behind each sublayer.
    activation : str
        Kind of what stands between the feed-forward maps.
    layer_norm_eps : float
        Added to the variance by every norm.

    References
    ----------
    Black et al., "GPT-NeoX-20B", arXiv 2204.06745.
    """

    kind: Literal["gpt_neox_layer"] = "gpt_neox_layer"
    hidden_size: Int = Field(ge=1)
    num_heads: Int = Field(ge=1)
    intermediate_size: Int = Field(ge=1)
    rope: RopeParameters
    parallel: Bool
    attention_bias: Bool
    attention_dropout: Float
    hidden_dropout: Float
    activation: str
    layer_norm_eps: Float

    def add_to(self, graph: GraphBuilder, *inputs: Value) -> Value:
        (x,) = inputs
        norms = [self._norm("input_layernorm"), self._norm("post_attention_layernorm")]
        for norm in norms:
            graph.register(norm)
        h = self._attend(graph, graph.call(norms[0], x))
        if self.parallel:
            wide = self._feed_forward(graph, graph.call(norms[1], x))
            return graph.call(Add(name=f"{self.name}.add"), wide, h, x)
        x = graph.call(Add(name=f"{self.name}.attention.add"), h, x)
        wide = self._feed_forward(graph, graph.call(norms[1], x))
        return graph.call(Add(name=f"{self.name}.mlp.add"), wide, x)

    def _attend(self, graph: GraphBuilder, x: Value) -> Value:
        name, d = f"{self.name}.attention", self.hidden_size
        h = self._map(graph, "attention.query_key_value", x, d, 3 * d, self.attention_bias)
        turn = Rotary(
            name=f"{name}.rotary", head_dim=d // self.num_heads, rope=self.rope, packed=True
        )
        core = Attention(
            name=name,
            num_heads=self.num_heads,
            causal=True,
            dropout=self.attention_dropout,
            interleaved=True,
            implementation="flash",
            upcast=True,
        )
        h = graph.call(core, graph.call(turn, h))
        h = self._map(graph, "attention.dense", h, d, d, self.attention_bias)
        return self._dropped(graph, "post_attention_dropout", h)

    def _feed_forward(self, graph: GraphBuilder, x: Value) -> Value:
        d, wide = self.hidden_size, self.intermediate_size
        h = self._map(graph, "mlp.dense_h_to_4h", x, d, wide, True)
        h = graph.call(activation(self.activation, f"{self.name}.mlp.act"), h)
        h = self._map(graph, "mlp.dense_4h_to_h", h, wide, d, True)
        return self._dropped(graph, "post_mlp_dropout", h)

    def _map(
        self, graph: GraphBuilder, name: str, x: Value, fan_in: int, fan_out: int, bias: bool
    ) -> Value:
        name = f"{self.name}.{name}"
        layer = Linear(name=name, in_features=fan_in, out_features=fan_out, bias=bias)
        return graph.call(layer, x)

    def _norm(self, name: str) -> LayerNorm:
        return LayerNorm(
            name=f"{self.name}.{name}",
            normalized_shape=self.hidden_size,
            eps=self.layer_norm_eps,
        )

    def _dropped(self, graph: GraphBuilder, name: str, h: Value) -> Value:
        if not self.hidden_dropout:
            return h
        return graph.call(Dropout(name=f"{self.name}.{name}", p=self.hidden_dropout), h)
