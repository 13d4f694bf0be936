"""Hardswish: x times the hard sigmoid of x, as torch.nn.Hardswish."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from simdp.arrays import Array
from simdp.workload.layers.activations.base import Activation


class Hardswish(Activation):
    """SiLU of straight lines (Howard et al., arXiv 1905.02244)."""

    kind: Literal["hardswish"] = "hardswish"
    flops_per_element: ClassVar[int] = 5

    def value(self, x: Array) -> tuple[Array, Array]:
        return x * np.clip(x / 6 + 0.5, 0, 1), x

    def slope(self, saved: Array) -> Array:
        inside = np.where(saved > -3, saved / 3 + 0.5, 0)
        return np.where(saved >= 3, 1, inside).astype(saved.dtype)
