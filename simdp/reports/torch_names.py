"""Torch names: what torch calls operators, autograd's nodes, modules and optimizers.

Kernels have no names of their own here, since simdp knows what a kernel asks of a device, not which
library serves it: one is called after its layer's kind and pass.
"""

from __future__ import annotations

OPERATORS = {
    "attention": "scaled_dot_product_attention",
    "bce_with_logits": "binary_cross_entropy_with_logits",
    "cross_entropy": "cross_entropy_loss",
    "gelu_tanh": "gelu",
    "huber": "huber_loss",
    "kl_div": "kl_div",
    "l1": "l1_loss",
    "mse": "mse_loss",
    "nll": "nll_loss",
    "projection": "linear",
    "smooth_l1": "smooth_l1_loss",
    "transposed_linear": "linear",
}
"""Of kinds of layers and losses that torch's operators are not called after; batch_norm1d and the
like lose their dimension, as in torch."""

NODES = {
    "add": "AddBackward0",
    "attention": "ScaledDotProductFlashAttentionBackward0",
    "linear": "AddmmBackward0",
    "projection": "AddmmBackward0",
    "transposed_linear": "AddmmBackward0",
}
"""Of kinds that autograd's nodes are not called after."""

OPTIMIZERS = {
    "adam": "Adam",
    "adamw": "AdamW",
    "asgd": "ASGD",
    "lamb": "LAMB",
    "lars": "LARS",
    "nadam": "NAdam",
    "radam": "RAdam",
    "rmsprop": "RMSprop",
    "sgd": "SGD",
}
"""Of kinds whose class is not the kind with a capital."""

MODULES = {
    "apex": "DistributedDataParallel",
    "data_parallel": "DataParallel",
    "ddp": "DistributedDataParallel",
    "fsdp1": "FullyShardedDataParallel",
    "local_sgd": "DistributedDataParallel",
    "zero1": "DistributedDataParallel",
}
"""Of strategies whose wrapper annotates its forward."""

ANNOTATIONS = {
    "fsdp": {"all_gather": "FSDP::all_gather", "reduce_scatter": "FSDP::post_backward_reduce"},
    "fsdp1": {
        "all_gather": "FullyShardedDataParallel._pre_forward",
        "reduce_scatter": "FullyShardedDataParallel._post_backward_hook",
    },
    "hsdp": {"all_gather": "FSDP::all_gather", "reduce_scatter": "FSDP::post_backward_reduce"},
}
"""What strategies' wrappers call the launches of their collectives."""

CONVOLUTIONS = ("conv1d", "conv2d", "conv3d", "conv_transpose")


def operator(kind: str) -> str:
    """Name the operator of a kind of layer, or loss: ``aten::linear``."""
    if "batch_norm" in kind:
        return "aten::batch_norm"
    return f"aten::{OPERATORS.get(kind, kind)}"


def node(kind: str) -> str:
    """Name autograd's node behind a kind of layer, or loss: ``AddmmBackward0``."""
    if kind in NODES:
        return NODES[kind]
    if any(said in kind for said in CONVOLUTIONS):
        return "ConvolutionBackward0"
    if "batch_norm" in kind:
        return "NativeBatchNormBackward0"
    words = OPERATORS.get(kind, kind).split("_")
    return f"{''.join(word.capitalize() for word in words)}Backward0"


def optimizer_step(kind: str) -> str:
    """Name the annotation of an optimizer's step: ``Optimizer.step#SGD.step``."""
    return f"Optimizer.step#{OPTIMIZERS.get(kind, kind.capitalize())}.step"


def next_batch(workers: int) -> str:
    """Name the annotation of taking a batch from a DataLoader with so many workers."""
    kind = "MultiProcessing" if workers else "SingleProcess"
    return f"enumerate(DataLoader)#_{kind}DataLoaderIter.__next__"
