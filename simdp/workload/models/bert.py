"""BERT with a fine-tuning head, in transformers' layout or in torch.nn's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from simdp.spec import Bool, Float, Int, problem
from simdp.workload.layers.activations import activation
from simdp.workload.layers.activations.smooth import Tanh
from simdp.workload.layers.attention import KeyPadding
from simdp.workload.layers.base import (
    GraphBuilder,
    ModelGraph,
    Parameter,
    Value,
    check_heads,
    check_token,
)
from simdp.workload.layers.embedding import Embedding, PositionEmbedding, TokenTypeEmbedding
from simdp.workload.layers.linear import Linear, Projection
from simdp.workload.layers.normalization import LayerNorm
from simdp.workload.layers.tensor_ops import Dropout, FirstToken
from simdp.workload.layers.transformer import (
    ACTIVATION_KINDS,
    ActivationName,
    BertLayer,
    EncoderLayer,
    TransformerEncoderLayer,
    with_copies,
)
from simdp.workload.models.base import FileNames, TextModel

GLUE_LENGTH = 128
"""Tokens of a sample in BERT's fine-tuning on GLUE (github.com/google-research/bert, README)."""


class ModulePaths(NamedTuple):
    """Paths of the modules in one layout."""

    words: str
    positions: str
    token_types: str
    norm: str
    layers: str
    pooler: str


NAMES = {
    "huggingface": ModulePaths(
        words="embeddings.word_embeddings",
        positions="embeddings.position_embeddings",
        token_types="embeddings.token_type_embeddings",
        norm="embeddings.LayerNorm",
        layers="encoder.layer",
        pooler="pooler.dense",
    ),
    "torch": ModulePaths(
        words="embedding",
        positions="position_embedding",
        token_types="token_type_embedding",
        norm="norm",
        layers="encoder.layers",
        pooler="pooler",
    ),
}


