"""Recognises kernels of matrix products and convolutions, which arithmetic limits."""

from __future__ import annotations

import re
from functools import cache

PRODUCTS = re.compile(
    r"gemm|xmma|hmma|cutlass|convolve|conv2d|wgrad|dgrad|winograd|cudnn_infer|implicit_|"
    r"flash|fmha|attention|\bmm\b|addmm|bmm|matmul|conv|linear|sgemv",
    re.IGNORECASE,
)
"""Parts of what cuBLAS, cuDNN, CUTLASS, FlashAttention and torch's operators are called."""

NOT = re.compile(r"batch_?norm|bn_(fw|bw)|elementwise|reduce|memcpy|memset|nchwToNhwc|copy", re.I)


@cache
def is_product(name: str) -> bool:
    """Whether a kernel's name is one of a product's."""
    return bool(PRODUCTS.search(name)) and not NOT.search(name)
