"""Qwen2 as a language model, as transformers' Qwen2ForCausalLM."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from simdp.spec import Int
from simdp.workload.models.decoder import Decoder


class Qwen2(Decoder):
    """As Llama, but queries, keys and values have biases.

    References
    ----------
    Yang et al., "Qwen2 technical report", arXiv 2407.10671;
    transformers/models/qwen2/modeling_qwen2.py.
    """

    kind: Literal["qwen2"] = "qwen2"
    vocab_size: Int = Field(151936, ge=1, le=10**9)
    intermediate_size: Int = Field(22016, ge=1, le=10**8)
    max_position_embeddings: Int = Field(32768, ge=1, le=10**8)

    @property
    def biases(self) -> dict[str, bool]:
        return {"qkv_bias": True}
