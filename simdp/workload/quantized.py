"""Settings of weights that are stored in 4 bits, as bitsandbytes' Linear4bit stores them."""

from __future__ import annotations

from pydantic import Field

from simdp.spec import Bool, Int, Spec


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
