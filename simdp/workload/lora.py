"""LoRA's settings: small products beside frozen ones, as PEFT adds them to a model."""

from __future__ import annotations

from pydantic import Field

from simdp.spec import Float, Int, Spec


class Lora(Spec):
    """``y = W x + b + (alpha / rank) B A x`` in place of ``W x + b``, of which A and B learn.

    A starts as torch's Linear does, and B at 0, so that the model starts as it was. All else that
    the model learns is frozen. The adapters are called as PEFT calls them,
    ``<layer>.lora_A.default.weight`` of shape ``(rank, in_features)`` and
    ``<layer>.lora_B.default.weight`` of shape ``(out_features, rank)``.

    Attributes
    ----------
    rank : int
        Between A and B.
    alpha : float
        Over the rank, what the adapter's output is multiplied by.
    targets : tuple of str
        Linear layers that get an adapter, by the end of their names, as ``q_proj``, or by patterns
        as in an optimizer's groups.
    dropout : float
        Of what enters A.

    References
    ----------
    Hu et al., "LoRA: low-rank adaptation of large language models", arXiv 2106.09685; peft,
    tuners/lora/layer.py.
    """

    rank: Int = Field(8, ge=1, le=10**6)
    alpha: Float = Field(8.0, gt=0)
    targets: tuple[str, ...] = Field(min_length=1)
    dropout: Float = Field(0.0, ge=0, lt=1)
