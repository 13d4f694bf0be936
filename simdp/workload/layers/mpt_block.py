"""MptBlock, as transformers' and llm-foundry's: pre-LN, causal, packed queries, keys, values."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from simdp.spec import Bool, Float, Int
from simdp.workload.graph import GraphBuilder, Value
from simdp.workload.layers.activations.gelu import GELU
from simdp.workload.layers.add import Add
from simdp.workload.layers.attention import Attention
from simdp.workload.layers.base import Module
from simdp.workload.layers.dropout import Dropout
from simdp.workload.layers.layer_norm import LayerNorm
from simdp.workload.layers.linear import Linear


class MptBlock(Module):
    """Self-attention to earlier tokens, then two linear maps on every token alone.

    Attributes
    ----------
    d_model, n_heads : int
        Width of a token, heads of the attention.
    expansion_ratio : int
        How many times as wide the feed-forward part is.
    bias : bool
        Whether linear maps and norms have a bias.
    alibi : float or None
        See `Attention`.
    attn_pdrop, resid_pdrop : float
        Dropout of the attention's weights, and behind each sublayer.
    layer_norm_epsilon : float
        Added to the variance by every norm.
    """

    kind: Literal["mpt_block"] = "mpt_block"
    d_model: Int = Field(ge=1)
    n_heads: Int = Field(ge=1)
    expansion_ratio: Int = Field(ge=1)
    bias: Bool
    alibi: Float | None
    attn_pdrop: Float
    resid_pdrop: Float
    layer_norm_epsilon: Float

    def add_to(self, graph: GraphBuilder, *inputs: Value) -> Value:
        x, d, wide = inputs[0], self.d_model, self.expansion_ratio * self.d_model
        h = graph.call(self._norm("norm_1"), x)
        core = Attention(
            name=f"{self.name}.attn",
            num_heads=self.n_heads,
            causal=True,
            alibi=self.alibi,
            dropout=self.attn_pdrop,
            implementation="flash",
            upcast=True,
        )
        h = graph.call(core, self._map(graph, "attn.Wqkv", h, d, 3 * d))
        x = self._add(graph, "attn", self._map(graph, "attn.out_proj", h, d, d), x)

        h = self._map(graph, "ffn.up_proj", graph.call(self._norm("norm_2"), x), d, wide)
        h = graph.call(GELU(name=f"{self.name}.ffn.act"), h)
        return self._add(graph, "ffn", self._map(graph, "ffn.down_proj", h, wide, d), x)

    def _map(self, graph: GraphBuilder, name: str, x: Value, fan_in: int, fan_out: int) -> Value:
        name = f"{self.name}.{name}"
        layer = Linear(name=name, in_features=fan_in, out_features=fan_out, bias=self.bias)
        return graph.call(layer, x)

    def _norm(self, name: str) -> LayerNorm:
        return LayerNorm(
            name=f"{self.name}.{name}",
            normalized_shape=self.d_model,
            eps=self.layer_norm_epsilon,
            bias=self.bias,
        )

    def _add(self, graph: GraphBuilder, name: str, h: Value, x: Value) -> Value:
        if self.resid_pdrop:
            h = graph.call(Dropout(name=f"{self.name}.{name}.dropout", p=self.resid_pdrop), h)
        return graph.call(Add(name=f"{self.name}.{name}.add"), h, x)
