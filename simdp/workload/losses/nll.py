"""Negative log likelihoods: of class indices (torch.nn.NLLLoss), of counts (PoissonNLLLoss)."""

from __future__ import annotations

from math import pi
from typing import Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Array
from simdp.spec import Bool, Float
from simdp.workload.losses.elementwise import Elementwise
from simdp.workload.losses.of_classes import OfClasses


class NLL(OfClasses):
    """Mean over the targets that count of ``-prediction``, which is of log-probabilities."""

    kind: Literal["nll"] = "nll"

    def value_and_grad(self, prediction: Array, target: Array) -> tuple[float, Array]:
        labels = target.reshape(-1)
        rows = np.flatnonzero(labels != self.ignore_index)
        at = (rows, labels[rows])
        share = np.full(len(rows), 1.0, dtype=prediction.dtype)
        if self.weight is not None:
            share = np.asarray(self.weight, dtype=prediction.dtype)[labels[rows]]
        if self.reduction == "mean":
            share = share / share.sum()
        slope = np.zeros_like(prediction).reshape(len(labels), prediction.shape[-1])
        slope[at] = -share
        value = -(share * prediction.reshape(slope.shape)[at]).sum()
        return float(value), slope.reshape(prediction.shape)


class PoissonNLL(Elementwise):
    """Mean over elements of ``exp(x) - t x``, for targets that are counts.

    As torch.nn.PoissonNLLLoss; without ``log_input`` ``x - t log(x + eps)``.

    Attributes
    ----------
    log_input : bool
        Whether predictions are logarithms of rates.
    full : bool
        Add Stirling's approximation of ``log t!`` for targets above 1.
    eps : float
        Keeps the logarithm of a rate finite.
    """

    kind: Literal["poisson_nll"] = "poisson_nll"
    log_input: Bool = True
    full: Bool = False
    eps: Float = Field(1e-8, gt=0)

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
