"""ReLU: max(x, 0), with slope 0 at 0 as in torch."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from simdp.arrays import Array
from simdp.workload.layers.activations.base import Activation


class ReLU(Activation):
    """Rectified linear unit."""

    kind: Literal["relu"] = "relu"

    keeps_output: ClassVar[bool] = True

    def value(self, x: Array) -> tuple[Array, Array]:
        y = np.clip(x, 0, np.inf)  # three times as fast as np.maximum(x, 0)
        return y, y

    def slope(self, saved: Array) -> Array:
        return saved > 0
