"""Activations by kind; this table is the one place of registration."""

from __future__ import annotations

from typing import Any

from simdp.workload.layers.activations.base import Activation
from simdp.workload.layers.activations.gelu import GELU
from simdp.workload.layers.activations.gelu_tanh import GELUTanh
from simdp.workload.layers.activations.leaky_relu import LeakyReLU
from simdp.workload.layers.activations.relu import ReLU
from simdp.workload.layers.activations.sigmoid import Sigmoid
from simdp.workload.layers.activations.silu import SiLU
from simdp.workload.layers.activations.tanh import Tanh

ACTIVATIONS: dict[str, type[Activation]] = {
    "gelu": GELU,
    "gelu_tanh": GELUTanh,
    "leaky_relu": LeakyReLU,
    "relu": ReLU,
    "sigmoid": Sigmoid,
    "silu": SiLU,
    "tanh": Tanh,
}


def activation(kind: str, name: str) -> Activation:
    """Make an activation by its kind, with its usual options and a path in a model."""
    member: Any = ACTIVATIONS[kind]
    made: Activation = member(name=name)
    return made


__all__ = ["ACTIVATIONS", "Activation", "activation"]
