"""Mean squared error, the mean over every element, as torch.nn.MSELoss."""

from __future__ import annotations

from typing import Literal

from simdp.workload.losses.base import Array, Loss


class MSE(Loss):
    """Mean over samples and outputs of the squared difference."""

    kind: Literal["mse"] = "mse"

    def count(self, target: Array) -> int:
        return len(target)

    def value_and_grad(self, prediction: Array, target: Array) -> tuple[float, Array]:
        difference = prediction - target
        value = float((difference * difference).mean())
        difference *= 2 / difference.size
        return value, difference
