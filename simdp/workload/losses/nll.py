"""Negative log likelihood of log-probabilities and class indices, as torch.nn.NLLLoss."""

from __future__ import annotations

from typing import Literal

import numpy as np

from simdp.arrays import Array
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
