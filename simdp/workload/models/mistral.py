"""Mistral as a language model, as transformers' MistralForCausalLM."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from simdp.spec import Int
from simdp.workload.models.decoder import Decoder


class Mistral(Decoder):
    """As Llama, but a token looks at a window of those before it.

    Attributes
    ----------
    sliding_window : int or None
        Tokens that one looks back at, itself among them; None for all.

    References
    ----------
    Jiang et al., "Mistral 7B", arXiv 2310.06825;
    transformers/models/mistral/modeling_mistral.py.
    """

    kind: Literal["mistral"] = "mistral"
    intermediate_size: Int = Field(14336, ge=1, le=10**8)
    num_key_value_heads: Int | None = Field(8, ge=1, le=10**7)
    max_position_embeddings: Int = Field(131072, ge=1, le=10**8)
    sliding_window: Int | None = Field(4096, ge=1, le=10**8)

    @property
    def biases(self) -> dict[str, bool]:
        return {}

    @property
    def window(self) -> int | None:
        return self.sliding_window
