"""Losses of real targets."""

from __future__ import annotations

from math import pi
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Array
from simdp.spec import Bool, Float
from simdp.workload.losses import Elementwise


class Huber(Elementwise):
    """Mean over elements of ``d^2 / 2`` up to delta, and ``delta (|d| - delta / 2)`` beyond."""

    kind: Literal["huber"] = "huber"
    delta: Float = Field(1.0, gt=0)
    """Border between the two, and the slope beyond."""

    def each(self, prediction: Array, target: Array) -> tuple[Array, Array]:
        difference = prediction - target
        near = np.clip(difference, -self.delta, self.delta)
        return near * (difference - near / 2), near


class L1(Elementwise):
    """Mean over samples and outputs of the absolute difference."""

    kind: Literal["l1"] = "l1"

    num_kept: ClassVar[int] = 1  # torch: the difference, before its absolute value

    def each(self, prediction: Array, target: Array) -> tuple[Array, Array]:
        difference = prediction - target
        return np.abs(difference), np.sign(difference)


class MSE(Elementwise):
    """Mean over samples and outputs of the squared difference."""

    kind: Literal["mse"] = "mse"

    def each(self, prediction: Array, target: Array) -> tuple[Array, Array]:
        difference = prediction - target
        values = difference * difference
        difference *= 2
        return values, difference


class PoissonNLL(Elementwise):
    """Mean over elements of ``exp(x) - t x``, for targets that are counts.

    As torch.nn.PoissonNLLLoss; without ``log_input`` ``x - t log(x + eps)``.
    """

    kind: Literal["poisson_nll"] = "poisson_nll"
    log_input: Bool = True
    """Whether predictions are logarithms of rates."""
    full: Bool = False
    """Whether to add Stirling's approximation of ``log t!`` for targets above 1."""
    eps: Float = Field(1e-8, gt=0)
    """Added to a rate before its logarithm."""

    def each(self, prediction: Array, target: Array) -> tuple[Array, Array]:
        if self.log_input:
            rate = np.exp(prediction)
            values, slope = rate - target * prediction, rate - target
        else:
            shifted = prediction + prediction.dtype.type(self.eps)
            values, slope = prediction - target * np.log(shifted), 1 - target / shifted
        if self.full:
            many = np.where(target > 1, target, 1)
            stirling = many * np.log(many) - many + 0.5 * np.log(2 * pi * many)
            values = values + np.where(target > 1, stirling, 0)
        return values, slope

    def drawn(self, y: Array) -> Array:
        return np.round(np.exp(np.minimum(y, 3)))

    def problem_with_values(self, target: Array) -> str | None:
        if target.min(initial=0) >= 0:
            return None
        return f"y holds {target.min()}, but poisson_nll needs counts; give none below 0."


class SmoothL1(Elementwise):
    """Mean over elements of ``d^2 / (2 beta)`` below beta, and ``|d| - beta / 2`` beyond.

    Girshick, arXiv 1504.08083, equation 3.
    """

    kind: Literal["smooth_l1"] = "smooth_l1"
    beta: Float = Field(1.0, ge=0)
    """Border between the two; 0 gives the absolute error."""

    def each(self, prediction: Array, target: Array) -> tuple[Array, Array]:
        difference = prediction - target
        far = np.abs(difference)
        if not self.beta:
            return far, np.sign(difference)
        values = np.where(
            far < self.beta, difference * difference / (2 * self.beta), far - self.beta / 2
        )
        return values, np.clip(difference / self.beta, -1, 1)
