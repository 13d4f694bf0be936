"""Hardsigmoid: x / 6 + 1 / 2 between 0 and 1, as torch.nn.Hardsigmoid."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from simdp.arrays import Array
from simdp.workload.layers.activations.base import Activation


class Hardsigmoid(Activation):
    """Sigmoid of straight lines."""

    kind: Literal["hardsigmoid"] = "hardsigmoid"
    flops_per_element: ClassVar[int] = 4

    def value(self, x: Array) -> tuple[Array, Array]:
        return np.clip(x / 6 + 0.5, 0, 1), x

    def slope(self, saved: Array) -> Array:
        inside: Array = ((saved > -3) & (saved < 3)).astype(saved.dtype)
        inside /= 6
        return inside
