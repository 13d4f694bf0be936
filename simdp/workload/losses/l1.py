"""Absolute error, the mean over every element, as torch.nn.L1Loss."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from simdp.arrays import Array
from simdp.workload.losses.elementwise import Elementwise


class L1(Elementwise):
    """Mean over samples and outputs of the difference without its sign."""

    kind: Literal["l1"] = "l1"

    num_kept: ClassVar[int] = 1  # torch: the difference, whose absolute value is another step

    def each(self, prediction: Array, target: Array) -> tuple[Array, Array]:
        difference = prediction - target
        return np.abs(difference), np.sign(difference)
