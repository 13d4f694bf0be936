"""ViT (images as patches), as transformers' ViTForImageClassification."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from simdp.spec import Bool, Float, Int, problem
from simdp.workload.layers.base import (
    GraphBuilder,
    Initial,
    ModelGraph,
    Parameter,
    Shape,
    Value,
    check_heads,
    constant,
    normal,
    trunc_normal,
)
from simdp.workload.layers.conv import Conv2d
from simdp.workload.layers.embedding import ViTEmbeddings
from simdp.workload.layers.linear import Linear
from simdp.workload.layers.normalization import LayerNorm
from simdp.workload.layers.tensor_ops import Dropout, FirstToken
from simdp.workload.layers.transformer import ActivationName, ViTLayer
from simdp.workload.models.base import FileNames, Model

OLD = r"encoder\.layer\.(\d+)\."
"""Prefix of a layer's tensors before transformers 5."""


class ViT(Model):
    """Patches and a class token, encoder layers, a norm, and a map of the class token.

    Keys are named as in transformers' ViTConfig, parameters as in transformers 5.

    References
    ----------
    Dosovitskiy et al., "An image is worth 16x16 words: transformers for image recognition at
    scale", ICLR 2021 (arXiv 2010.11929); transformers/models/vit/modeling_vit.py.
    """

    file_names: ClassVar[FileNames] = FileNames(
        prefix="vit",
        renames=(
            (
                OLD + r"attention\.attention\.(q|k|v)(uery|ey|alue)\.",
                r"layers.\1.attention.\2_proj.",
            ),
            (OLD + r"attention\.output\.dense\.", r"layers.\1.attention.o_proj."),
            (OLD + r"intermediate\.dense\.", r"layers.\1.mlp.fc1."),
            (OLD + r"output\.dense\.", r"layers.\1.mlp.fc2."),
            (OLD + r"layernorm_", r"layers.\1.layernorm_"),
        ),
    )

    kind: Literal["vit"] = "vit"
    depth_key: ClassVar[str] = "num_hidden_layers"
    hidden_size: Int = Field(768, ge=1, le=10**7)
    """Width of a token."""
    num_hidden_layers: Int = Field(12, ge=1, le=10**4)
    """Number of encoder layers."""
    num_attention_heads: Int = Field(12, ge=1, le=10**7)
    """Heads of each one's attention."""
    intermediate_size: Int = Field(3072, ge=1, le=10**8)
    """Width between the two feed-forward maps."""
    hidden_act: ActivationName = "gelu"
    """Activation between the feed-forward maps."""
    hidden_dropout_prob: Float = Field(0.0, ge=0, le=1)
    """Dropout of the embeddings and after each sublayer, and of the attention weights."""
    attention_probs_dropout_prob: Float = Field(0.0, ge=0, le=1)
    """Dropout of the embeddings and after each sublayer, and of the attention weights."""
    initializer_range: Float = Field(0.02, ge=0)
    """Standard deviation of the initial weights."""
    layer_norm_eps: Float = Field(1e-12, ge=0)
    """Added to the variance by every norm."""
    image_size: Int = Field(224, ge=1, le=10**5)
    """Height and width of an image and of a patch [pixels]."""
    patch_size: Int = Field(16, ge=1, le=10**5)
    """Height and width of an image and of a patch [pixels]."""
    num_channels: Int = Field(3, ge=1, le=10**6)
    """Channels of an image."""
    qkv_bias: Bool = True
    """Whether the maps to queries, keys and values have a bias."""
    num_labels: Int = Field(2, ge=1, le=10**7)
    """Number of classes."""

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        check_heads(
            "num_attention_heads", self.num_attention_heads, "hidden_size", self.hidden_size
        )
        if self.patch_size > self.image_size:
            raise problem(
                f"patch_size: {self.patch_size} is larger than the image of {self.image_size} "
                "pixels; write a patch that fits."
            )
        return self

    def build(self) -> ModelGraph:
        graph, d = GraphBuilder("x"), self.hidden_size
        h = self._embedded(graph)
        for number in range(self.num_hidden_layers):
            h = self._layer(number).add_to(graph, h)
        norm = LayerNorm(name="vit.layernorm", normalized_shape=d, eps=self.layer_norm_eps)
        h = graph.call(FirstToken(name="classifier.first_token"), graph.call(norm, h))
        head = Linear(name="classifier", in_features=d, out_features=self.num_labels)
        return graph.build(graph.call(head, h))

    def _embedded(self, graph: GraphBuilder) -> Value:
        name, d = "vit.embeddings", self.hidden_size
        tokens = graph.register(
            ViTEmbeddings(
                name=name, num_patches=(self.image_size // self.patch_size) ** 2, hidden_size=d
            )
        )
        patches = Conv2d(
            name=f"{name}.patch_embeddings.projection",
            in_channels=self.num_channels,
            out_channels=d,
            kernel_size=(self.patch_size, self.patch_size),
            stride=(self.patch_size, self.patch_size),
        )
        h = graph.call(tokens, graph.call(patches, graph.input("x")))
        p = self.hidden_dropout_prob
        return graph.call(Dropout(name=f"{name}.dropout", p=p), h) if p else h

    def _layer(self, number: int) -> ViTLayer:
        return ViTLayer(
            name=f"vit.layers.{number}",
            hidden_size=self.hidden_size,
            num_heads=self.num_attention_heads,
            intermediate_size=self.intermediate_size,
            hidden_dropout=self.hidden_dropout_prob,
            attention_dropout=self.attention_probs_dropout_prob,
            activation=self.hidden_act,
            layer_norm_eps=self.layer_norm_eps,
            qkv_bias=self.qkv_bias,
        )

    def initial(self, parameter: Parameter) -> Initial:
        if len(parameter.shape) == 3:
            return trunc_normal(self.initializer_range)
        if len(parameter.shape) > 1:
            return normal(self.initializer_range)
        return constant(0.0) if parameter.name.endswith("bias") else parameter.initial

    def in_trunk(self, name: str) -> bool:
        return name.startswith("vit.")

    def filled_again(self) -> Sequence[Parameter]:
        """Module by module: the patches' map, then positions and the class token."""
        cls, places, patches, *rest = super().filled_again()
        bias, *rest = rest
        return [patches, bias, places, cls, *rest]

    def input_shapes(self) -> dict[str, Shape | None]:
        return {"x": (self.num_channels, self.image_size, self.image_size)}
