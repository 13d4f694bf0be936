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
        "celu": "CELU",
        "elu": "ELU",
        "gelu": "GELU",
        "gelu_tanh": "GELUTanh",
        "hardsigmoid": "Hardsigmoid",
        "hardswish": "Hardswish",
        "hardtanh": "Hardtanh",
        "leaky_relu": "LeakyReLU",
        "log_sigmoid": "LogSigmoid",
        "mish": "Mish",
        "quick_gelu": "QuickGELU",
        "relu": "ReLU",
        "relu2": "ReLU2",
        "relu6": "ReLU6",
        "selu": "SELU",
        "sigmoid": "Sigmoid",
        "silu": "SiLU",
        "softplus": "Softplus",
        "tanh": "Tanh",
    },
)


def activation(kind: str, name: str) -> Activation:
    """Make an activation by its kind, with its usual options and a path in a model."""
    member: Any = ACTIVATIONS.find(kind)
    made: Activation = member(kind=kind, name=name)
    return made


__all__ = ["ACTIVATIONS", "Activation", "activation"]
