"""GPT-2, GPT-NeoX and MPT."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from simdp.spec import Bool, Float, Int, Spec, problem
from simdp.workload.layers.base import GraphBuilder, ModelGraph, Parameter, check_heads, normal
from simdp.workload.layers.embedding import Embedding, PositionEmbedding
from simdp.workload.layers.normalization import LayerNorm
from simdp.workload.layers.rotary import RopeParameters
from simdp.workload.layers.tensor_ops import Dropout
from simdp.workload.layers.transformer import (
    ACTIVATION_KINDS,
    ActivationName,
    GPT2Block,
    GPTNeoXLayer,
    MptBlock,
)
from simdp.workload.models.base import CausalModel, FileNames, TextModel
from simdp.workload.models.llama import lm_head


class GPT2(CausalModel):
    """Embeddings of tokens and positions, causal blocks, a norm, and the token embedding again.

    One output per token: a score for each possible next token. Keys are named as in transformers'
    GPT2Config.

    References
    ----------
    Radford et al., "Language models are unsupervised multitask learners", OpenAI 2019;
    transformers/models/gpt2/modeling_gpt2.py.
    """

    file_names: ClassVar[FileNames] = FileNames(
        prefix="transformer", ignored=(r"\.attn\.(masked_)?bias$", r"^lm_head\.weight$")
    )

    trunk: ClassVar[str] = "transformer."
    kind: Literal["gpt2"] = "gpt2"
    depth_key: ClassVar[str] = "n_layer"
    moved_to_sdpa: ClassVar[bool] = True
    vocab_size: Int = Field(50257, ge=1, le=10**9)
    n_positions: Int = Field(1024, ge=1, le=10**8)
    """Number of positions."""
    n_embd: Int = Field(768, ge=1, le=10**7)
    """Width of a token."""
    n_layer: Int = Field(12, ge=1, le=10**4)
    """Number of blocks."""
    n_head: Int = Field(12, ge=1, le=10**7)
    """Heads of each one's attention."""
    n_inner: Int | None = Field(None, ge=1, le=10**8)
    """Width between the two feed-forward maps; by default 4 n_embd."""
    activation_function: ActivationName = "gelu_new"
    """Between the feed-forward maps."""
    resid_pdrop: Float = Field(0.1, ge=0, le=1)
    """Dropout of the embeddings, of the attention weights, and after each sublayer."""
    embd_pdrop: Float = Field(0.1, ge=0, le=1)
    """Dropout of the embeddings, of the attention weights, and after each sublayer."""
    attn_pdrop: Float = Field(0.1, ge=0, le=1)
    """Dropout of the embeddings, of the attention weights, and after each sublayer."""
    layer_norm_epsilon: Float = Field(1e-5, ge=0)
    """Added to the variance by every norm."""

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        check_heads("n_head", self.n_head, "n_embd", self.n_embd)
        return self

    def build(self) -> ModelGraph:
        graph, d = GraphBuilder("x"), self.n_embd
        tokens = Embedding(name="transformer.wte", num_embeddings=self.vocab_size, embedding_dim=d)
        places = PositionEmbedding(
            name="transformer.wpe", num_embeddings=self.n_positions, embedding_dim=d
        )
        h = graph.call(places, graph.call(tokens, graph.input("x")))
        if self.embd_pdrop:
            h = graph.call(Dropout(name="transformer.drop", p=self.embd_pdrop), h)
        for number in range(self.n_layer):
            h = self._block(number).add_to(graph, h)
        norm = LayerNorm(name="transformer.ln_f", normalized_shape=d, eps=self.layer_norm_epsilon)
        head = lm_head("transformer.wte.weight", d, self.vocab_size)
        return graph.build(graph.call(head, graph.call(norm, h)))

    def _block(self, number: int) -> GPT2Block:
        return GPT2Block(
            name=f"transformer.h.{number}",
            hidden_size=self.n_embd,
            num_heads=self.n_head,
            intermediate_size=self.n_inner or 4 * self.n_embd,
            hidden_dropout=self.resid_pdrop,
            attention_dropout=self.attn_pdrop,
            activation=self.activation_function,
            layer_norm_eps=self.layer_norm_epsilon,
        )

    def std_of(self, name: str) -> float:
        """Weights before a residual sum start smaller, by the square root of their number."""
        in_front = name.endswith("c_proj.weight")
        return self.initializer_range / (sqrt(2 * self.n_layer) if in_front else 1)

    def filled_again(self) -> Sequence[Parameter]:
        """Weights before a residual sum are drawn twice: as any other, then smaller."""
        draws = list[Parameter]()
        for parameter in super().filled_again():
            if parameter.name.endswith("c_proj.weight"):
                draws.append(parameter._replace(initial=normal(self.initializer_range)))
            draws.append(parameter)
        return draws

    @property
    def num_places(self) -> int:
        return self.n_positions


