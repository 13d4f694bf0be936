"""T5Block, as transformers': pre-LN without means and biases, of an encoder or a decoder."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from simdp.spec import Bool, Float, Int
from simdp.workload.graph import GraphBuilder, Value
from simdp.workload.layers.activations import activation
from simdp.workload.layers.add import Add
from simdp.workload.layers.attention import KeyPadding
from simdp.workload.layers.base import Module
from simdp.workload.layers.dropout import Dropout
from simdp.workload.layers.gate import Gate
from simdp.workload.layers.linear import Linear
from simdp.workload.layers.rms_norm import RMSNorm
from simdp.workload.layers.t5_attention import T5Attention

FeedForward = Literal["relu", "gelu", "gated-gelu", "gated-silu"]

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gated-gelu": "gelu_tanh", "gated-silu": "silu"}
"""Kinds of activations; transformers takes GELU's tanh form behind a gate."""


class T5Block(Module):
    """Self-attention, in a decoder attention to what the encoder made, and a feed-forward part.

    Attributes
    ----------
    d_model, d_kv, num_heads, d_ff : int
        Width of a token, of a head of attention, number of heads, width of the feed-forward part.
    decodes : bool
        Whether it is a decoder's.
    bias : str
        Name of the weight of the stack's bias by distance.
    first : bool
        Whether it is the stack's first block, which has that weight.
    num_buckets, max_distance : int
        As of `T5Attention`.
    dropout : float
        Behind each sublayer, in the feed-forward part, and of the attention's weights.
    eps : float
        Added to the mean of the squares by every norm.
    feed_forward : {"relu", "gelu", "gated-gelu", "gated-silu"}
        Activation of the feed-forward part, and whether it is a gate.

    References
    ----------
    Raffel et al., JMLR 21, 2020; Shazeer, "GLU variants improve transformer", arXiv 2002.05202;
    transformers/models/t5/modeling_t5.py.
    """

    kind: Literal["t5_block"] = "t5_block"
    d_model: Int = Field(ge=1)
    d_kv: Int = Field(ge=1)
    num_heads: Int = Field(ge=1)
    d_ff: Int = Field(ge=1)
    decodes: Bool = False
    bias: str
    first: Bool
    num_buckets: Int
    max_distance: Int
    dropout: Float
    eps: Float
    feed_forward: FeedForward

    def add_to(self, graph: GraphBuilder, *inputs: Value) -> Value:
        return self.code(graph, inputs[0])

    def code(
        self,
        graph: GraphBuilder,
        x: Value,
        memory: Value | None = None,
        padding: KeyPadding | None = None,
    ) -> Value:
        """Append to a model's graph.

        Parameters
        ----------
        graph : GraphBuilder
            The model's.
        x : Value
            What goes in.
        memory : Value, optional
            What the encoder made, where this is a decoder's block.
        padding : KeyPadding, optional
            Which of the encoder's tokens nobody looks at.
        """
        own = None if self.decodes else padding
        relative = {"bias": self.bias, "looks_up": self.first, "causal": self.decodes}
        x = self._attend(graph, "0", "SelfAttention", x, None, own, relative)
        if memory is not None:
            x = self._attend(graph, "1", "EncDecAttention", x, memory, padding, {})
        return self._feed_forward(graph, "2" if self.decodes else "1", x)

    def _attend(
        self,
        graph: GraphBuilder,
        number: str,
        kind: str,
        x: Value,
        memory: Value | None,
        padding: KeyPadding | None,
        relative: dict[str, Any],
    ) -> Value:
        name, inner = f"{self.name}.layer.{number}", self.num_heads * self.d_kv
        maps = [
            graph.register(self._linear(f"{name}.{kind}.{part}", self.d_model, inner))
            for part in "qkv"
        ]
        out = graph.register(self._linear(f"{name}.{kind}.o", inner, self.d_model))
        core = graph.register(
            T5Attention(
                name=f"{name}.{kind}",
                num_heads=self.num_heads,
                num_buckets=self.num_buckets,
                max_distance=self.max_distance,
                dropout=self.dropout,
                pad_id=padding.pad_id if padding else None,
                **relative,
            )
        )
        h = graph.call(self._norm(name), x)
        seen = h if memory is None else memory
        parts = [graph.call(linear, of) for linear, of in zip(maps, (h, seen, seen), strict=True)]
        h = graph.call(core, *parts, *([padding.tokens] if padding else []))
        return self._add(graph, name, x, graph.call(out, h))

    def _feed_forward(self, graph: GraphBuilder, number: str, x: Value) -> Value:
        name, d, wide = f"{self.name}.layer.{number}", self.d_model, self.d_ff
        lead, act = f"{name}.DenseReluDense", ACTIVATIONS[self.feed_forward]
        gated = self.feed_forward.startswith("gated-")
        ups = [
            graph.register(self._linear(f"{lead}.{part}", d, wide))
            for part in (("wi_0", "wi_1") if gated else ("wi",))
        ]
        down = graph.register(self._linear(f"{lead}.wo", wide, d))
        h = graph.call(self._norm(name), x)
        if gated:
            gate = Gate(name=f"{lead}.act", activation=act)
            h = graph.call(gate, *[graph.call(up, h) for up in ups])
        else:
            h = graph.call(activation(act, f"{lead}.act"), graph.call(ups[0], h))
        if self.dropout:
            h = graph.call(Dropout(name=f"{lead}.dropout", p=self.dropout), h)
        return self._add(graph, name, x, graph.call(down, h))

    def _linear(self, name: str, fan_in: int, fan_out: int) -> Linear:
        return Linear(name=name, in_features=fan_in, out_features=fan_out, bias=False)

    def _norm(self, name: str) -> RMSNorm:
        return RMSNorm(
            name=f"{name}.layer_norm", normalized_shape=self.d_model, eps=self.eps, fused=False
        )

    def _add(self, graph: GraphBuilder, name: str, x: Value, sublayer: Value) -> Value:
        if self.dropout:
            sublayer = graph.call(Dropout(name=f"{name}.dropout", p=self.dropout), sublayer)
        return graph.call(Add(name=f"{name}.add"), x, sublayer)
