"""MPT as a language model, as transformers' MptForCausalLM and MosaicML's llm-foundry."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from simdp.spec import Bool, Float, Int, Spec
from simdp.workload.graph import Graph, GraphBuilder
from simdp.workload.layers.arguments import check_heads
from simdp.workload.layers.base import Layer
from simdp.workload.layers.dropout import Dropout
from simdp.workload.layers.embedding import Embedding
from simdp.workload.layers.layer_norm import LayerNorm
from simdp.workload.layers.linear import Linear
from simdp.workload.layers.mpt_block import MptBlock
from simdp.workload.layers.position_embedding import PositionEmbedding
from simdp.workload.models.decoder import tied_head
from simdp.workload.models.text import TextModel


class MptAttentionConfig(Spec):
    """How tokens look at each other; keys are named as transformers' MptAttentionConfig.

    Attributes
    ----------
    attn_pdrop : float
        Dropout of the attention's weights.
    alibi : bool
        Whether scores fall with the distance, more or less steeply in each head (Press et al.,
        arXiv 2108.12409).
    alibi_bias_max : float
        The least steep of a power of two of heads falls by ``2^-alibi_bias_max``.
    """

    attn_pdrop: Float = Field(0.0, ge=0, le=1)
    alibi: Bool = True
    alibi_bias_max: Float = Field(8.0, gt=0)


class Mpt(TextModel):
    """Embedding of tokens, causal blocks, a norm, and the token embedding again.

    Keys are named as transformers' MptConfig.

    Attributes
    ----------
    d_model, n_heads, n_layers : int
        Width of a token, heads of each block's attention, number of blocks.
    expansion_ratio : int
        How many times as wide the feed-forward part of a block is; in transformers always 4 times.
    max_seq_len : int
        Tokens of the longest sample.
    learned_pos_emb : bool
        Whether a learned row is added at each place, as llm-foundry does unless it is told not
        to; transformers' MPT has none.
    attn_config : MptAttentionConfig
        How tokens look at each other.
    no_bias : bool
        Leave the biases of linear maps and norms away.
    emb_pdrop, resid_pdrop : float
        Dropout of the embeddings, and behind each sublayer.
    layer_norm_epsilon : float
        Added to the variance by every norm.
    tie_word_embeddings : bool
        Whether the map back to tokens has the embedding's weight.

    References
    ----------
    MosaicML, "Introducing MPT-7B", 2023; transformers/models/mpt/modeling_mpt.py;
    github.com/mosaicml/llm-foundry, llmfoundry/models/mpt.
    """

    trunk: ClassVar[str] = "transformer."
    kind: Literal["mpt"] = "mpt"
    depth_key: ClassVar[str] = "n_layers"
    padding_is_unseen: ClassVar[bool] = True
    vocab_size: Int = Field(50368, ge=1, le=10**9)
    d_model: Int = Field(2048, ge=1, le=10**7)
    n_heads: Int = Field(16, ge=1, le=10**7)
    n_layers: Int = Field(24, ge=1, le=10**4)
    expansion_ratio: Int = Field(4, ge=1, le=1000)
    max_seq_len: Int = Field(2048, ge=1, le=10**8)
    learned_pos_emb: Bool = False
    attn_config: MptAttentionConfig = MptAttentionConfig()
    no_bias: Bool = True
    emb_pdrop: Float = Field(0.0, ge=0, le=1)
    resid_pdrop: Float = Field(0.0, ge=0, le=1)
    layer_norm_epsilon: Float = Field(1e-5, ge=0)
    tie_word_embeddings: Bool = True

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        check_heads("n_heads", self.n_heads, "d_model", self.d_model)
        return self

    def build(self) -> Graph:
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
        head: Layer = Linear(
            name="lm_head", in_features=d, out_features=self.vocab_size, bias=False
        )
        if self.tie_word_embeddings:
            head = tied_head(f"{lead}.wte.weight", d, self.vocab_size)
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

    @property
    def usual_length(self) -> int:
        return self.max_seq_len

    @property
    def target_follows(self) -> str | None:
        return "x"
