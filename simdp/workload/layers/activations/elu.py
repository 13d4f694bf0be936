"""ELU: x above 0, alpha (exp(x) - 1) below, as torch.nn.ELU."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from simdp.arrays import Array
from simdp.spec import Float
from simdp.workload.layers.activations.base import Activation


class ELU(Activation):
    """Exponential linear unit (Clevert et al., arXiv 1511.07289).

    Attributes
    ----------
    alpha : float
        Minus what it tends to far below 0.
    """

    kind: Literal["elu"] = "elu"
    alpha: Float = 1.0
    flops_per_element: ClassVar[int] = 5

    def value(self, x: Array) -> tuple[Array, Array]:
        return np.where(x > 0, x, self.alpha * np.expm1(np.minimum(x, 0))), x

    def slope(self, saved: Array) -> Array:
        return np.where(saved > 0, 1, self.alpha * np.exp(np.minimum(saved, 0)))
