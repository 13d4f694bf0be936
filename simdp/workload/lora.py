"""Specs of parameter-efficient fine-tuning: LoRA adapters and 4-bit base weights."""

from __future__ import annotations

from pydantic import Field

from simdp.spec import Bool, Float, Int, Spec

# Lora ---------------------------------------------------------------------------------------------


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


# Quantized ----------------------------------------------------------------------------------------


class Quantized(Spec):
    """Weights of linear layers in 4-bit NormalFloat (NF4): frozen, and of times alone.

    A weight is stored, dealt to ranks and gathered as half a byte for each element, packed into the
    dtype of the other weights. Scales of its blocks stay whole on every rank. Before each use, in
    forward, in backward and when a block runs again, kernels read all of it and write it in the
    dtype that the layer computes in.

    Attributes
    ----------
    targets : tuple of str
        Linear layers, by the end of their names, as ``q_proj``, or by patterns as in an optimizer's
        groups.
    block : int
        Elements that share a scale.
    double : bool
        Whether scales have 8 bits, and scales of their own: 0.127 bits for each element in place of
        0.5.

    References
    ----------
    Dettmers et al., "QLoRA: efficient finetuning of quantized LLMs", arXiv 2305.14314, section 3;
    bitsandbytes, nn/modules.py (Params4bit, ``quant_storage``).
    """

    targets: tuple[str, ...] = Field(min_length=1)
    block: Int = Field(64, ge=1, le=4096)
    double: Bool = True
