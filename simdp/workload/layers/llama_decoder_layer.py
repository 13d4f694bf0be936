"""LlamaDecoderLayer, as transformers': RMSNorm, rotary embeddings, grouped queries, SwiGLU."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from simdp.spec import Bool, Float, Int
from simdp.workload.graph import GraphBuilder, Value
from simdp.workload.layers.add import Add
from simdp.workload.layers.attention import Attention
from simdp.workload.layers.base import Module
from simdp.workload.layers.gate import Gate
from simdp.workload.layers.linear import Linear
from simdp.workload.layers.rms_norm import RMSNorm
from simdp.workload.layers.rotary import Rotary
from simdp.workload.layers.rotary_parameters import RopeParameters


class LlamaDecoderLayer(Module):
    """Self-attention to earlier tokens, then three linear maps on every token alone.

    Attributes
    ----------
    hidden_size, intermediate_size : int
        Width of a token; between the maps.
    num_heads, num_kv_heads, head_dim : int
        Heads of the queries, heads of keys and values, and the width of each.
    rope : RopeParameters
        How queries and keys turn.
    window : int or None
        Tokens that one looks back at, itself among them.
    qkv_bias, out_bias, mlp_bias : bool
        Whether the projections to queries, keys and values have a bias; the one behind
        attention; and the three maps.
    attention_dropout : float
        Of the attention's weights.
    activation : str
        Kind of the gate's.
    rms_norm_eps : float
        Added to the mean of the squares by every norm.

    References
    ----------
    Touvron et al., "Llama 2", arXiv 2307.09288; transformers/models/llama/modeling_llama.py.
    """

    kind: Literal["llama_decoder_layer"] = "llama_decoder_layer"
    hidden_size: Int = Field(ge=1)
    intermediate_size: Int = Field(ge=1)
    num_heads: Int = Field(ge=1)
    num_kv_heads: Int = Field(ge=1)
    head_dim: Int = Field(ge=1)
    rope: RopeParameters
    window: Int | None = None
    qkv_bias: Bool = False
    out_bias: Bool = False
    mlp_bias: Bool = False
    attention_dropout: Float = 0.0
    activation: str = "silu"
    rms_norm_eps: Float

    def add_to(self, graph: GraphBuilder, *inputs: Value) -> Value:
        (x,) = inputs
        norms = [self._norm("input_layernorm"), self._norm("post_attention_layernorm")]
        attention, mlp = self._attention_maps(), self._mlp_maps()
        for layer in (*attention, *mlp, *norms):  # transformers registers norms last
            graph.register(layer)
        h = self._attend(graph, attention, graph.call(norms[0], x))
        x = graph.call(Add(name=f"{self.name}.self_attn.add"), x, h)
        h = self._feed_forward(graph, mlp, graph.call(norms[1], x))
        return graph.call(Add(name=f"{self.name}.mlp.add"), x, h)

    def _attend(self, graph: GraphBuilder, maps: list[Linear], x: Value) -> Value:
        q_proj, k_proj, v_proj, o_proj = maps
        name = f"{self.name}.self_attn"
        q, k, v = (graph.call(projection, x) for projection in (q_proj, k_proj, v_proj))
        q, k = (
            graph.call(Rotary(name=f"{name}.{of}", head_dim=self.head_dim, rope=self.rope), value)
            for of, value in (("rotary_q", q), ("rotary_k", k))
        )
        core = Attention(
            name=name,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            causal=True,
            window=self.window,
            dropout=self.attention_dropout,
            implementation="flash",
            upcast=True,
        )
        return graph.call(o_proj, graph.call(core, q, k, v))

    def _feed_forward(self, graph: GraphBuilder, maps: list[Linear], x: Value) -> Value:
        gate_proj, up_proj, down_proj = maps
        gate, up = graph.call(gate_proj, x), graph.call(up_proj, x)
        act = Gate(name=f"{self.name}.mlp.act_fn", activation=self.activation)
        return graph.call(down_proj, graph.call(act, gate, up))

    def _attention_maps(self) -> list[Linear]:
        d, wide = self.hidden_size, self.num_heads * self.head_dim
        narrow = self.num_kv_heads * self.head_dim
        inward = [
            self._map(f"self_attn.{name}", d, features, self.qkv_bias)
            for name, features in (("q_proj", wide), ("k_proj", narrow), ("v_proj", narrow))
        ]
        return [*inward, self._map("self_attn.o_proj", wide, d, self.out_bias)]

    def _mlp_maps(self) -> list[Linear]:
        d, wide = self.hidden_size, self.intermediate_size
        shapes = (("gate_proj", d, wide), ("up_proj", d, wide), ("down_proj", wide, d))
        return [
            self._map(f"mlp.{name}", fan_in, out, self.mlp_bias) for name, fan_in, out in shapes
        ]

    def _map(self, name: str, fan_in: int, fan_out: int, bias: bool) -> Linear:
        name = f"{self.name}.{name}"
        return Linear(name=name, in_features=fan_in, out_features=fan_out, bias=bias)

    def _norm(self, name: str) -> RMSNorm:
        return RMSNorm(
            name=f"{self.name}.{name}",
            normalized_shape=self.hidden_size,
            eps=self.rms_norm_eps,
            fused=False,
        )
