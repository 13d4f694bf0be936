"""Elementwise: base of the losses that compare each number with its target."""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

import numpy as np

from simdp.arrays import Array
from simdp.workload.losses.base import Loss


class Elementwise(Loss):
    """Mean or sum over every element of what prediction and target have between them.

    Attributes
    ----------
    reduction : {"mean", "sum"}
        What is made of the elements.
    """

    reduction: Literal["mean", "sum"] = "mean"

    @property
    def adds(self) -> bool:
        return self.reduction == "sum"

    def count(self, target: Array) -> float:
        return len(target)

    @abstractmethod
    def each(self, prediction: Array, target: Array) -> tuple[Array, Array]:
        """Loss and gradient of every element, new arrays; the second is changed in place."""

    def divisor(self, prediction: Array) -> int:
        """What the sum of all elements is divided by."""
        return 1 if self.reduction == "sum" else prediction.size

    def value_and_grad(self, prediction: Array, target: Array) -> tuple[float, Array]:
        values, slope = self.each(prediction, target)
        divisor = self.divisor(prediction)
        slope *= 1 / divisor
        return float(values.sum() / divisor), slope

    def problem_with(self, target: Array, output_shape: tuple[int, ...]) -> str | None:
        if target.shape[1:] != output_shape:
            return (
                f"y has shape {target.shape}, but the model makes {output_shape} of each sample; "
                f"give y the shape {(len(target), *output_shape)}."
            )
        if not np.issubdtype(target.dtype, np.floating) or not np.isfinite(target).all():
            return f"y is {target.dtype} or has values that are not finite; give finite floats."
        return self.problem_with_values(target)

    def problem_with_values(self, target: Array) -> str | None:
        """Say what else is wrong with finite targets of the right shape; by default nothing."""
        return None
