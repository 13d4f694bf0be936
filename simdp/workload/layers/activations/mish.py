"""Mish: x tanh(softplus(x)), as torch.nn.Mish."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from simdp.arrays import Array
from simdp.workload.layers.activations.base import Activation
from simdp.workload.layers.activations.sigmoid import logistic


class Mish(Activation):
    """Self-regularised activation (Misra, arXiv 1908.08681)."""

    kind: Literal["mish"] = "mish"
    flops_per_element: ClassVar[int] = 8

    def value(self, x: Array) -> tuple[Array, Array]:
        return x * np.tanh(np.logaddexp(0, x)), x

    def slope(self, saved: Array) -> Array:
        bent = np.tanh(np.logaddexp(0, saved))
        slope: Array = bent + saved * logistic(saved) * (1 - bent * bent)
        return slope
