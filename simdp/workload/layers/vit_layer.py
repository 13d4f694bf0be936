"""ViTLayer, as transformers': pre-LN, queries, keys and values are maps of their own."""

from __future__ import annotations

from typing import Literal

from simdp.spec import Bool
from simdp.workload.graph import GraphBuilder, Value
from simdp.workload.layers.attention import Attention
from simdp.workload.layers.huggingface_layer import HuggingFaceLayer
from simdp.workload.layers.layer_norm import LayerNorm
from simdp.workload.layers.linear import Linear


class ViTLayer(HuggingFaceLayer):
    """Self-attention over the whole sequence, then two linear maps on every token alone.

    Attributes
    ----------
    qkv_bias : bool
        Whether the maps to queries, keys and values have one.

    References
    ----------
    Dosovitskiy et al., "An image is worth 16x16 words", ICLR 2021 (arXiv 2010.11929), equations 2
    and 3; transformers 5, models/vit/modeling_vit.py.
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
            implementation="flash",  # transformers takes torch's fused kernels where there are any
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

    def _norm(self, name: str) -> LayerNorm:
        return LayerNorm(
            name=f"{self.name}.{name}",
            normalized_shape=self.hidden_size,
            eps=self.layer_norm_eps,
        )
