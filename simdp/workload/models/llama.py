"""Llama, Mistral and Qwen2."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from simdp.spec import Bool, Float, Int, problem
from simdp.workload.layers.base import GraphBuilder, Layer, ModelGraph, check_heads
from simdp.workload.layers.embedding import Embedding
from simdp.workload.layers.linear import Linear, Projection
from simdp.workload.layers.normalization import RMSNorm
from simdp.workload.layers.rotary import RopeParameters, RopeScaling
from simdp.workload.layers.transformer import LlamaDecoderLayer
from simdp.workload.models.base import CausalModel

ACTIVATIONS = {"silu": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"}
"""Kinds of activations by transformers' names."""

USUAL_LENGTH = 8192
"""Default length of a sample of models that could take more [tokens]; our choice."""


def lm_head(weight: str, hidden_size: int, vocab_size: int, tied: bool = True) -> Layer:
    """Output map from the last norm to tokens, with the embedding's weight if it is tied."""
    if not tied:
        return Linear(name="lm_head", in_features=hidden_size, out_features=vocab_size, bias=False)
    return Projection(
        name="lm_head",
        weight=weight,
        bias="",
        in_features=hidden_size,
        out_features=vocab_size,
        first=0,
        last=vocab_size,
        bound=0.0,
    )


class Decoder(CausalModel):
    """Embedding of tokens, decoder layers, a norm, and an output map.

    One output per token: a score for each possible next token. Keys are named as in transformers'
    LlamaConfig.
    """

    trunk: ClassVar[str] = "model."
    depth_key: ClassVar[str] = "num_hidden_layers"
    vocab_size: Int = Field(32000, ge=1, le=10**9)
    hidden_size: Int = Field(4096, ge=1, le=10**7)
    """Width of a token, and between the maps of a layer's feed-forward part."""
    intermediate_size: Int = Field(11008, ge=1, le=10**8)
    """Width of a token, and between the maps of a layer's feed-forward part."""
    num_hidden_layers: Int = Field(32, ge=1, le=10**4)
    """Decoder layers."""
    num_attention_heads: Int = Field(32, ge=1, le=10**7)
    """Heads of the queries."""
    num_key_value_heads: Int | None = Field(None, ge=1, le=10**7)
    """Heads of keys and values, each shared by several of the queries; by default as many."""
    head_dim: Int | None = Field(None, ge=2, le=10**6)
    """Width of a head; by default hidden_size over the number of heads."""
    max_position_embeddings: Int = Field(2048, ge=1, le=10**8)
    """Maximum length of a sample [tokens]."""
    rope_theta: Float | None = Field(None, gt=1)
    """Base of the rotary embedding's frequencies, 10,000 by default."""
    rope_scaling: RopeScaling | None = None
    """Scaling of its wavelengths; none by default."""
    rope_parameters: RopeParameters | None = None
    """Both in one, as in newer files of transformers; instead of the two."""
    attention_dropout: Float = Field(0.0, ge=0, le=1)
    """Of the attention weights."""
    hidden_act: Literal["silu", "gelu", "gelu_pytorch_tanh", "relu"] = "silu"
    """Activation of the feed-forward part's gate."""
    rms_norm_eps: Float = Field(1e-6, ge=0)
    """Added to the mean of the squares by every norm."""
    tie_word_embeddings: Bool = False
    """Whether the output map has the embedding's weight."""

    default_theta: ClassVar[float] = 10000.0

    @property
    @abstractmethod
    def biases(self) -> dict[str, bool]:
        """For ``qkv_bias``, ``out_bias`` and ``mlp_bias`` of a layer, whether there is a bias."""

    @property
    def window(self) -> int | None:
        """Number of tokens attended to, including the token itself; by default all."""
        return None

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        if self.head_dim is None:
            heads = self.num_attention_heads
            check_heads("num_attention_heads", heads, "hidden_size", self.hidden_size)
        if self._head_dim % 2:
            raise problem(
                f"num_attention_heads: heads of {self._head_dim} features cannot rotate in pairs; "
                "choose another number of heads, or an even head_dim."
            )
        if self.num_attention_heads % self._kv_heads:
            raise problem(
                f"num_key_value_heads: {self._kv_heads} heads of keys and values do not share "
                f"{self.num_attention_heads} attention heads evenly; choose a divisor of it."
            )
        return self

    @model_validator(mode="after")
    def _waves_are_clear(self) -> Self:
        if self.rope_parameters is not None:
            for key in ("rope_theta", "rope_scaling"):
                if getattr(self, key) is not None:
                    raise problem(f"{key} and rope_parameters are both given; keep one of them.")
        return self

    @property
    def _head_dim(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def _kv_heads(self) -> int:
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def rope(self) -> RopeParameters:
        """Rotary embedding of queries and keys."""
        if self.rope_parameters is not None:
            return self.rope_parameters
        scaling: dict[str, Any] = dict(self.rope_scaling) if self.rope_scaling else {}
        return RopeParameters(rope_theta=self.rope_theta or self.default_theta, **scaling)

    def build(self) -> ModelGraph:
        graph, d, words = GraphBuilder("x"), self.hidden_size, self.vocab_size
        tokens = Embedding(name="model.embed_tokens", num_embeddings=words, embedding_dim=d)
        h = graph.call(tokens, graph.input("x"))
        rope = self.rope
        for number in range(self.num_hidden_layers):
            h = self._layer(number, rope).add_to(graph, h)
        norm = RMSNorm(name="model.norm", normalized_shape=d, eps=self.rms_norm_eps, fused=False)
        head = lm_head("model.embed_tokens.weight", d, words, self.tie_word_embeddings)
        return graph.build(graph.call(head, graph.call(norm, h)))

    def _layer(self, number: int, rope: RopeParameters) -> LlamaDecoderLayer:
        return LlamaDecoderLayer(
            name=f"model.layers.{number}",
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_heads=self.num_attention_heads,
            num_kv_heads=self._kv_heads,
            head_dim=self._head_dim,
            rope=rope,
            window=self.window,
            attention_dropout=self.attention_dropout,
            activation=ACTIVATIONS[self.hidden_act],
            rms_norm_eps=self.rms_norm_eps,
            **self.biases,
        )

    @property
    def num_places(self) -> int:
        return self.max_position_embeddings

    @property
    def usual_length(self) -> int:
        return min(self.max_position_embeddings, USUAL_LENGTH)


class Llama(Decoder):
    """RMSNorm, rotary embeddings, grouped queries and SwiGLU, without biases.

    References
    ----------
    Touvron et al., "Llama 2: open foundation and fine-tuned chat models", arXiv 2307.09288;
    transformers/models/llama/modeling_llama.py.
    """

    kind: Literal["llama"] = "llama"
    attention_bias: Bool = False
    """Whether all four projections of attention have a bias."""
    mlp_bias: Bool = False
    """Whether the three maps of the feed-forward part have a bias."""

    @property
    def biases(self) -> dict[str, bool]:
        return {
            "qkv_bias": self.attention_bias,
            "out_bias": self.attention_bias,
            "mlp_bias": self.mlp_bias,
        }


class Mistral(Decoder):
    """As Llama, but a token attends to a sliding window.

    References
    ----------
    Jiang et al., "Mistral 7B", arXiv 2310.06825;
    transformers/models/mistral/modeling_mistral.py.
    """

    kind: Literal["mistral"] = "mistral"
    intermediate_size: Int = Field(14336, ge=1, le=10**8)
    num_key_value_heads: Int | None = Field(8, ge=1, le=10**7)
    max_position_embeddings: Int = Field(131072, ge=1, le=10**8)
    sliding_window: Int | None = Field(4096, ge=1, le=10**8)
    """Number of tokens attended to, including the token itself; None for all."""

    @property
    def biases(self) -> dict[str, bool]:
        return {}

    @property
    def window(self) -> int | None:
        return self.sliding_window


class Qwen2(Decoder):
    """As Llama, but queries, keys and values have biases.

    References
    ----------
    Yang et al., "Qwen2 technical report", arXiv 2407.10671;
    transformers/models/qwen2/modeling_qwen2.py.
    """

    kind: Literal["qwen2"] = "qwen2"
    vocab_size: Int = Field(151936, ge=1, le=10**9)
    intermediate_size: Int = Field(22016, ge=1, le=10**8)
    max_position_embeddings: Int = Field(32768, ge=1, le=10**8)

    @property
    def biases(self) -> dict[str, bool]:
        return {"qkv_bias": True}
