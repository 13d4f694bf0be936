"""Smooth L1: squared near the target and straight beyond, as torch.nn.SmoothL1Loss."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Array
from simdp.spec import Float
from simdp.workload.losses.elementwise import Elementwise


class SmoothL1(Elementwise):
    """Mean over elements of ``d^2 / (2 beta)`` below beta, and ``|d| - beta / 2`` beyond.

    Girshick, arXiv 1504.08083, equation 3.

    Attributes
    ----------
    beta : float
        Where it changes; 0 makes it the absolute error.
    """

    kind: Literal["smooth_l1"] = "smooth_l1"
    beta: Float = Field(1.0, ge=0)

    def each(self, prediction: Array, target: Array) -> tuple[Array, Array]:
        difference = prediction - target
        far = np.abs(difference)
        if not self.beta:
            return far, np.sign(difference)
        values = np.where(
            far < self.beta, difference * difference / (2 * self.beta), far - self.beta / 2
        )
        return values, np.clip(difference / self.beta, -1, 1)
