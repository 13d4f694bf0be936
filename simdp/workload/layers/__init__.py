"""Layers by kind; this table is the one place of registration.

It holds what ``model.layers`` may name in YAML; activations have a table of their own. Beside the
members stand layers that models alone call, such as `attention` and `add`, which take several
inputs, and bases that members share, such as `batch_norm` and `transformer_layer`. What is done
with arrays, such as the windows of a convolution, is in `arrays`.
"""

from __future__ import annotations

from typing import Annotated

from simdp.spec import one_of
from simdp.workload.layers.activations import ACTIVATIONS
from simdp.workload.layers.adaptive_avg_pool2d import AdaptiveAvgPool2d
from simdp.workload.layers.avg_pool2d import AvgPool2d
from simdp.workload.layers.base import Kernel, Layer, Module
from simdp.workload.layers.batch_norm1d import BatchNorm1d
from simdp.workload.layers.batch_norm2d import BatchNorm2d
from simdp.workload.layers.conv2d import Conv2d
from simdp.workload.layers.dropout import Dropout
from simdp.workload.layers.embedding import Embedding
from simdp.workload.layers.first_token import FirstToken
from simdp.workload.layers.flatten import Flatten
from simdp.workload.layers.layer_norm import LayerNorm
from simdp.workload.layers.linear import Linear
from simdp.workload.layers.max_pool2d import MaxPool2d
from simdp.workload.layers.mean_pool import MeanPool
from simdp.workload.layers.multihead_attention import MultiheadAttention
from simdp.workload.layers.parameter import Buffer, Parameter
from simdp.workload.layers.position_embedding import PositionEmbedding
from simdp.workload.layers.positional_encoding import PositionalEncoding
from simdp.workload.layers.residual import Residual
from simdp.workload.layers.sync_batch_norm import SyncBatchNorm
from simdp.workload.layers.transformer_encoder_layer import TransformerEncoderLayer
from simdp.workload.layers.upsample import Upsample

LAYERS: dict[str, type[Module]] = {
    **ACTIVATIONS,
    "adaptive_avg_pool2d": AdaptiveAvgPool2d,
    "avg_pool2d": AvgPool2d,
    "batch_norm1d": BatchNorm1d,
    "batch_norm2d": BatchNorm2d,
    "conv2d": Conv2d,
    "dropout": Dropout,
    "embedding": Embedding,
    "first_token": FirstToken,
    "flatten": Flatten,
    "layer_norm": LayerNorm,
    "linear": Linear,
    "max_pool2d": MaxPool2d,
    "mean_pool": MeanPool,
    "multihead_attention": MultiheadAttention,
    "position_embedding": PositionEmbedding,
    "positional_encoding": PositionalEncoding,
    "residual": Residual,
    "sync_batch_norm": SyncBatchNorm,
    "transformer_encoder_layer": TransformerEncoderLayer,
    "upsample": Upsample,
}
AnyModule = Annotated[Module, one_of("layer", LAYERS)]
Residual.model_rebuild(_types_namespace={"AnyModule": AnyModule})  # it holds layers of this table

__all__ = ["LAYERS", "AnyModule", "Buffer", "Kernel", "Layer", "Module", "Parameter"]
