"""ReLU6: x between 0 and 6, as torch.nn.ReLU6."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from simdp.arrays import Array
from simdp.workload.layers.activations.base import Activation


class ReLU6(Activation):
    """Rectified linear unit that is cut off at 6 (arXiv 1704.04861)."""

    kind: Literal["relu6"] = "relu6"
    flops_per_element: ClassVar[int] = 2

    def value(self, x: Array) -> tuple[Array, Array]:
        return np.clip(x, 0, 6), x

    def slope(self, saved: Array) -> Array:
        inside: Array = ((saved > 0) & (saved < 6)).astype(saved.dtype)
        return inside
