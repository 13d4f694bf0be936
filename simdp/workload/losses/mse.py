"""Mean squared error, the mean over every element, as torch.nn.MSELoss."""

from __future__ import annotations

from typing import Literal

from simdp.arrays import Array
from simdp.workload.losses.elementwise import Elementwise


class MSE(Elementwise):
    """Mean over samples and outputs of the squared difference."""

    kind: Literal["mse"] = "mse"

    def each(self, prediction: Array, target: Array) -> tuple[Array, Array]:
        difference = prediction - target
        values = difference * difference
        difference *= 2
        return values, difference
