"""Transformers over tokens: language model, classifier, and sequence to sequence.

Parameters are named as in a torch module of ``nn.Embedding``, ``nn.TransformerEncoder`` or
``nn.Transformer``, and ``nn.Linear``.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from simdp.spec import Bool, Float, Int, problem
from simdp.workload.layers.attention import KeyPadding
from simdp.workload.layers.base import (
    GraphBuilder,
    Initial,
    ModelGraph,
    Parameter,
    Shape,
    Value,
    check_heads,
    check_token,
    xavier_uniform,
)
from simdp.workload.layers.embedding import Embedding, PositionalEncoding
from simdp.workload.layers.linear import Linear
from simdp.workload.layers.normalization import LayerNorm
from simdp.workload.layers.pooling import MeanPool
from simdp.workload.layers.tensor_ops import Dropout, FirstToken, Scale
from simdp.workload.layers.transformer import (
    TransformerDecoderLayer,
    TransformerEncoderLayer,
    TransformerLayer,
    with_copies,
)
from simdp.workload.models.base import SequenceModel

OWN_KEYS = {
    "classifier": ("num_labels", "pooling"),
    "language_model": (),
    "seq2seq": ("tgt_vocab_size", "tgt_sequence_length", "num_decoder_layers", "shared_embedding"),
}
"""Keys that only one task has."""


class Transformer(SequenceModel):
    """Embedding, positional encoding, encoder (and decoder) layers, and a linear map ``fc``.

    The inputs are tokens ``x``; for seq2seq also ``tgt``, the decoder's input. Keys named as
    torch's have torch's defaults, those of nn.Transformer.
    """

    kind: Literal["transformer"] = "transformer"
    task: Literal["language_model", "classifier", "seq2seq"]
    """One output per token, per sample, or per token of ``tgt``."""
    vocab_size: Int = Field(ge=1, le=10**9)
    """Sizes of the vocabularies of ``x`` and ``tgt``; equal by default."""
    tgt_vocab_size: Int | None = Field(None, ge=1, le=10**9)
    """Sizes of the vocabularies of ``x`` and ``tgt``; equal by default."""
    d_model: Int = Field(512, ge=1, le=10**8)
    """Width of a token."""
    nhead: Int = Field(8, ge=1)
    """Heads of each attention."""
    num_layers: Int = Field(6, ge=1, le=10**4)
    """Of the encoder."""
    num_decoder_layers: Int | None = Field(None, ge=1, le=10**4)
    """Of the decoder, by default as many."""
    dim_feedforward: Int = Field(2048, ge=1, le=10**8)
    """Width between the two linear maps of a layer."""
    dropout: Float = Field(0.1, ge=0, le=1)
    """After the embedding and each sublayer, between the linear maps, and of the attention
    weights."""
    activation: Literal["relu", "gelu"] = "relu"
    """Between the linear maps."""
    layer_norm_eps: Float = Field(1e-5, ge=0)
    """Added to the variance by every norm."""
    norm_first: Bool = False
    """As in `TransformerEncoderLayer`."""
    causal: Bool | None = None
    """Whether a token attends only to those before it; by default in a language model. The ``tgt``
    of seq2seq always does, its encoder never."""
    pad_id: Int | None = None
    """Token that pads short samples; masked in attention."""
    scale_embedding: Bool = True
    """Whether to multiply the embedding by sqrt(d_model)."""
    positional_encoding: Literal["sinusoidal", "none"] = "sinusoidal"
    """Encoding added to the embedding."""
    shared_embedding: Bool = False
    """Whether ``x`` and ``tgt`` share one embedding."""
    num_labels: Int | None = Field(None, ge=1, le=10**8)
    """Outputs of a classifier."""
    pooling: Literal["mean", "first"] | None = None
    """Input of a classifier: the mean over the tokens without padding, or the first one."""
    sequence_length: Int | None = Field(None, ge=1, le=10**8)
    """Length of a sample; by default that of the data."""
    tgt_sequence_length: Int | None = Field(None, ge=1, le=10**8)
    """Length of a sample; by default that of the data."""

    @model_validator(mode="after")
    def _keys_go_with_the_task(self) -> Self:
        for task, keys in OWN_KEYS.items():
            for key in keys:
                if task != self.task and getattr(self, key):
                    raise problem(
                        f"{key} goes with task: {task}, but the task is {self.task}; "
                        "leave it out, or change the task."
                    )
        if self.task == "classifier" and self.num_labels is None:
            raise problem("num_labels is required for task: classifier; add num_labels: 2.")
        if self.task == "seq2seq" and self.causal is False:
            raise problem("causal: tgt is always causal in task: seq2seq; leave the key out.")
        return self

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        check_heads("nhead", self.nhead, "d_model", self.d_model)
        if self.shared_embedding and self._tgt_vocab_size != self.vocab_size:
            raise problem(
                f"shared_embedding: tgt_vocab_size is {self.tgt_vocab_size} and vocab_size "
                f"{self.vocab_size}; one embedding needs one vocabulary."
            )
        check_token("pad_id", self.pad_id, min(self.vocab_size, self._tgt_vocab_size))
        return self

    @property
    def _tgt_vocab_size(self) -> int:
        return self.tgt_vocab_size or self.vocab_size

    # The graph ---------------------------------------------------------------------------------

    def build(self) -> ModelGraph:
        if self.task == "seq2seq":
            return self._seq2seq(GraphBuilder("x", "tgt"))
        graph = GraphBuilder("x")
        tokens = graph.input("x")
        h = self._embedded(graph, self._embedding("embedding", self.vocab_size), tokens, "")
        causal = self.task == "language_model" if self.causal is None else self.causal
        h = self._encoded(graph, h, "encoder", causal, self.norm_first)
        if self.task == "classifier":
            return graph.build(self._fc(graph, self._pooled(graph, h, tokens), self.num_labels))
        return graph.build(self._fc(graph, h, self.vocab_size))

    def _seq2seq(self, graph: GraphBuilder) -> ModelGraph:
        x, tgt = graph.input("x"), graph.input("tgt")
        if self.shared_embedding:
            of_src = of_tgt = self._embedding("embedding", self.vocab_size)
        else:
            of_src = self._embedding("src_embedding", self.vocab_size)
            of_tgt = self._embedding("tgt_embedding", self._tgt_vocab_size)
        memory = self._embedded(graph, of_src, x, "src_")
        h = self._embedded(graph, of_tgt, tgt, "tgt_")
        # nn.Transformer ends both parts with a norm, even with post-LN layers.
        memory = self._encoded(graph, memory, "transformer.encoder", False, True)
        for number in range(self.num_decoder_layers or self.num_layers):
            layer = TransformerDecoderLayer(
                name=f"transformer.decoder.layers.{number}", **self._layer_settings()
            )
            h = layer.decode(graph, h, memory, self._padding(tgt), self._padding(x))
        h = graph.call(self._norm("transformer.decoder.norm"), h)
        return graph.build(self._fc(graph, h, self._tgt_vocab_size))

    def _embedding(self, name: str, vocab_size: int) -> Embedding:
        return Embedding(name=name, num_embeddings=vocab_size, embedding_dim=self.d_model)

    def _embedded(
        self, graph: GraphBuilder, embedding: Embedding, tokens: Value, side: str
    ) -> Value:
        h = graph.call(embedding, tokens)
        if self.scale_embedding:
            h = graph.call(Scale(name=f"{side}scale", factor=sqrt(self.d_model)), h)
        if self.positional_encoding == "sinusoidal":
            waves = PositionalEncoding(name=f"{side}positional_encoding", d_model=self.d_model)
            h = graph.call(waves, h)
        if self.dropout:
            h = graph.call(Dropout(name=f"{side}dropout", p=self.dropout), h)
        return h

    def _encoded(
        self, graph: GraphBuilder, h: Value, name: str, causal: bool, last_norm: bool
    ) -> Value:
        for number in range(self.num_layers):
            layer = TransformerEncoderLayer(
                name=f"{name}.layers.{number}",
                mask="causal" if causal else "none",
                **self._layer_settings(),
            )
            h = layer.encode(graph, h, self._padding(graph.input("x")))
        return graph.call(self._norm(f"{name}.norm"), h) if last_norm else h

    def _layer_settings(self) -> dict[str, Any]:
        """Settings that encoder and decoder layers share with the model, by the same names."""
        names = [name for name in TransformerLayer.model_fields if name in type(self).model_fields]
        return {name: getattr(self, name) for name in names if name != "kind"}

    def _norm(self, name: str) -> LayerNorm:
        return LayerNorm(name=name, normalized_shape=self.d_model, eps=self.layer_norm_eps)

    def _padding(self, tokens: Value) -> KeyPadding | None:
        return None if self.pad_id is None else KeyPadding(tokens, self.pad_id)

    def _pooled(self, graph: GraphBuilder, h: Value, tokens: Value) -> Value:
        if self.pooling == "first":
            return graph.call(FirstToken(name="pool"), h)
        pool = MeanPool(name="pool", pad_id=self.pad_id)
        return graph.call(pool, h, *([] if self.pad_id is None else [tokens]))

    def _fc(self, graph: GraphBuilder, h: Value, num_outputs: int | None) -> Value:
        assert num_outputs is not None, "a classifier has labels"
        return graph.call(Linear(name="fc", in_features=self.d_model, out_features=num_outputs), h)

    def initial(self, parameter: Parameter) -> Initial:
        """As the layers do, but nn.Transformer draws its matrices by xavier_uniform_."""
        if parameter.name.startswith("transformer.") and len(parameter.shape) > 1:
            return xavier_uniform(parameter.shape[1], parameter.shape[0])
        return parameter.initial

    def in_trunk(self, name: str) -> bool:
        return not name.startswith("fc.")

    def constructed(self) -> Sequence[Parameter]:
        return with_copies(self.graph.draws)

    # The samples -------------------------------------------------------------------------------

    def input_shapes(self) -> dict[str, Shape | None]:
        shapes: dict[str, Shape | None] = {"x": _shape(self.sequence_length)}
        if self.task == "seq2seq":
            shapes["tgt"] = _shape(self.tgt_sequence_length)
        return shapes

    def how_to_give_shapes(self) -> str:
        both = " and tgt_sequence_length" if self.task == "seq2seq" else ""
        return f"give sequence_length{both} in the model, or data with samples of shape (length,)."

    def num_tokens(self, name: str) -> int | None:
        return self._tgt_vocab_size if name == "tgt" else self.vocab_size

    @property
    def padding(self) -> int | None:
        return self.pad_id

    @property
    def target_follows(self) -> str | None:
        return {"language_model": "x", "seq2seq": "tgt"}.get(self.task)


def _shape(length: int | None) -> Shape | None:
    return None if length is None else (length,)
