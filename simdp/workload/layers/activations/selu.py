"""SELU: an ELU that keeps mean 0 and variance 1, as torch.nn.SELU."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from simdp.arrays import Array
from simdp.workload.layers.activations.base import Activation

ALPHA, SCALE = 1.6732632423543772, 1.0507009873554805


class SELU(Activation):
    """Scaled exponential linear unit (Klambauer et al., arXiv 1706.02515, equation 2)."""

    kind: Literal["selu"] = "selu"
    flops_per_element: ClassVar[int] = 6

    def value(self, x: Array) -> tuple[Array, Array]:
        y: Array = SCALE * np.where(x > 0, x, ALPHA * np.expm1(np.minimum(x, 0)))
        return y, x

    def slope(self, saved: Array) -> Array:
        slope: Array = SCALE * np.where(saved > 0, 1, ALPHA * np.exp(np.minimum(saved, 0)))
        return slope
