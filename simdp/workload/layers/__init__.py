"""Layers that models are made of; activations by kind, the one place of registration."""

from __future__ import annotations

from simdp.workload.layers.activation import Activation
from simdp.workload.layers.base import Cost, Layer, Parameter
from simdp.workload.layers.einsum import Einsum
from simdp.workload.layers.gelu import GELU
from simdp.workload.layers.linear import Linear
from simdp.workload.layers.relu import ReLU
from simdp.workload.layers.tanh import Tanh

ACTIVATIONS: dict[str, type[Activation]] = {"gelu": GELU, "relu": ReLU, "tanh": Tanh}

__all__ = ["ACTIVATIONS", "Cost", "Einsum", "Layer", "Linear", "Parameter"]
