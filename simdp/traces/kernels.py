"""Sorts kernels by their names: one table, used by every command that reads a trace.

Names are those of cuBLAS, cuDNN, CUTLASS, hipBLASLt, FlashAttention, NCCL, RCCL, Triton and torch;
those of torch's operators, which stand for kernels in a trace without a device; and those of layers
in simdp's own traces. Fields in the name of a collective are read in `gathering`.
"""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np

from simdp.arrays import Bools
from simdp.traces.rows import TraceKernels

_TABLE: tuple[tuple[str, str], ...] = (
    ("collective", r"^(?:nccl|rccl|msccl)"),
    ("memset", r"^Memset|fillBuffer"),
    (
        "copy",
        r"^Memcpy|^Copy(?:Host|Device)To|copyBuffer|CatArrayBatchedCopy|nchwToNhwc|nhwcToNchw|"
        r"(?:direct|bfloat16|float16|float8\w{0,16})_copy_kernel|copy_device_to_device|"
        r"^triton_poi_fused_{1,2}(?:to_copy|clone)_\d+$|"
        r"^aten::(?:copy_|to|_to_copy|clone|contiguous)$",
    ),
    # Inductor: poi is pointwise, red and per reduce, for is a list of tensors, tem is a template
    # of a product. The rest of a name lists operators that were fused, products' epilogues too.
    ("reduction", r"^triton_(?:red|per|spl|mix)_"),
    ("elementwise", r"^triton_(?:poi|for)_|^triton_+(?:fused_|\d)"),
    (
        "attention",
        r"flash_|flash::|\bflash|fmha|sdpa|scaled_dot_product|flex_attention|"
        r"attention(?!_?norm)|\battn_(?:fwd|bwd)|^_attn_",
    ),
    ("convolution", r"^triton_(?:tem_\w*)?conv"),
    ("product", r"^triton_(?:tem_|\w*mm(?:_|$))"),
    (
        "optimizer",
        r"FusedOptimizer|(?:Adam|Adagrad|LAMB|SGD)\w{0,32}(?:Functor|Math)|_fused_(?:adam|adagrad|sgd)",
    ),
    (
        "reduction",
        r"softmax|reduce(?!d|_?scatter)|(?:batch|layer|group|instance|rms|attention)_?norm|"
        r"\bbn_(?:fw|bw)|GammaBeta|RowwiseMoments|_PostGSU|\bcub::Device",
    ),
    (
        "elementwise",
        r"elementwise_|multi_tensor_apply|dropout|upsample|_pool|scalePackedTensor|epilogue::impl",
    ),
    (
        "convolution",
        r"conv(?!ert)|wgrad|dgrad|fprop|winograd|[\dhis]cudnn_|\bcask_|implicit_gemm|"
        r"\bfft2d_[rc]2[rc]_|^miopen|^igemm_(?:fwd|bwd|wrw)",
    ),
    (
        "product",
        r"gemm|gemv|nvjet|cutlass|xmma|[hi]mma_|\bCijk_|matmul|tensorop|"
        r"(?:^|[\W_])(?:add|b|baddb|addb|_scaled_grouped_|_scaled_|_grouped_|_int_)?mm\b|"
        r"(?:^|[\W_])(?:addmv|mv|linear)(?!i)",
    ),
)
"""Kinds by their patterns, regardless of case; the first that fits is a kernel's.

Copies are also casts and changes of a layout; reductions also norms.
"""

_PATTERNS = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _TABLE)

PRODUCTS = frozenset(["product", "convolution", "attention"])
"""Kinds whose time follows a device's rate of products; that of others follows its memory."""


@lru_cache(maxsize=2**14)
def kernel_kind(name: str) -> str:
    """Sort a kernel by its name.

    Parameters
    ----------
    name : str
        As a profiler writes it.

    Returns
    -------
    str
        Its kind; ``"other"`` where none is known.
    """
    return next((kind for kind, pattern in _PATTERNS if pattern.search(name)), "other")


def is_communication(name: str) -> bool:
    """Return whether a kernel communicates: NCCL's, AMD's RCCL's and MSCCL's do."""
    return kernel_kind(name) == "collective"


def is_product(name: str) -> bool:
    """Return whether a kernel multiplies matrices: a product, a convolution or attention."""
    return kernel_kind(name) in PRODUCTS


def of_kind(kernels: TraceKernels, *kinds: str) -> Bools:
    """Return which events of a device are of these kinds, by their names."""
    wanted = np.array([kernel_kind(name) in kinds for name in kernels.names] or [False])
    return wanted[kernels.name]
