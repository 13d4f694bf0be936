"""BertLayer, as transformers': queries, keys and values are maps of their own; post-LN."""

from __future__ import annotations

from typing import Literal

from simdp.workload.graph import GraphBuilder, Value
from simdp.workload.layers.attention import Attention, KeyPadding
from simdp.workload.layers.encoder_layer import EncoderLayer
from simdp.workload.layers.huggingface_layer import HuggingFaceLayer
from simdp.workload.layers.linear import Linear


class BertLayer(HuggingFaceLayer, EncoderLayer):
    """Self-attention over the whole sequence, then two linear maps on every token alone.

    Devlin et al., "BERT: pre-training of deep bidirectional transformers for language
    understanding", NAACL 2019 (arXiv 1810.04805).
    """

    kind: Literal["bert_layer"] = "bert_layer"

    def encode(self, graph: GraphBuilder, x: Value, padding: KeyPadding | None = None) -> Value:
        d, wide = self.hidden_size, self.intermediate_size
        parts = [
            self._linear(graph, f"attention.self.{part}", x, d, d)
            for part in ("query", "key", "value")
        ]
        core = Attention(
            name=f"{self.name}.attention.self",
            num_heads=self.num_heads,
            dropout=self.attention_dropout,
            pad_id=padding.pad_id if padding else None,
        )
        h = graph.call(core, *parts, *([padding.tokens] if padding else []))
        h = self._linear(graph, "attention.output.dense", h, d, d)
        h = self.add(graph, "attention.output", x, h)
        x = self.norm(graph, "attention.output.LayerNorm", h)

        h = self._linear(graph, "intermediate.dense", x, d, wide)
        h = self.act(graph, "intermediate.act", h)
        h = self._linear(graph, "output.dense", h, wide, d)
        return self.norm(graph, "output.LayerNorm", self.add(graph, "output", x, h))

    def _linear(self, graph: GraphBuilder, name: str, x: Value, fan_in: int, fan_out: int) -> Value:
        name = f"{self.name}.{name}"
        return graph.call(Linear(name=name, in_features=fan_in, out_features=fan_out), x)
