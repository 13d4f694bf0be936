"""torch.optim.lr_scheduler.CosineAnnealingWarmRestarts."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from simdp.spec import Float
from simdp.workload.schedules.base import Count, Schedule


class CosineAnnealingWarmRestarts(Schedule):
    """``lr(k) = eta_min + (base - eta_min) (1 + cos(pi e / T)) / 2``, begun again and again.

    Of ``k - 1`` steps e are done since the last restart. The first restart comes after ``T = T_0``
    steps, and each T is T_mult times the one before.

    Attributes
    ----------
    T_0 : int
        Steps of the first cycle.
    T_mult : int
        Length of a cycle over that of the one before.
    eta_min : float
        Lowest learning rate.

    References
    ----------
    torch.optim.lr_scheduler.CosineAnnealingWarmRestarts; Loshchilov and Hutter, "SGDR: stochastic
    gradient descent with warm restarts", arXiv 1608.03983.
    """

    kind: Literal["cosine_annealing_warm_restarts"] = "cosine_annealing_warm_restarts"
    T_0: Count
    T_mult: Count = 1
    eta_min: Float = Field(0.0, ge=0)

    def lr(self, base: float, step: int) -> float:
        done, length = step - 1, self.T_0
        if self.T_mult == 1:
            done %= length
        while done >= length:
            done -= length
            length *= self.T_mult
        high = (1 + math.cos(math.pi * done / length)) / 2
        return self.eta_min + (base - self.eta_min) * high
