"""Hyperbolic tangent."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from simdp.arrays import Array
from simdp.workload.layers.activations.base import Activation


class Tanh(Activation):
    """Hyperbolic tangent; its slope is 1 - tanh(x)^2."""

    kind: Literal["tanh"] = "tanh"
    keeps_output: ClassVar[bool] = True
    flops_per_element: ClassVar[int] = 10

    def value(self, x: Array) -> tuple[Array, Array]:
        y = np.tanh(x)
        return y, y

    def slope(self, saved: Array) -> Array:
        slope: Array = 1 - saved * saved
        return slope
