"""Layers by kind; this table is the one place of registration.

It holds what ``model.layers`` may name in YAML; activations have a table of their own. Beside the
members stand layers that models alone call, such as `attention`, and bases that members share, such
as `convolution` and `transformer_layer`. What is done with arrays, such as the windows of a
convolution, is in `arrays`.
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
        "adaptive_avg_pool1d": "adaptive_avg_pool1d:AdaptiveAvgPool1d",
        "adaptive_avg_pool2d": "adaptive_avg_pool2d:AdaptiveAvgPool2d",
        "adaptive_avg_pool3d": "adaptive_avg_pool3d:AdaptiveAvgPool3d",
        "add": "add:Add",
        "avg_pool1d": "avg_pool1d:AvgPool1d",
        "avg_pool2d": "avg_pool2d:AvgPool2d",
        "avg_pool3d": "avg_pool3d:AvgPool3d",
        "batch_norm1d": "batch_norm1d:BatchNorm1d",
        "batch_norm2d": "batch_norm2d:BatchNorm2d",
        "batch_norm3d": "batch_norm3d:BatchNorm3d",
        "concat": "concat:Concat",
        "conv1d": "conv1d:Conv1d",
        "conv2d": "conv2d:Conv2d",
        "conv3d": "conv3d:Conv3d",
        "conv_transpose1d": "conv_transpose1d:ConvTranspose1d",
        "conv_transpose2d": "conv_transpose2d:ConvTranspose2d",
        "conv_transpose3d": "conv_transpose3d:ConvTranspose3d",
        "dropout": "dropout:Dropout",
        "embedding": "embedding:Embedding",
        "first_token": "first_token:FirstToken",
        "flatten": "flatten:Flatten",
        "glu": "glu:GLU",
        "group_norm": "group_norm:GroupNorm",
        "gru": "gru:GRU",
        "instance_norm1d": "instance_norm1d:InstanceNorm1d",
        "instance_norm2d": "instance_norm2d:InstanceNorm2d",
        "instance_norm3d": "instance_norm3d:InstanceNorm3d",
        "last_token": "last_token:LastToken",
        "layer_norm": "layer_norm:LayerNorm",
        "linear": "linear:Linear",
        "log_softmax": "log_softmax:LogSoftmax",
        "lstm": "lstm:LSTM",
        "max_pool1d": "max_pool1d:MaxPool1d",
        "max_pool2d": "max_pool2d:MaxPool2d",
        "max_pool3d": "max_pool3d:MaxPool3d",
        "mean_pool": "mean_pool:MeanPool",
        "multihead_attention": "multihead_attention:MultiheadAttention",
        "permute": "permute:Permute",
        "position_embedding": "position_embedding:PositionEmbedding",
        "positional_encoding": "positional_encoding:PositionalEncoding",
        "prelu": "prelu:PReLU",
        "residual": "residual:Residual",
        "rms_norm": "rms_norm:RMSNorm",
        "rnn": "rnn:RNN",
        "softmax": "softmax:Softmax",
        "sync_batch_norm": "sync_batch_norm:SyncBatchNorm",
        "transformer_encoder_layer": "transformer_encoder_layer:TransformerEncoderLayer",
        "upsample": "upsample:Upsample",
    },
    ACTIVATIONS,
)
AnyModule = Annotated[Module, one_of("layer", LAYERS)]

__all__ = ["LAYERS", "AnyModule", "Buffer", "Kernel", "Layer", "Module", "Parameter"]