class GPTNeoX(CausalModel):
    """Embedding of tokens, layers with two parallel sublayers, a norm, and an output map.

    Keys are named as in transformers' GPTNeoXConfig.

    References
    ----------
    Black et al., "GPT-NeoX-20B: an open-source autoregressive language model", arXiv 2204.06745;
    transformers/models/gpt_neox/modeling_gpt_neox.py.
    """

    file_names: ClassVar[FileNames] = TextModel.file_names._replace(
        renames=((r"^embed_out\.", "lm_head."),)  # before transformers 5
    )
    trunk: ClassVar[str] = "gpt_neox."
    kind: Literal["gpt_neox"] = "gpt_neox"
    depth_key: ClassVar[str] = "num_hidden_layers"
    vocab_size: Int = Field(50432, ge=1, le=10**9)
    hidden_size: Int = Field(6144, ge=1, le=10**7)
    """Width of a token."""
    num_hidden_layers: Int = Field(44, ge=1, le=10**4)
    """Number of layers."""
    num_attention_heads: Int = Field(64, ge=1, le=10**7)
    """Heads of each one's attention."""
    intermediate_size: Int = Field(24576, ge=1, le=10**8)
    """Width between the two feed-forward maps."""
    hidden_act: ActivationName = "gelu"
    """Between the feed-forward maps."""
    rotary_pct: Float = Field(0.25, gt=0, le=1)
    """Share of a head's features with rotary embedding."""
    rotary_emb_base: Float = Field(10000.0, gt=1)
    """Base of the rotary embedding's frequencies."""
    rope_parameters: RopeParameters | None = None
    """Both, as transformers 5 writes them, and the scaling for longer samples."""
    max_position_embeddings: Int = Field(2048, ge=1, le=10**8)
    """Maximum length of a sample [tokens]."""
    use_parallel_residual: Bool = True
    """Whether both sublayers take a layer's input; else they run one after the other."""
    attention_bias: Bool = True
    """Whether the maps into and out of attention have a bias."""
    attention_dropout: Float = Field(0.0, ge=0, le=1)
    """Of the attention weights."""
    hidden_dropout: Float = Field(0.0, ge=0, le=1)
    """Of the embedding and after each sublayer."""
    layer_norm_eps: Float = Field(1e-5, ge=0)
    """Added to the variance by every norm."""
    tie_word_embeddings: Bool = False
    """Whether the output map has the embedding's weight."""

    @model_validator(mode="after")
    def _rope_is_written_once(self) -> Self:
        given = self.rope_parameters.model_fields_set if self.rope_parameters else set[str]()
        same = {"rotary_pct": "partial_rotary_factor", "rotary_emb_base": "rope_theta"}
        for key, other in same.items():
            if key in self.model_fields_set and other in given:
                raise problem(
                    f"{key} and rope_parameters.{other} are both given; keep one of them."
                )
        return self

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        check_heads(
            "num_attention_heads", self.num_attention_heads, "hidden_size", self.hidden_size
        )
        width = self.hidden_size // self.num_attention_heads
        if not self.rope.columns(width):
            share = self.rope.partial_rotary_factor
            raise problem(
                f"rotary_pct: {share:g} of {width} features leaves no pair to rotate; enlarge it."
            )
        return self

    @property
    def rope(self) -> RopeParameters:
        """Rotary embedding of queries and keys."""
        given = self.rope_parameters.model_dump(exclude_unset=True) if self.rope_parameters else {}
        own = {"rope_theta": self.rotary_emb_base, "partial_rotary_factor": self.rotary_pct}
        return RopeParameters(**{**own, **given})

    def build(self) -> ModelGraph:
        graph, d, words = GraphBuilder("x"), self.hidden_size, self.vocab_size
        tokens = Embedding(name="gpt_neox.embed_in", num_embeddings=words, embedding_dim=d)
        h = graph.call(tokens, graph.input("x"))
        if self.hidden_dropout:
            h = graph.call(Dropout(name="gpt_neox.emb_dropout", p=self.hidden_dropout), h)
        rope = self.rope
        for number in range(self.num_hidden_layers):
            h = self._layer(number, rope).add_to(graph, h)
        norm = LayerNorm(
            name="gpt_neox.final_layer_norm", normalized_shape=d, eps=self.layer_norm_eps
        )
        head = lm_head("gpt_neox.embed_in.weight", d, words, self.tie_word_embeddings)
        return graph.build(graph.call(head, graph.call(norm, h)))

    def _layer(self, number: int, rope: RopeParameters) -> GPTNeoXLayer:
        return GPTNeoXLayer(
            name=f"gpt_neox.layers.{number}",
            hidden_size=self.hidden_size,
            num_heads=self.num_attention_heads,
            intermediate_size=self.intermediate_size,
            rope=rope,
            parallel=self.use_parallel_residual,
            attention_bias=self.attention_bias,
            attention_dropout=self.attention_dropout,
            hidden_dropout=self.hidden_dropout,
            activation=ACTIVATION_KINDS[self.hidden_act],
            layer_norm_eps=self.layer_norm_eps,
        )

    @property
    def num_places(self) -> int:
        return self.max_position_embeddings


