"""Transformer blocks of torch.nn and of transformers' model families."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Self

from pydantic import Field, model_validator

from simdp.spec import Bool, Float, Int
from simdp.workload.layers.activations import activation
from simdp.workload.layers.activations.smooth import GELU
from simdp.workload.layers.attention import Attention, KeyPadding, MultiheadAttention, T5Attention
from simdp.workload.layers.base import GraphBuilder, Module, Parameter, Value, check_heads, copy_of
from simdp.workload.layers.linear import Gate, Linear, TransposedLinear
from simdp.workload.layers.normalization import LayerNorm, RMSNorm
from simdp.workload.layers.rotary import RopeParameters, Rotary
from simdp.workload.layers.tensor_ops import Add, Dropout


class EncoderLayer(Module):
    """Base of blocks that map a sequence to one of the same shape."""

    def add_to(self, graph: GraphBuilder, *inputs: Value) -> Value:
        return self.encode(graph, inputs[0])

    @abstractmethod
    def encode(self, graph: GraphBuilder, x: Value, padding: KeyPadding | None = None) -> Value:
        """Append to a graph; ``padding`` masks tokens of the sequence."""


class TransformerLayer(Module):
    """Base of the layers of torch.nn.Transformer, with torch's arguments."""

    d_model: Int = Field(ge=1, le=10**8)
    """Width of a token."""
    nhead: Int = Field(ge=1)
    """Heads of the attention, each with an equal part of the width."""
    dim_feedforward: Int = Field(2048, ge=1, le=10**8)
    """Width between the two linear maps."""
    dropout: Float = Field(0.1, ge=0, le=1)
    """After each sublayer, between the linear maps, and of the attention weights."""
    activation: Literal["relu", "gelu"] = "relu"
    """Between the linear maps."""
    layer_norm_eps: Float = Field(1e-5, ge=0)
    """Added to the variance by every norm."""
    norm_first: Bool = False
    """Pre-LN: normalise the input of a sublayer instead of the sum after it."""
    bias: Bool = True
    """Whether maps, projections and norms have a bias."""

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        check_heads("nhead", self.nhead, "d_model", self.d_model)
        return self

    def attention(self, name: str, mask: Literal["none", "causal"]) -> MultiheadAttention:
        """An attention block with this name in torch."""
        return MultiheadAttention(
            name=f"{self.name}.{name}",
            embed_dim=self.d_model,
            num_heads=self.nhead,
            dropout=self.dropout,
            bias=self.bias,
            mask=mask,
        )

    def norm(self, number: int) -> LayerNorm:
        """The norm ``norm<number>``."""
        return LayerNorm(
            name=f"{self.name}.norm{number}",
            normalized_shape=self.d_model,
            eps=self.layer_norm_eps,
            bias=self.bias,
        )

    def linear(self, number: int) -> Linear:
        """``linear1`` or ``linear2`` of the feed-forward sublayer."""
        wide, narrow = self.dim_feedforward, self.d_model
        return Linear(
            name=f"{self.name}.linear{number}",
            in_features=narrow if number == 1 else wide,
            out_features=wide if number == 1 else narrow,
            bias=self.bias,
        )

    def feedforward(self, graph: GraphBuilder, linears: Sequence[Linear], x: Value) -> Value:
        """Append ``linear2(dropout(activation(linear1(x))))``."""
        act = activation(self.activation, f"{self.name}.{self.activation}")
        h = graph.call(act, graph.call(linears[0], x))
        return graph.call(linears[1], self.drop(graph, "dropout", h))

    def drop(self, graph: GraphBuilder, name: str, x: Value) -> Value:
        """Append a dropout if its share is above 0."""
        if not self.dropout:
            return x
        return graph.call(Dropout(name=f"{self.name}.{name}", p=self.dropout), x)

    def residual(
        self,
        graph: GraphBuilder,
        number: int,
        norm: LayerNorm,
        x: Value,
        sublayer: Callable[[Value], Value],
    ) -> Value:
        """Append a sublayer, its dropout, the sum with its input, and the norm."""
        h = sublayer(graph.call(norm, x) if self.norm_first else x)
        h = self.drop(graph, f"dropout{number}", h)
        total = graph.call(Add(name=f"{self.name}.add{number}"), x, h)
        return total if self.norm_first else graph.call(norm, total)


