"""Activations by kind; this table is the one place of registration."""

from __future__ import annotations

from typing import Any

from simdp.family import Family
from simdp.workload.layers.activations.base import Activation

ACTIVATIONS: Family[Activation] = Family(
    "activations",
    Activation,
    __name__,
    {
        "celu": "celu:CELU",
        "elu": "elu:ELU",
        "gelu": "gelu:GELU",
        "gelu_tanh": "gelu_tanh:GELUTanh",
        "hardsigmoid": "hardsigmoid:Hardsigmoid",
        "hardswish": "hardswish:Hardswish",
        "hardtanh": "hardtanh:Hardtanh",
        "leaky_relu": "leaky_relu:LeakyReLU",
        "log_sigmoid": "log_sigmoid:LogSigmoid",
        "mish": "mish:Mish",
        "quick_gelu": "quick_gelu:QuickGELU",
        "relu": "relu:ReLU",
        "relu2": "relu2:ReLU2",
        "relu6": "relu6:ReLU6",
        "selu": "selu:SELU",
        "sigmoid": "sigmoid:Sigmoid",
        "silu": "silu:SiLU",
        "softplus": "softplus:Softplus",
        "tanh": "tanh:Tanh",
    },
)


def activation(kind: str, name: str) -> Activation:
    """Make an activation by its kind, with its usual options and a path in a model."""
    member: Any = ACTIVATIONS.find(kind)
    made: Activation = member(kind=kind, name=name)
    return made


__all__ = ["ACTIVATIONS", "Activation", "activation"]
