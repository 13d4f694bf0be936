"""GPT-NeoX as a language model, as transformers' GPTNeoXForCausalLM; Pythia is one."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from simdp.spec import Bool, Float, Int, problem
from simdp.workload.graph import Graph, GraphBuilder
from simdp.workload.layers.arguments import check_heads
from simdp.workload.layers.base import Layer
from simdp.workload.layers.dropout import Dropout
from simdp.workload.layers.embedding import Embedding
from simdp.workload.layers.gpt_neox_layer import GPTNeoXLayer
from simdp.workload.layers.huggingface_layer import ACTIVATION_KINDS, ActivationName
from simdp.workload.layers.layer_norm import LayerNorm
from simdp.workload.layers.linear import Linear
from simdp.workload.layers.rotary_parameters import RopeParameters
from simdp.workload.models.decoder import tied_head
from simdp.workload.models.file_names import FileNames
from simdp.workload.models.text import TextModel


class GPTNeoX(TextModel):
    """Embedding of tokens, layers with two sublayers side by side, a norm, a map back to tokens.

    Keys are named as transformers' GPTNeoXConfig.

    Attributes
    ----------
    hidden_size, num_hidden_layers, num_attention_heads, intermediate_size : int
        Width of a token, number of layers, heads of each one's attention, width between the two
        feed-forward maps.
    hidden_act : {"gelu", "gelu_new", "relu"}
        Between the feed-forward maps.
    rotary_pct : float
        Share of a head's features that turn with the place.
    rotary_emb_base : float
        Base of the rotary embeddings' waves.
    rope_parameters : RopeParameters or None
        Both, as transformers 5 writes them, and how waves are stretched for longer samples.
    max_position_embeddings : int
        Tokens of the longest sample.
    use_parallel_residual : bool
        Whether both sublayers see a layer's input; else the second one sees what the first made.
    attention_bias : bool
        Whether the maps into attention and out of it have a bias.
    attention_dropout, hidden_dropout : float
        Of the attention's weights; of the embedding and behind each sublayer.
    layer_norm_eps : float
        Added to the variance by every norm.
    tie_word_embeddings : bool
        Whether the map back to tokens has the embedding's weight.

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
    padding_is_unseen: ClassVar[bool] = True
    vocab_size: Int = Field(50432, ge=1, le=10**9)
    hidden_size: Int = Field(6144, ge=1, le=10**7)
    num_hidden_layers: Int = Field(44, ge=1, le=10**4)
    num_attention_heads: Int = Field(64, ge=1, le=10**7)
    intermediate_size: Int = Field(24576, ge=1, le=10**8)
    hidden_act: ActivationName = "gelu"
    rotary_pct: Float = Field(0.25, gt=0, le=1)
    rotary_emb_base: Float = Field(10000.0, gt=1)
    rope_parameters: RopeParameters | None = None
    max_position_embeddings: Int = Field(2048, ge=1, le=10**8)
    use_parallel_residual: Bool = True
    attention_bias: Bool = True
    attention_dropout: Float = Field(0.0, ge=0, le=1)
    hidden_dropout: Float = Field(0.0, ge=0, le=1)
    layer_norm_eps: Float = Field(1e-5, ge=0)
    tie_word_embeddings: Bool = False

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
        each = self.hidden_size // self.num_attention_heads
        if not self.rope.columns(each):
            share = self.rope.partial_rotary_factor
            raise problem(
                f"rotary_pct: {share:g} of {each} features is no pair that could turn; enlarge it."
            )
        return self

    @property
    def rope(self) -> RopeParameters:
        """How part of each query and key turns."""
        given = self.rope_parameters.model_dump(exclude_unset=True) if self.rope_parameters else {}
        own = {"rope_theta": self.rotary_emb_base, "partial_rotary_factor": self.rotary_pct}
        return RopeParameters(**{**own, **given})

    def build(self) -> Graph:
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
        head: Layer = Linear(name="lm_head", in_features=d, out_features=words, bias=False)
        if self.tie_word_embeddings:
            head = tied_head("gpt_neox.embed_in.weight", d, words)
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

    @property
    def usual_length(self) -> int:
        return self.max_position_embeddings

    @property
    def target_follows(self) -> str | None:
        return "x"