def with_copies(draws: Sequence[Parameter]) -> list[Parameter]:
    """Draw only the first layer of each stack: nn.TransformerEncoder copies the given layer.

    The last number in a parameter's name is the layer's.
    """
    parameters = []
    for parameter in draws:
        stack = re.match(r"(.*\.layers\.|layers\.)(\d+)(\..*)", parameter.name)
        if stack and int(stack[2]):
            parameter = parameter._replace(initial=copy_of(f"{stack[1]}0{stack[3]}"))
        parameters.append(parameter)
    return parameters


class TransformerEncoderLayer(TransformerLayer, EncoderLayer):
    """Self-attention, then two linear maps of each token."""

    kind: Literal["transformer_encoder_layer"] = "transformer_encoder_layer"
    mask: Literal["none", "causal"] = "none"
    """Whether a token attends only to those before it, and itself."""

    def encode(self, graph: GraphBuilder, x: Value, padding: KeyPadding | None = None) -> Value:
        attention = self.attention("self_attn", self.mask)
        own = attention.register(graph, cross=False)
        linears = [graph.register(self.linear(number)) for number in (1, 2)]
        norms = [graph.register(self.norm(number)) for number in (1, 2)]

        x = self.residual(
            graph, 1, norms[0], x, lambda h: attention.attend(graph, own, h, h, padding)
        )
        return self.residual(graph, 2, norms[1], x, lambda h: self.feedforward(graph, linears, h))


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
        """Append to a graph; ``memory`` is the encoder's output."""
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


ActivationName = Literal["gelu", "gelu_new", "relu"]
"""Names in transformers."""

ACTIVATION_KINDS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "relu": "relu"}
"""Kinds of activations by name in transformers."""


class HuggingFaceLayer(Module):
    """Base of blocks of the library transformers' models, with its names.

    Dropout follows the sublayers (hidden) and the attention weights; the activation is between the
    two feed-forward maps; layer_norm_eps is added to the variance by every norm.
    """

    hidden_size: Int
    num_heads: Int
    intermediate_size: Int
    hidden_dropout: Float = Field(0.1, ge=0, le=1)
    attention_dropout: Float = Field(0.1, ge=0, le=1)
    activation: ActivationName
    layer_norm_eps: Float = Field(ge=0)

    def norm(self, graph: GraphBuilder, name: str, x: Value) -> Value:
        """Append a LayerNorm."""
        return graph.call(self._norm(name), x)

    def _norm(self, name: str) -> LayerNorm:
        return LayerNorm(
            name=f"{self.name}.{name}",
            normalized_shape=self.hidden_size,
            eps=self.layer_norm_eps,
        )

    def act(self, graph: GraphBuilder, name: str, x: Value) -> Value:
        """Append the activation."""
        return graph.call(activation(ACTIVATION_KINDS[self.activation], f"{self.name}.{name}"), x)

    def add(self, graph: GraphBuilder, name: str, x: Value, sublayer: Value) -> Value:
        """Append a sublayer's dropout, if any, and the sum with its input."""
        if self.hidden_dropout:
            dropout = Dropout(name=f"{self.name}.{name}.dropout", p=self.hidden_dropout)
            sublayer = graph.call(dropout, sublayer)
        return graph.call(Add(name=f"{self.name}.{name}.add"), sublayer, x)


