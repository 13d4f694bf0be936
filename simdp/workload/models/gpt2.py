"""GPT-2 as a language model, as transformers' GPT2LMHeadModel."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from simdp.spec import Float, Int
from simdp.workload.graph import Graph, GraphBuilder
from simdp.workload.layers import Parameter
from simdp.workload.layers.arguments import check_heads
from simdp.workload.layers.dropout import Dropout
from simdp.workload.layers.embedding import Embedding
from simdp.workload.layers.gpt2_block import GPT2Block
from simdp.workload.layers.huggingface_layer import ActivationName
from simdp.workload.layers.layer_norm import LayerNorm
from simdp.workload.layers.parameter import normal
from simdp.workload.layers.position_embedding import PositionEmbedding
from simdp.workload.layers.projection import Projection
from simdp.workload.models.file_names import FileNames
from simdp.workload.models.text import TextModel


class GPT2(TextModel):
    """Embeddings of tokens and places, causal blocks, a norm, and the token embedding again.

    One output per token: a number for each token that may come next. Keys are named as
    transformers' GPT2Config.

    Attributes
    ----------
    n_positions : int
        Places that the model knows.
    n_embd, n_layer, n_head : int
        Width of a token, number of blocks, heads of each one's attention.
    n_inner : int or None
        Width between the two feed-forward maps; by default 4 n_embd.
    embd_pdrop, attn_pdrop, resid_pdrop : float
        Dropout of the embeddings, of the attention's weights, and behind each sublayer.
    activation_function : {"gelu_new", "gelu", "relu"}
        Between the feed-forward maps.
    layer_norm_epsilon : float
        Added to the variance by every norm.

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
    padding_is_unseen: ClassVar[bool] = True
    vocab_size: Int = Field(50257, ge=1, le=10**9)
    n_positions: Int = Field(1024, ge=1, le=10**8)
    n_embd: Int = Field(768, ge=1, le=10**7)
    n_layer: Int = Field(12, ge=1, le=10**4)
    n_head: Int = Field(12, ge=1, le=10**7)
    n_inner: Int | None = Field(None, ge=1, le=10**8)
    activation_function: ActivationName = "gelu_new"
    resid_pdrop: Float = Field(0.1, ge=0, le=1)
    embd_pdrop: Float = Field(0.1, ge=0, le=1)
    attn_pdrop: Float = Field(0.1, ge=0, le=1)
    layer_norm_epsilon: Float = Field(1e-5, ge=0)

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        check_heads("n_head", self.n_head, "n_embd", self.n_embd)
        return self

    def build(self) -> Graph:
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
        return graph.build(graph.call(self._lm_head(), graph.call(norm, h)))

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

    def _lm_head(self) -> Projection:
        return Projection(
            name="lm_head",
            weight="transformer.wte.weight",
            bias="",
            in_features=self.n_embd,
            out_features=self.vocab_size,
            first=0,
            last=self.vocab_size,
            bound=0.0,
        )

    def std_of(self, name: str) -> float:
        """Weights in front of a sum start smaller, as there are 2 n_layer such sums."""
        in_front = name.endswith("c_proj.weight")
        return self.initializer_range / (sqrt(2 * self.n_layer) if in_front else 1)

    def filled_again(self) -> Sequence[Parameter]:
        """Weights in front of a sum twice: as any other, then with their smaller deviation."""
        found = list[Parameter]()
        for parameter in super().filled_again():
            if parameter.name.endswith("c_proj.weight"):
                found.append(parameter._replace(initial=normal(self.initializer_range)))
            found.append(parameter)
        return found

    @property
    def num_places(self) -> int:
        return self.n_positions

    @property
    def usual_length(self) -> int:
        return self.n_positions

    @property
    def target_follows(self) -> str | None:
        return "x"
