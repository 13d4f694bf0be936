"""Llama as a language model, as transformers' LlamaForCausalLM."""

from __future__ import annotations

from typing import Literal

from simdp.spec import Bool
from simdp.workload.models.decoder import Decoder


class Llama(Decoder):
    """RMSNorm, rotary embeddings, grouped queries and SwiGLU, without biases.

    Attributes
    ----------
    attention_bias : bool
        Whether all four projections of attention have a bias.
    mlp_bias : bool
        Whether the three maps of the feed-forward part have one.

    References
    ----------
    Touvron et al., "Llama 2: open foundation and fine-tuned chat models", arXiv 2307.09288;
    transformers/models/llama/modeling_llama.py.
    """

    kind: Literal["llama"] = "llama"
    attention_bias: Bool = False
    mlp_bias: Bool = False

    @property
    def biases(self) -> dict[str, bool]:
        return {
            "qkv_bias": self.attention_bias,
            "out_bias": self.attention_bias,
            "mlp_bias": self.mlp_bias,
        }
