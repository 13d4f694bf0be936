"""GPT2Block, as transformers': pre-LN, causal, with transposed weights."""

from __future__ import annotations

from typing import Literal

from simdp.workload.graph import GraphBuilder, Value
from simdp.workload.layers.attention import Attention
from simdp.workload.layers.huggingface_layer import HuggingFaceLayer
from simdp.workload.layers.transposed_linear import TransposedLinear


class GPT2Block(HuggingFaceLayer):
    """Self-attention to earlier tokens, then two linear maps on every token alone.

    Radford et al., "Language models are unsupervised multitask learners", OpenAI 2019.
    """

    kind: Literal["gpt2_block"] = "gpt2_block"

    def add_to(self, graph: GraphBuilder, *inputs: Value) -> Value:
        x, d, wide = inputs[0], self.hidden_size, self.intermediate_size
        h = self.norm(graph, "ln_1", x)
        h = self._map(graph, "attn.c_attn", h, d, 3 * d)
        core = Attention(
            name=f"{self.name}.attn",
            num_heads=self.num_heads,
            causal=True,
            dropout=self.attention_dropout,
        )
        h = self._map(graph, "attn.c_proj", graph.call(core, h), d, d)
        x = self.add(graph, "attn", x, h)

        h = self.norm(graph, "ln_2", x)
        h = self.act(graph, "mlp.act", self._map(graph, "mlp.c_fc", h, d, wide))
        h = self._map(graph, "mlp.c_proj", h, wide, d)
        return self.add(graph, "mlp", x, h)

    def _map(self, graph: GraphBuilder, name: str, x: Value, fan_in: int, fan_out: int) -> Value:
        name = f"{self.name}.{name}"
        return graph.call(TransposedLinear(name=name, in_features=fan_in, out_features=fan_out), x)
