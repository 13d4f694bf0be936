"""torch.optim.lr_scheduler.CosineAnnealingLR."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from simdp.spec import Float
from simdp.workload.schedules.base import Count, Schedule


class CosineAnnealingLR(Schedule):
    """``lr(k) = eta_min + (base - eta_min) (1 + cos(pi (k - 1) / T_max)) / 2``, as torch's.

    After T_max steps the rate rises again, as it does in torch.

    Attributes
    ----------
    T_max : int
        Steps from the base down to ``eta_min``.
    eta_min : float
        Lowest learning rate.

    References
    ----------
    torch.optim.lr_scheduler.CosineAnnealingLR; Loshchilov and Hutter, "SGDR: stochastic gradient
    descent with warm restarts", arXiv 1608.03983, without the restarts.
    """

    kind: Literal["cosine_annealing_lr"] = "cosine_annealing_lr"
    T_max: Count
    eta_min: Float = Field(0.0, ge=0)

    def lr(self, base: float, step: int) -> float:
        high = (1 + math.cos(math.pi * (step - 1) / self.T_max)) / 2
        return self.eta_min + (base - self.eta_min) * high
