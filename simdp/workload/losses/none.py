"""No loss: what a model without numbers is trained for."""

from __future__ import annotations

from typing import Literal

from simdp.arrays import Array
from simdp.workload.losses.base import Loss


class NoLoss(Loss):
    """For a model that has times but no numbers; takes no time itself."""

    kind: Literal["none"] = "none"

    def count(self, target: Array) -> float:
        return 0

    def value_and_grad(self, prediction: Array, target: Array) -> tuple[float, Array]:
        raise AssertionError("a model without numbers makes no prediction")

    def problem_with(self, target: Array, output_shape: tuple[int, ...]) -> str | None:
        return None