class Bert(TextModel):
    """Embeddings of tokens, positions and types, encoder layers, the pooler, and a head.

    The input is the tokens ``x``; all have type 0. Keys are named as in transformers' BertConfig.

    References
    ----------
    Devlin et al., "BERT: pre-training of deep bidirectional transformers for language
    understanding", NAACL 2019 (arXiv 1810.04805); transformers/models/bert/modeling_bert.py.
    """

    file_names: ClassVar[FileNames] = FileNames(
        prefix="bert",
        renames=(
            (r"LayerNorm\.gamma$", "LayerNorm.weight"),
            (r"LayerNorm\.beta$", "LayerNorm.bias"),
        ),
        ignored=(r"position_ids$", r"^cls\.predictions\.decoder\.(weight|bias)$"),
    )

    kind: Literal["bert"] = "bert"
    depth_key: ClassVar[str] = "num_hidden_layers"
    moved_to_sdpa: ClassVar[bool] = True
    layout: Literal["huggingface", "torch"] = "huggingface"
    """Names, shapes and order of the parameters: those of transformers' BertModel,
    BertForSequenceClassification or BertForMaskedLM, depending on the head; or of nn.Embedding,
    nn.TransformerEncoder, with one weight for queries, keys and values, and nn.Linear."""
    vocab_size: Int = Field(30522, ge=1, le=10**9)
    hidden_size: Int = Field(768, ge=1, le=10**7)
    """Width of a token."""
    num_hidden_layers: Int = Field(12, ge=1, le=10**4)
    """Number of encoder layers."""
    num_attention_heads: Int = Field(12, ge=1, le=10**7)
    """Heads of each one's attention."""
    intermediate_size: Int = Field(3072, ge=1, le=10**8)
    """Width between the two feed-forward maps."""
    max_position_embeddings: Int = Field(512, ge=1, le=10**8)
    """Number of positions and of token types."""
    type_vocab_size: Int = Field(2, ge=1, le=10**8)
    """Number of positions and of token types."""
    hidden_act: ActivationName = "gelu"
    """Activation between the feed-forward maps."""
    hidden_dropout_prob: Float = Field(0.1, ge=0, le=1)
    """Dropout of the embeddings and after each sublayer, and of the attention weights."""
    attention_probs_dropout_prob: Float = Field(0.1, ge=0, le=1)
    """Dropout of the embeddings and after each sublayer, and of the attention weights."""
    layer_norm_eps: Float = Field(1e-12, ge=0)
    """Added to the variance by every norm."""
    pad_id: Int | None = None
    """Token that pads short samples; masked in attention."""
    pooler: Bool | None = None
    """A linear map and tanh of the first token, before the head; by default as in transformers, for
    all heads but masked_lm."""
    head: Literal["none", "classification", "masked_lm"] = "classification"
    """Output: the pooler's, or the hidden states of a model without one; ``num_labels`` numbers per
    sample; or a score for each word of the vocabulary per token."""
    num_labels: Int | None = Field(None, ge=1, le=10**8)
    """Outputs of the classification head; 2 by default."""

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        check_heads(
            "num_attention_heads", self.num_attention_heads, "hidden_size", self.hidden_size
        )
        check_token("pad_id", self.pad_id, self.vocab_size)
        return self

    @model_validator(mode="after")
    def _keys_go_with_the_head(self) -> Self:
        if self.num_labels is not None and self.head != "classification":
            raise problem(
                f"num_labels goes with head: classification, but the head is {self.head}; "
                "leave it out, or change the head."
            )
        if self.head == "masked_lm" and self.pooler:
            raise problem("pooler: head: masked_lm does not use it; leave it out.")
        return self

    @model_validator(mode="after")
    def _torch_has_such_layers(self) -> Self:
        if self.layout != "torch":
            return self
        if self.head == "masked_lm":
            raise problem("head: masked_lm needs layout: huggingface; change one of them.")
        if self.hidden_act == "gelu_new":
            raise problem("hidden_act: layout: torch has gelu and relu; choose one of them.")
        if self.hidden_dropout_prob != self.attention_probs_dropout_prob:
            raise problem(
                f"hidden_dropout_prob is {self.hidden_dropout_prob} and "
                f"attention_probs_dropout_prob {self.attention_probs_dropout_prob}, but an encoder "
                "layer of layout: torch has one dropout; give both the same."
            )
        return self

    # The graph ---------------------------------------------------------------------------------

    def build(self) -> ModelGraph:
        graph = GraphBuilder("x")
        h = self._embedded(graph)
        padding = None if self.pad_id is None else KeyPadding(graph.input("x"), self.pad_id)
        for number in range(self.num_hidden_layers):
            h = self._layer(number).encode(graph, h, padding)
        if self.head == "masked_lm":
            return graph.build(self._words(graph, h))
        if self._has_pooler:
            h = self._pooled(graph, h)
        if self.head == "classification":
            h = self._labels(graph, h)
        return graph.build(h)

    @property
    def _has_pooler(self) -> bool:
        return self.head != "masked_lm" if self.pooler is None else self.pooler

    def _path(self, name: str) -> str:
        """Path of a module in the whole model; transformers' heads hold a BertModel ``bert``."""
        inside = self.layout == "huggingface" and self.head != "none"
        return f"bert.{name}" if inside else name

    def _embedded(self, graph: GraphBuilder) -> Value:
        names, d = NAMES[self.layout], self.hidden_size
        words = Embedding(
            name=self._path(names.words),
            num_embeddings=self.vocab_size,
            embedding_dim=d,
            padding_idx=self.pad_id if self.layout == "huggingface" else None,
        )
        positions = PositionEmbedding(
            name=self._path(names.positions),
            num_embeddings=self.max_position_embeddings,
            embedding_dim=d,
        )
        types = TokenTypeEmbedding(
            name=self._path(names.token_types),
            num_embeddings=self.type_vocab_size,
            embedding_dim=d,
        )
        for layer in (words, positions, types):
            graph.register(layer)
        h = graph.call(types, graph.call(words, graph.input("x")))
        h = self._norm(graph, self._path(names.norm), graph.call(positions, h))
        return self._drop(graph, f"{self._path(names.norm)}.dropout", h)

    def _layer(self, number: int) -> EncoderLayer:
        name = f"{self._path(NAMES[self.layout].layers)}.{number}"
        if self.layout == "torch":
            assert self.hidden_act != "gelu_new", "the checks refuse it"
            return TransformerEncoderLayer(
                name=name,
                d_model=self.hidden_size,
                nhead=self.num_attention_heads,
                dim_feedforward=self.intermediate_size,
                dropout=self.hidden_dropout_prob,
                activation=self.hidden_act,
                layer_norm_eps=self.layer_norm_eps,
            )
        return BertLayer(
            name=name,
            hidden_size=self.hidden_size,
            num_heads=self.num_attention_heads,
            intermediate_size=self.intermediate_size,
            hidden_dropout=self.hidden_dropout_prob,
            attention_dropout=self.attention_probs_dropout_prob,
            activation=self.hidden_act,
            layer_norm_eps=self.layer_norm_eps,
        )

    def _pooled(self, graph: GraphBuilder, h: Value) -> Value:
        name = self._path(NAMES[self.layout].pooler)
        h = graph.call(FirstToken(name=f"{name}.first_token"), h)
        return graph.call(Tanh(name=f"{name}.tanh"), self._linear(graph, name, h, self.hidden_size))

    def _labels(self, graph: GraphBuilder, h: Value) -> Value:
        if not self._has_pooler:
            h = graph.call(FirstToken(name="classifier.first_token"), h)
        h = self._drop(graph, "classifier.dropout", h)
        return self._linear(graph, "classifier", h, self.num_labels or 2)

    def _words(self, graph: GraphBuilder, h: Value) -> Value:
        """Transformers' BertLMPredictionHead, which shares the weight of the word embeddings."""
        name, d = "cls.predictions", self.hidden_size
        decoder = graph.register(
            Projection(
                name=f"{name}.decoder",
                weight=f"{self._path(NAMES[self.layout].words)}.weight",
                bias=f"{name}.bias",
                in_features=d,
                out_features=self.vocab_size,
                first=0,
                last=self.vocab_size,
                bound=0.0,
            ),
            draws=(),
        )
        h = self._linear(graph, f"{name}.transform.dense", h, d)
        alone = Linear(name=f"{name}.decoder", in_features=d, out_features=self.vocab_size)
        graph.draw(*alone.parameters())  # constructed, then tied
        h = graph.call(activation(ACTIVATION_KINDS[self.hidden_act], f"{name}.transform.act"), h)
        return graph.call(decoder, self._norm(graph, f"{name}.transform.LayerNorm", h))

    def _linear(self, graph: GraphBuilder, name: str, h: Value, fan_out: int) -> Value:
        linear = Linear(name=name, in_features=self.hidden_size, out_features=fan_out)
        return graph.call(linear, h)

    def _norm(self, graph: GraphBuilder, name: str, h: Value) -> Value:
        norm = LayerNorm(name=name, normalized_shape=self.hidden_size, eps=self.layer_norm_eps)
        return graph.call(norm, h)

    def _drop(self, graph: GraphBuilder, name: str, h: Value) -> Value:
        p = self.hidden_dropout_prob
        return graph.call(Dropout(name=name, p=p), h) if p else h

    def constructed(self) -> Sequence[Parameter]:
        made = self.graph.draws
        return with_copies(made) if self.layout == "torch" else made

    def in_trunk(self, name: str) -> bool:
        return name.startswith(self._path(""))

    # The samples -------------------------------------------------------------------------------

    @property
    def num_places(self) -> int:
        return self.max_position_embeddings

    @property
    def usual_length(self) -> int:
        return min(GLUE_LENGTH, self.max_position_embeddings)

    @property
    def padding(self) -> int | None:
        # Targets of hidden states have all tokens, so no sample is cut.
        hidden_states = self.head == "none" and not self._has_pooler
        return None if hidden_states else self.pad_id

    @property
    def target_follows(self) -> str | None:
        return "x" if self.head == "masked_lm" else None