class MptAttentionConfig(Spec):
    """Attention of MPT; keys are named as in transformers' MptAttentionConfig."""

    attn_pdrop: Float = Field(0.0, ge=0, le=1)
    """Dropout of the attention weights."""
    alibi: Bool = True
    """Whether scores fall with the distance, by a slope of each head (Press et al., arXiv
    2108.12409)."""
    alibi_bias_max: Float = Field(8.0, gt=0)
    """The smallest slope is ``2^-alibi_bias_max`` if the number of heads is a power of two."""


class Mpt(CausalModel):
    """Embedding of tokens, causal blocks, a norm, and the token embedding again.

    Keys are named as in transformers' MptConfig.

    References
    ----------
    MosaicML, "Introducing MPT-7B", 2023; transformers/models/mpt/modeling_mpt.py;
    github.com/mosaicml/llm-foundry, llmfoundry/models/mpt.
    """

    trunk: ClassVar[str] = "transformer."
    kind: Literal["mpt"] = "mpt"
    depth_key: ClassVar[str] = "n_layers"
    trained_with_fused_loss: ClassVar[bool] = True
    vocab_size: Int = Field(50368, ge=1, le=10**9)
    d_model: Int = Field(2048, ge=1, le=10**7)
    """Width of a token."""
    n_heads: Int = Field(16, ge=1, le=10**7)
    """Heads of each block's attention."""
    n_layers: Int = Field(24, ge=1, le=10**4)
    """Number of blocks."""
    expansion_ratio: Int = Field(4, ge=1, le=1000)
    """Width of a block's feed-forward part over d_model; always 4 in transformers."""
    max_seq_len: Int = Field(2048, ge=1, le=10**8)
    """Maximum length of a sample [tokens]."""
    learned_pos_emb: Bool = False
    """Whether there is a learned position embedding: llm-foundry's default; transformers' MPT has
    none."""
    attn_config: MptAttentionConfig = MptAttentionConfig()
    """Attention."""
    no_bias: Bool = True
    """Whether linear maps and norms have no biases."""
    emb_pdrop: Float = Field(0.0, ge=0, le=1)
    """Dropout of the embeddings, and after each sublayer."""
    resid_pdrop: Float = Field(0.0, ge=0, le=1)
    """Dropout of the embeddings, and after each sublayer."""
    layer_norm_epsilon: Float = Field(1e-5, ge=0)
    """Added to the variance by every norm."""
    tie_word_embeddings: Bool = True
    """Whether the output map has the embedding's weight."""

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        check_heads("n_heads", self.n_heads, "d_model", self.d_model)
        return self

    def build(self) -> ModelGraph:
        graph, d = GraphBuilder("x"), self.d_model
        lead = "transformer"
        tokens = Embedding(name=f"{lead}.wte", num_embeddings=self.vocab_size, embedding_dim=d)
        h = graph.call(tokens, graph.input("x"))
        if self.learned_pos_emb:
            places = PositionEmbedding(
                name=f"{lead}.wpe", num_embeddings=self.max_seq_len, embedding_dim=d
            )
            h = graph.call(places, h)
        if self.emb_pdrop:
            h = graph.call(Dropout(name=f"{lead}.emb_drop", p=self.emb_pdrop), h)
        for number in range(self.n_layers):
            h = self._block(f"{lead}.blocks.{number}").add_to(graph, h)
        norm = LayerNorm(
            name=f"{lead}.norm_f",
            normalized_shape=d,
            eps=self.layer_norm_epsilon,
            bias=not self.no_bias,
        )
        head = lm_head(f"{lead}.wte.weight", d, self.vocab_size, self.tie_word_embeddings)
        return graph.build(graph.call(head, graph.call(norm, h)))

    def _block(self, name: str) -> MptBlock:
        attention = self.attn_config
        return MptBlock(
            name=name,
            d_model=self.d_model,
            n_heads=self.n_heads,
            expansion_ratio=self.expansion_ratio,
            bias=not self.no_bias,
            alibi=attention.alibi_bias_max if attention.alibi else None,
            attn_pdrop=attention.attn_pdrop,
            resid_pdrop=self.resid_pdrop,
            layer_norm_epsilon=self.layer_norm_epsilon,
        )

    @property
    def num_places(self) -> int:
        return self.max_seq_len
