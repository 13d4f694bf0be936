"""LeakyReLU: x above 0, a small share of x below, as torch.nn.LeakyReLU."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from simdp.arrays import Array
from simdp.spec import Float
from simdp.workload.layers.activations.base import Activation


class LeakyReLU(Activation):
    """Rectified linear unit that lets something through below 0.

    Attributes
    ----------
    negative_slope : float
        Share of x below 0, and slope at 0.
    """

    kind: Literal["leaky_relu"] = "leaky_relu"
    negative_slope: Float = 0.01
    flops_per_element: ClassVar[int] = 2

    def value(self, x: Array) -> tuple[Array, Array]:
        pick = np.maximum if self.negative_slope <= 1 else np.minimum
        return pick(x, self.negative_slope * x), x

    def slope(self, saved: Array) -> Array:
        above = (saved > 0).astype(saved.dtype)
        below = 1 - above
        below *= self.negative_slope
        below += above
        return below
