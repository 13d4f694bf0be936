"""Layers by kind; this table is the one place of registration.

It holds what ``model.layers`` may name in YAML; activations have a table of their own. Beside the
members stand layers that models alone call, such as `attention` and `add`, which take several
inputs, and bases that members share, such as `batch_norm` and `transformer_layer`. What is done
with arrays, such as the windows of a convolution, is in `arrays`.
"""

from __future__ import annotations

from typing import Annotated

from simdp.family import Family
from simdp.spec import one_of
from simdp.workload.layers.activations import ACTIVATIONS
from simdp.workload.layers.base import Kernel, Layer, Module
from simdp.workload.layers.parameter import Buffer, Parameter

LAYERS: Family[Module] = Family(
    "layers",
    Module,
    __name__,
    {
        "adaptive_avg_pool2d": "AdaptiveAvgPool2d",
        "avg_pool2d": "AvgPool2d",
        "batch_norm1d": "BatchNorm1d",
        "batch_norm2d": "BatchNorm2d",
        "conv2d": "Conv2d",
        "dropout": "Dropout",
        "embedding": "Embedding",
        "first_token": "FirstToken",
        "flatten": "Flatten",
        "layer_norm": "LayerNorm",
        "linear": "Linear",
        "max_pool2d": "MaxPool2d",
        "mean_pool": "MeanPool",
        "multihead_attention": "MultiheadAttention",
        "position_embedding": "PositionEmbedding",
        "positional_encoding": "PositionalEncoding",
        "residual": "Residual",
        "rms_norm": "RMSNorm",
        "sync_batch_norm": "SyncBatchNorm",
        "transformer_encoder_layer": "TransformerEncoderLayer",
        "upsample": "Upsample",
    },
    ACTIVATIONS,
)
AnyModule = Annotated[Module, one_of("layer", LAYERS)]

__all__ = ["LAYERS", "AnyModule", "Buffer", "Kernel", "Layer", "Module", "Parameter"]
