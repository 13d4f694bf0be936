"""Layers by kind; this table is the one place of registration.

It lists the kinds of ``model.layers`` in YAML; activations have a table of their own. Other modules
hold layers that only models use, such as `Attention`, and shared bases.
"""

from __future__ import annotations

from typing import Annotated

from simdp.family import Family
from simdp.spec import one_of
from simdp.workload.layers.activations import ACTIVATIONS
from simdp.workload.layers.base import Module

LAYERS: Family[Module] = Family(
    "layers",
    Module,
    __name__,
    {
        "adaptive_avg_pool1d": "pooling:AdaptiveAvgPool1d",
        "adaptive_avg_pool2d": "pooling:AdaptiveAvgPool2d",
        "adaptive_avg_pool3d": "pooling:AdaptiveAvgPool3d",
        "add": "tensor_ops:Add",
        "avg_pool1d": "pooling:AvgPool1d",
        "avg_pool2d": "pooling:AvgPool2d",
        "avg_pool3d": "pooling:AvgPool3d",
        "batch_norm1d": "batchnorm:BatchNorm1d",
        "batch_norm2d": "batchnorm:BatchNorm2d",
        "batch_norm3d": "batchnorm:BatchNorm3d",
        "concat": "tensor_ops:Concat",
        "conv1d": "conv:Conv1d",
        "conv2d": "conv:Conv2d",
        "conv3d": "conv:Conv3d",
        "conv_transpose1d": "conv:ConvTranspose1d",
        "conv_transpose2d": "conv:ConvTranspose2d",
        "conv_transpose3d": "conv:ConvTranspose3d",
        "dropout": "tensor_ops:Dropout",
        "embedding": "embedding:Embedding",
        "first_token": "tensor_ops:FirstToken",
        "flatten": "tensor_ops:Flatten",
        "glu": "linear:GLU",
        "group_norm": "normalization:GroupNorm",
        "gru": "rnn:GRU",
        "instance_norm1d": "batchnorm:InstanceNorm1d",
        "instance_norm2d": "batchnorm:InstanceNorm2d",
        "instance_norm3d": "batchnorm:InstanceNorm3d",
        "last_token": "tensor_ops:LastToken",
        "layer_norm": "normalization:LayerNorm",
        "linear": "linear:Linear",
        "log_softmax": "activations.smooth:LogSoftmax",
        "lstm": "rnn:LSTM",
        "max_pool1d": "pooling:MaxPool1d",
        "max_pool2d": "pooling:MaxPool2d",
        "max_pool3d": "pooling:MaxPool3d",
        "mean_pool": "pooling:MeanPool",
        "multihead_attention": "attention:MultiheadAttention",
        "permute": "tensor_ops:Permute",
        "position_embedding": "embedding:PositionEmbedding",
        "positional_encoding": "embedding:PositionalEncoding",
        "prelu": "linear:PReLU",
        "residual": "tensor_ops:Residual",
        "rms_norm": "normalization:RMSNorm",
        "rnn": "rnn:RNN",
        "softmax": "activations.smooth:Softmax",
        "sync_batch_norm": "batchnorm:SyncBatchNorm",
        "transformer_encoder_layer": "transformer:TransformerEncoderLayer",
        "upsample": "pooling:Upsample",
    },
    ACTIVATIONS,
)
AnyModule = Annotated[Module, one_of("layer", LAYERS)]

__all__ = ["LAYERS", "AnyModule", "Module"]