class BertLayer(HuggingFaceLayer, EncoderLayer):
    """Self-attention over the whole sequence, then two linear maps of each token.

    Devlin et al., "BERT", NAACL 2019 (arXiv 1810.04805).
    """

    kind: Literal["bert_layer"] = "bert_layer"

    def encode(self, graph: GraphBuilder, x: Value, padding: KeyPadding | None = None) -> Value:
        d, wide = self.hidden_size, self.intermediate_size
        parts = [
            self._linear(graph, f"attention.self.{part}", x, d, d)
            for part in ("query", "key", "value")
        ]
        core = Attention(
            name=f"{self.name}.attention.self",
            num_heads=self.num_heads,
            dropout=self.attention_dropout,
            pad_id=padding.pad_id if padding else None,
        )
        h = graph.call(core, *parts, *([padding.tokens] if padding else []))
        h = self._linear(graph, "attention.output.dense", h, d, d)
        h = self.add(graph, "attention.output", x, h)
        x = self.norm(graph, "attention.output.LayerNorm", h)

        h = self._linear(graph, "intermediate.dense", x, d, wide)
        h = self.act(graph, "intermediate.act", h)
        h = self._linear(graph, "output.dense", h, wide, d)
        return self.norm(graph, "output.LayerNorm", self.add(graph, "output", x, h))

    def _linear(self, graph: GraphBuilder, name: str, x: Value, fan_in: int, fan_out: int) -> Value:
        name = f"{self.name}.{name}"
        return graph.call(Linear(name=name, in_features=fan_in, out_features=fan_out), x)


class GPT2Block(HuggingFaceLayer):
    """Causal self-attention, then two linear maps of each token.

    Radford et al., "Language models are unsupervised multitask learners", OpenAI 2019.
    """

    kind: Literal["gpt2_block"] = "gpt2_block"

    def add_to(self, graph: GraphBuilder, *inputs: Value) -> Value:
        x, d, wide = inputs[0], self.hidden_size, self.intermediate_size
        h = self.norm(graph, "ln_1", x)
        h = self._map(graph, "attn.c_attn", h, d, 3 * d)
        core = Attention(
            name=f"{self.name}.attn",
            num_heads=self.num_heads,
            causal=True,
            dropout=self.attention_dropout,
        )
        h = self._map(graph, "attn.c_proj", graph.call(core, h), d, d)
        x = self.add(graph, "attn", x, h)

        h = self.norm(graph, "ln_2", x)
        h = self.act(graph, "mlp.act", self._map(graph, "mlp.c_fc", h, d, wide))
        h = self._map(graph, "mlp.c_proj", h, wide, d)
        return self.add(graph, "mlp", x, h)

    def _map(self, graph: GraphBuilder, name: str, x: Value, fan_in: int, fan_out: int) -> Value:
        name = f"{self.name}.{name}"
        return graph.call(TransposedLinear(name=name, in_features=fan_in, out_features=fan_out), x)


class GPTNeoXLayer(Module):
    """Attention and feed-forward sublayers, ``parallel`` or one after the other.

    Fields as in `simdp.workload.models.gpt.GPTNeoX`; ``activation`` is a kind. Black et al.,
    "GPT-NeoX-20B", arXiv 2204.06745.
    """

    kind: Literal["gpt_neox_layer"] = "gpt_neox_layer"
    hidden_size: Int
    num_heads: Int
    intermediate_size: Int
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


class LlamaDecoderLayer(Module):
    """Causal self-attention, then three linear maps of each token.

    Fields as in `simdp.workload.models.llama.Decoder`, with heads and biases resolved;
    ``activation`` is a kind. Touvron et al., "Llama 2", arXiv 2307.09288;
    transformers/models/llama/modeling_llama.py.
    """

    kind: Literal["llama_decoder_layer"] = "llama_decoder_layer"
    hidden_size: Int
    intermediate_size: Int
    num_heads: Int
    num_kv_heads: Int
    head_dim: Int
    rope: RopeParameters
    window: Int | None = None
    """Number of tokens attended to, including the token itself."""
    qkv_bias: Bool = False
    """Whether there is a bias in the projections to queries, keys and values; in the one after
    attention; in the three maps."""
    out_bias: Bool = False
    """Whether there is a bias in the projections to queries, keys and values; in the one after
    attention; in the three maps."""
    mlp_bias: Bool = False
    """Whether there is a bias in the projections to queries, keys and values; in the one after
    attention; in the three maps."""
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


