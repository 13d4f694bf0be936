"""Hardtanh: x between two bounds, as torch.nn.Hardtanh."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import model_validator

from simdp.arrays import Array
from simdp.spec import Float, problem
from simdp.workload.layers.activations.base import Activation


class Hardtanh(Activation):
    """Cuts off what is below one bound or above another.

    Attributes
    ----------
    min_val, max_val : float
        The bounds.
    """

    kind: Literal["hardtanh"] = "hardtanh"
    min_val: Float = -1.0
    max_val: Float = 1.0

    flops_per_element: ClassVar[int] = 2

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        if self.min_val >= self.max_val:
            raise problem(
                f"min_val: {self.min_val} is not below max_val, {self.max_val}; write less."
            )
        return self

    def value(self, x: Array) -> tuple[Array, Array]:
        return np.clip(x, self.min_val, self.max_val), x

    def slope(self, saved: Array) -> Array:
        inside: Array = ((saved > self.min_val) & (saved < self.max_val)).astype(saved.dtype)
        return inside
