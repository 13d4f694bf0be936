"""Huber: squared near the target and straight beyond, as torch.nn.HuberLoss."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Array
from simdp.spec import Float
from simdp.workload.losses.elementwise import Elementwise


class Huber(Elementwise):
    """``d^2 / 2`` where |d| is up to delta, else ``delta (|d| - delta / 2)``.

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
