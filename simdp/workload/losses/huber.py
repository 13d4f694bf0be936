"""Huber: squared near the target and straight beyond, as torch.nn.HuberLoss."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Array
from simdp.spec import Float
from simdp.workload.losses.elementwise import Elementwise


class Huber(Elementwise):
    """Mean over elements of ``d^2 / 2`` up to delta, and ``delta (|d| - delta / 2)`` beyond.

    Attributes
    ----------
    delta : float
        Where it changes, and the slope beyond.
    """

    kind: Literal["huber"] = "huber"
    delta: Float = Field(1.0, gt=0)

    def each(self, prediction: Array, target: Array) -> tuple[Array, Array]:
        difference = prediction - target
        near = np.clip(difference, -self.delta, self.delta)
        return near * (difference - near / 2), near
