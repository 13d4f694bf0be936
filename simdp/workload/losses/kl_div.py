"""Divergence of Kullback and Leibler of log-probabilities, as torch.nn.KLDivLoss."""

from __future__ import annotations

from typing import Literal

import numpy as np

from simdp.arrays import Array
from simdp.spec import Bool
from simdp.workload.layers.arrays.softmax import log_softmax
from simdp.workload.losses.elementwise import Elementwise


class KLDiv(Elementwise):
    """Mean over elements of ``t (log t - prediction)``; predictions are log-probabilities.

    Attributes
    ----------
    reduction : {"mean", "sum", "batchmean"}
        What is made of the elements; the divergence itself is the mean over samples, batchmean.
    log_target : bool
        Whether targets are logarithms too.
    """

    kind: Literal["kl_div"] = "kl_div"
    reduction: Literal["mean", "sum", "batchmean"] = "mean"  # type: ignore[assignment]
    log_target: Bool = False

    def divisor(self, prediction: Array) -> int:
        return len(prediction) if self.reduction == "batchmean" else super().divisor(prediction)

    def each(self, prediction: Array, target: Array) -> tuple[Array, Array]:
        if self.log_target:
            known, log = np.exp(target), target
        else:
            known, log = target, np.log(np.where(target > 0, target, 1))
        return known * (log - prediction), -known

    def drawn(self, y: Array) -> Array:
        log = log_softmax(y)
        return log if self.log_target else np.exp(log)

    def problem_with_values(self, target: Array) -> str | None:
        if self.log_target or target.min(initial=0) >= 0:
            return None
        return (
            f"y holds {target.min()}, but kl_div needs probabilities; give none below 0, or write "
            "log_target: true."
        )
