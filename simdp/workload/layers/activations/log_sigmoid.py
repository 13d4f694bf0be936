"""LogSigmoid: log(sigmoid(x)), as torch.nn.LogSigmoid."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from simdp.arrays import Array
from simdp.workload.layers.activations.base import Activation
from simdp.workload.layers.activations.sigmoid import logistic


class LogSigmoid(Activation):
    """Logarithm of the logistic function."""

    kind: Literal["log_sigmoid"] = "log_sigmoid"
    flops_per_element: ClassVar[int] = 6

    def value(self, x: Array) -> tuple[Array, Array]:
        return -np.logaddexp(0, -x), x

    def slope(self, saved: Array) -> Array:
        return logistic(-saved)