class MptBlock(Module):
    """Causal self-attention, then two linear maps of each token.

    Fields as in `simdp.workload.models.gpt.Mpt`; for ``alibi`` see `Attention`.
    """

    kind: Literal["mpt_block"] = "mpt_block"
    d_model: Int
    n_heads: Int
    expansion_ratio: Int
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


FeedForward = Literal["relu", "gelu", "gated-gelu", "gated-silu"]

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gated-gelu": "gelu_tanh", "gated-silu": "silu"}
"""Kinds of activations; transformers uses GELU's tanh form in gates."""


class T5Block(Module):
    """Self-attention, cross-attention in a decoder, and a feed-forward part.

    Sizes and dropout as in `simdp.workload.models.t5.T5`. Raffel et al., JMLR 21, 2020; Shazeer,
    "GLU variants improve transformer", arXiv 2002.05202; transformers/models/t5/modeling_t5.py.
    """

    kind: Literal["t5_block"] = "t5_block"
    d_model: Int
    d_kv: Int
    num_heads: Int
    d_ff: Int
    decodes: Bool = False
    """Whether it is a decoder's block."""
    bias: str
    """Name of the weight of the stack's relative position bias."""
    first: Bool
    """Whether it is the stack's first block, which holds that weight."""
    num_buckets: Int
    """As in `T5Attention`."""
    max_distance: Int
    """As in `T5Attention`."""
    dropout: Float
    eps: Float
    feed_forward: FeedForward
    """Activation of the feed-forward part, and whether it is gated."""

    def add_to(self, graph: GraphBuilder, *inputs: Value) -> Value:
        return self.code(graph, inputs[0])

    def code(
        self,
        graph: GraphBuilder,
        x: Value,
        memory: Value | None = None,
        padding: KeyPadding | None = None,
    ) -> Value:
        """Append to a graph; a decoder's block takes the encoder's output and its padding."""
        own = None if self.decodes else padding
        relative: dict[str, bool | str] = {
            "bias": self.bias,
            "looks_up": self.first,
            "causal": self.decodes,
        }
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
        relative: Mapping[str, bool | str],
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


class ViTLayer(HuggingFaceLayer):
    """Self-attention over the whole sequence, then two linear maps of each token.

    ``qkv_bias``: whether the maps to queries, keys and values have a bias. Dosovitskiy et al., "An
    image is worth 16x16 words", ICLR 2021 (arXiv 2010.11929), equations 2 and 3; transformers 5,
    models/vit/modeling_vit.py.
    """

    kind: Literal["vit_layer"] = "vit_layer"
    qkv_bias: Bool = True

    def add_to(self, graph: GraphBuilder, *inputs: Value) -> Value:
        x, d, wide = inputs[0], self.hidden_size, self.intermediate_size
        maps = [
            graph.register(self._linear(f"attention.{part}_proj", d, d, part == "o"))
            for part in "qkvo"
        ]
        before, after = (
            graph.register(self._norm(f"layernorm_{at}")) for at in ("before", "after")
        )

        h = graph.call(before, x)
        core = Attention(
            name=f"{self.name}.attention",
            num_heads=self.num_heads,
            dropout=self.attention_dropout,
            implementation="flash",  # transformers uses torch's fused kernels where they exist
        )
        h = graph.call(core, *[graph.call(linear, h) for linear in maps[:3]])
        x = self.add(graph, "attention", x, graph.call(maps[3], h))

        h = graph.call(self._linear("mlp.fc1", d, wide), graph.call(after, x))
        h = graph.call(self._linear("mlp.fc2", wide, d), self.act(graph, "mlp.act", h))
        return self.add(graph, "mlp", x, h)

    def _linear(self, name: str, fan_in: int, fan_out: int, bias: bool = True) -> Linear:
        return Linear(
            name=f"{self.name}.{name}",
            in_features=fan_in,
            out_features=fan_out,
            bias=bias or self.qkv_bias,
        )
