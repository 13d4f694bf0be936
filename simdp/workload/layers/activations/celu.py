"""CELU: x above 0, alpha (exp(x / alpha) - 1) below, as torch.nn.CELU."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Array
from simdp.spec import Float
from simdp.workload.layers.activations.base import Activation


class CELU(Activation):
    """Continuously differentiable exponential linear unit (Barron, arXiv 1704.07483).

    Attributes
    ----------
    alpha : float
        Minus what it tends to far below 0; not 0.
    """

    kind: Literal["celu"] = "celu"
    alpha: Float = Field(1.0, gt=0)
    flops_per_element: ClassVar[int] = 6

    def value(self, x: Array) -> tuple[Array, Array]:
        return np.where(x > 0, x, self.alpha * np.expm1(np.minimum(x, 0) / self.alpha)), x

    def slope(self, saved: Array) -> Array:
        return np.where(saved > 0, 1, np.exp(np.minimum(saved, 0) / self.alpha))
