"""Activations by kind; this table is the one place of registration."""

from __future__ import annotations

from typing import Any

from simdp.spec import Family
from simdp.workload.layers.activations.base import Activation

ACTIVATIONS: Family[Activation] = Family(
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
    member: Any = ACTIVATIONS[kind]
    made: Activation = member(name=name)
    return made


__all__ = ["ACTIVATIONS", "Activation", "activation"]
