"""Softplus: log(1 + exp(beta x)) / beta, as torch.nn.Softplus."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Array
from simdp.spec import Float
from simdp.workload.layers.activations.base import Activation
from simdp.workload.layers.activations.sigmoid import logistic


class Softplus(Activation):
    """Smooth rectified linear unit.

    Attributes
    ----------
    beta : float
        How sharply it bends.
    threshold : float
        Of beta x, beyond which it is x itself.
    """

    kind: Literal["softplus"] = "softplus"
    beta: Float = Field(1.0, gt=0)
    threshold: Float = 20.0

    flops_per_element: ClassVar[int] = 6
    autocast: ClassVar[Literal["float32"]] = "float32"

    def value(self, x: Array) -> tuple[Array, Array]:
        steep = self.beta * x
        return np.where(steep > self.threshold, x, np.logaddexp(0, steep) / self.beta), x

    def slope(self, saved: Array) -> Array:
        steep = self.beta * saved
        return np.where(steep > self.threshold, 1, logistic(steep))
