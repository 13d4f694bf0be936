"""Mean squared error, the mean over every element, as torch.nn.MSELoss."""

from __future__ import annotations

from typing import Literal

import numpy as np

from simdp.arrays import Array
from simdp.workload.losses.base import Loss


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

    def problem_with(self, target: Array, output_shape: tuple[int, ...]) -> str | None:
        if target.shape[1:] != output_shape:
            return (
                f"y has shape {target.shape}, but the model makes {output_shape} of each sample; "
                f"give y the shape {(len(target), *output_shape)}."
            )
        if not np.issubdtype(target.dtype, np.floating) or not np.isfinite(target).all():
            return f"y is {target.dtype} or has values that are not finite; give finite floats."
        return None
