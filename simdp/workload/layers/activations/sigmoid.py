"""Sigmoid: 1 / (1 + exp(-x)), as torch.nn.Sigmoid."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from simdp.arrays import Array
from simdp.workload.layers.activations.base import Activation


def logistic(x: Array) -> Array:
    """``1 / (1 + exp(-x))``, of which no part overflows."""
    power = np.exp(-np.abs(x))
    y: Array = np.maximum(power, x >= 0)  # 1 above 0, exp(x) below
    power += 1
    y /= power
    return y


class Sigmoid(Activation):
    """Logistic function."""

    kind: Literal["sigmoid"] = "sigmoid"
    keeps_output: ClassVar[bool] = True
    flops_per_element: ClassVar[int] = 4

    def value(self, x: Array) -> tuple[Array, Array]:
        y = logistic(x)
        return y, y

    def slope(self, saved: Array) -> Array:
        slope: Array = saved * (1 - saved)
        return slope
