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
        "gelu": "GELU",
        "gelu_tanh": "GELUTanh",
        "leaky_relu": "LeakyReLU",
        "relu": "ReLU",
        "sigmoid": "Sigmoid",
        "silu": "SiLU",
        "tanh": "Tanh",
    },
)


def activation(kind: str, name: str) -> Activation:
    """Make an activation by its kind, with its usual options and a path in a model."""
    member: Any = ACTIVATIONS.find(kind)
    made: Activation = member(kind=kind, name=name)
    return made


__all__ = ["ACTIVATIONS", "Activation", "activation"]
