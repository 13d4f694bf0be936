"""RAdam with torch.optim.RAdam's arguments and arithmetic."""

from __future__ import annotations

from math import sqrt
from typing import Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Array
from simdp.spec import Bool, Float
from simdp.workload.optimizers.adam import Beta, moments, update_moments
from simdp.workload.optimizers.base import (
    Optimizer,
    State,
    Temporaries,
    decouple,
    effective_gradient,
)


class RAdam(Optimizer):
    """Adam whose first steps do not divide by sqrt(v), while v averages too few gradients.

    ``p -= lr m / (1 - b1^t)``, times ``r sqrt(1 - b2^t) / (sqrt(v) + eps)`` as soon as rho > 5;
    ``rho = rho_inf - 2 t b2^t / (1 - b2^t)``, ``rho_inf = 2 / (1 - b2) - 1`` and
    ``r^2 = (rho - 4) (rho - 2) rho_inf / ((rho_inf - 4) (rho_inf - 2) rho)``.

    Attributes
    ----------
    decoupled_weight_decay : bool
        Whether weights decay by themselves, as in AdamW, or through the gradient.

    References
    ----------
    Liu et al., "On the variance of the adaptive learning rate and beyond", arXiv 1908.03265.
    """

    kind: Literal["radam"] = "radam"
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: Float = Field(1e-8, ge=0)
    weight_decay: Float = Field(0.0, ge=0)
    decoupled_weight_decay: Bool = False
    maximize: Bool = False

    def starting_state(self) -> dict[str, float]:
        return moments()

    def num_kernels(self) -> int:
        # m: lerp; v: mul, addcmul; m: div; denominator: sqrt, add, div; step: mul; add.
        return 9 + bool(self.weight_decay) + self.maximize

    def temporaries(self) -> Temporaries:
        # Five factors and products of the step, and g where it is changed; all at once one buffer.
        changed = bool(self.maximize or (self.weight_decay and not self.decoupled_weight_decay))
        return Temporaries(5 + changed, 1)

    def update(self, parameter: Array, gradient: Array, state: State, lr: float, t: int) -> None:
        decay = decouple(parameter, lr, self.weight_decay, self.decoupled_weight_decay)
        gradient = effective_gradient(parameter, gradient, decay, self.maximize)
        m, v = update_moments(self.betas, gradient, state)
        b1, b2 = self.betas
        step = lr / (1 - b1**t) * m
        rectified = rectification(b2, t)
        if rectified is not None:
            step *= rectified * sqrt(1 - b2**t) / (np.sqrt(v) + self.eps)
        parameter -= step


def rectification(beta: float, t: int) -> float | None:
    """RAdam's r at step t, or None while the average is too short, ``rho <= 5``."""
    longest = 2 / (1 - beta) - 1
    rho = longest - 2 * t * beta**t / (1 - beta**t)
    if rho <= 5:
        return None
    return sqrt((rho - 4) * (rho - 2) * longest / ((longest - 4) * (longest - 2) * rho))
