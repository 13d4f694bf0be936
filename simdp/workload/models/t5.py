"""T5 (text to text), as transformers' T5ForConditionalGeneration."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import ClassVar, Literal

from pydantic import Field

from simdp.spec import Bool, Float, Int
from simdp.workload.layers.attention import KeyPadding
from simdp.workload.layers.base import (
    GraphBuilder,
    Initial,
    ModelGraph,
    Parameter,
    Shape,
    Value,
    constant,
    normal,
)
from simdp.workload.layers.embedding import Embedding
from simdp.workload.layers.normalization import RMSNorm
from simdp.workload.layers.tensor_ops import Dropout, Scale
from simdp.workload.layers.transformer import FeedForward, T5Block
from simdp.workload.models.base import FileNames, SequenceModel
from simdp.workload.models.llama import lm_head

BIAS = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"
"""Position bias of a stack, held by its first block."""


class T5(SequenceModel):
    """An encoder of ``x``, a decoder of ``tgt`` with cross-attention, and an output map.

    The inputs are tokens: ``x``, and ``tgt``, the decoder's input, which transformers makes of the
    labels by a shift to the right. Keys are named as in transformers' T5Config.

    References
    ----------
    Raffel et al., "Exploring the limits of transfer learning with a unified text-to-text
    transformer", JMLR 21, 2020 (arXiv 1910.10683); transformers/models/t5/modeling_t5.py.
    """

    file_names: ClassVar[FileNames] = FileNames(
        ignored=(
            r"^(encoder|decoder)\.embed_tokens\.weight$",
            r"^lm_head\.weight$",
            r"^decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight$",
        ),
        tied=(("lm_head.weight", "shared.weight"),),
    )

    kind: Literal["t5"] = "t5"
    vocab_size: Int = Field(32128, ge=1, le=10**9)
    """Size of the vocabulary."""
    d_model: Int = Field(512, ge=1, le=10**7)
    """Width of a token, of a head of attention, of the feed-forward part."""
    d_kv: Int = Field(64, ge=1, le=10**7)
    """Width of a token, of a head of attention, of the feed-forward part."""
    d_ff: Int = Field(2048, ge=1, le=10**8)
    """Width of a token, of a head of attention, of the feed-forward part."""
    num_layers: Int = Field(6, ge=1, le=10**4)
    """Blocks of the encoder."""
    num_decoder_layers: Int | None = Field(None, ge=1, le=10**4)
    """Of the decoder, by default as many."""
    num_heads: Int = Field(8, ge=1, le=10**7)
    """Heads of each attention."""
    relative_attention_num_buckets: Int = Field(32, ge=4, le=10**6)
    """Number of distance buckets of the position bias."""
    relative_attention_max_distance: Int = Field(128, ge=2, le=10**8)
    """Distance from which all fall into the last one."""
    dropout_rate: Float = Field(0.1, ge=0, le=1)
    """Of the embeddings, after each sublayer and the last norms, in the feed-forward part, and of
    the attention weights."""
    layer_norm_epsilon: Float = Field(1e-6, ge=0)
    """Added to the mean of the squares by every norm."""
    initializer_factor: Float = Field(1.0, ge=0)
    """Factor of all initial weights."""
    feed_forward_proj: FeedForward = "relu"
    """Activation of the feed-forward part; T5 1.1 has gated-gelu."""
    tie_word_embeddings: Bool = True
    """Whether the output map has the embedding's weight. A file of weights in which both differ
    unties them, as in transformers."""
    scale_decoder_outputs: Bool | None = None
    """Whether to divide the input of the output map by sqrt(d_model); by default if it is tied."""
    pad_id: Int | None = None
    """Token that pads short samples, masked in ``x``. ``tgt`` may begin with it."""
    sequence_length: Int | None = Field(None, ge=1, le=10**8)
    """Length of a sample; by default that of the data."""
    tgt_sequence_length: Int | None = Field(None, ge=1, le=10**8)
    """Length of a sample; by default that of the data."""

    # The graph ---------------------------------------------------------------------------------

    def build(self) -> ModelGraph:
        graph, d = GraphBuilder("x", "tgt"), self.d_model
        words = Embedding(name="shared", num_embeddings=self.vocab_size, embedding_dim=d)
        x, tgt = graph.input("x"), graph.input("tgt")
        padding = None if self.pad_id is None else KeyPadding(x, self.pad_id)
        memory = self._drop(graph, "encoder.dropout", graph.call(words, x))
        for number in range(self.num_layers):
            memory = self._block("encoder", number).code(graph, memory, None, padding)
        memory = self._end(graph, "encoder", memory)
        h = self._drop(graph, "decoder.dropout", graph.call(words, tgt))
        for number in range(self.num_decoder_layers or self.num_layers):
            h = self._block("decoder", number).code(graph, h, memory, padding)
        h = self._end(graph, "decoder", h)
        scale = self.scale_decoder_outputs
        if self.tie_word_embeddings if scale is None else scale:
            h = graph.call(Scale(name="lm_head.scale", factor=d**-0.5), h)
        head = lm_head("shared.weight", d, self.vocab_size, self.tie_word_embeddings)
        return graph.build(graph.call(head, h))

    def _block(self, stack: str, number: int) -> T5Block:
        return T5Block(
            name=f"{stack}.block.{number}",
            d_model=self.d_model,
            d_kv=self.d_kv,
            num_heads=self.num_heads,
            d_ff=self.d_ff,
            decodes=stack == "decoder",
            bias=f"{stack}.{BIAS}",
            first=number == 0,
            num_buckets=self.relative_attention_num_buckets,
            max_distance=self.relative_attention_max_distance,
            dropout=self.dropout_rate,
            eps=self.layer_norm_epsilon,
            feed_forward=self.feed_forward_proj,
        )

    def _end(self, graph: GraphBuilder, stack: str, h: Value) -> Value:
        norm = RMSNorm(
            name=f"{stack}.final_layer_norm",
            normalized_shape=self.d_model,
            eps=self.layer_norm_epsilon,
            fused=False,
        )
        return self._drop(graph, f"{stack}.last_dropout", graph.call(norm, h))

    def _drop(self, graph: GraphBuilder, name: str, h: Value) -> Value:
        p = self.dropout_rate
        return graph.call(Dropout(name=name, p=p), h) if p else h

    def draws(self) -> Sequence[Parameter]:
        """As transformers 5: each stack is constructed and filled, then the head, then ``shared``.

        Each stack starts with an own embedding, which ``shared`` then replaces, and fills all
        weights twice: as any model, then by their fan-in.
        """
        words, *rest = self.graph.draws
        again = {parameter.name: parameter for parameter in self.filled_again()}
        shared, size = again.pop("shared.weight"), self.initializer_factor
        draws = [words]
        for stack in ("encoder", "decoder"):
            own = words._replace(name=f"{stack}.embed_tokens.weight")
            made = [parameter for parameter in rest if parameter.name.startswith(stack)]
            draws += [own, *made, own._replace(initial=normal(size))]
            modules = groupby(made, key=lambda parameter: parameter.name.rsplit(".", 2)[0])
            for _, parameters in modules:
                matrices = [again[p.name] for p in parameters if len(p.shape) > 1]
                draws += [p._replace(initial=normal(size)) for p in matrices] + matrices
        (head,) = lm_head("", self.d_model, self.vocab_size, tied=False).parameters()
        draws += [head, shared, head._replace(initial=normal(size)), shared]
        return [*draws, *(p for p in again.values() if len(p.shape) < 2)]

    def initial(self, parameter: Parameter) -> Initial:
        """As transformers' T5PreTrainedModel: by fan-in."""
        part = parameter.name.split(".")[-2]
        if "norm" in part:
            return constant(self.initializer_factor)
        if part in ("shared", "lm_head"):
            return normal(self.initializer_factor)
        fan_in = {"o": self.num_heads * self.d_kv, "q": self.d_model * self.d_kv, "wo": self.d_ff}
        return normal(self.initializer_factor * fan_in.get(part, self.d_model) ** -0.5)

    # The samples -------------------------------------------------------------------------------

    def input_shapes(self) -> dict[str, Shape | None]:
        lengths = {"x": self.sequence_length, "tgt": self.tgt_sequence_length}
        return {name: None if length is None else (length,) for name, length in lengths.items()}

    def how_to_give_shapes(self) -> str:
        return (
            "give sequence_length and tgt_sequence_length in the model, or data with samples of "
            "shape (length,)."
        )

    def num_tokens(self, name: str) -> int | None:
        return self.vocab_size

    @property
    def padding(self) -> int | None:
        return self.pad_id

    @property
    def target_follows(self) -> str | None:
        return "tgt"
