"""NAdam with torch.optim.NAdam's arguments and arithmetic."""

from __future__ import annotations

import math
from functools import lru_cache
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


class NAdam(Optimizer):
    """Adam with Nesterov's momentum, ``mu_t = b1 (1 - 0.96^(t momentum_decay) / 2)``.

    ``p -= lr ((1 - mu_t) g / (1 - M_t) + mu_{t+1} m / (1 - M_{t+1})) / (sqrt(v / (1 - b2^t)) +
    eps)``, where M_t is the product of mu_1 ... mu_t, and m and v are Adam's.

    Attributes
    ----------
    momentum_decay : float
        How slowly mu rises to b1; with 0 it stays at half of b1.
    decoupled_weight_decay : bool
        Whether weights decay by themselves, as in AdamW, or through the gradient.

    References
    ----------
    Dozat, "Incorporating Nesterov momentum into Adam", ICLR workshop, 2016.
    """

    kind: Literal["nadam"] = "nadam"
    lr: Float = Field(2e-3, ge=0)
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: Float = Field(1e-8, ge=0)
    weight_decay: Float = Field(0.0, ge=0)
    momentum_decay: Float = Field(4e-3, ge=0)
    decoupled_weight_decay: Bool = False
    maximize: Bool = False

    def starting_state(self) -> dict[str, float]:
        return moments()

    def num_kernels(self) -> int:
        # m: lerp; v: mul, addcmul; denominator: div, sqrt, add; parameter: addcdiv twice.
        return 8 + bool(self.weight_decay) + self.maximize

    def temporaries(self) -> Temporaries:
        # v / (1 - b2^t), its root, and g where it is changed; all at once the root and g.
        changed = bool(self.maximize or (self.weight_decay and not self.decoupled_weight_decay))
        return Temporaries(2 + changed, 1 + changed)

    def update(self, parameter: Array, gradient: Array, state: State, lr: float, t: int) -> None:
        decay = decouple(parameter, lr, self.weight_decay, self.decoupled_weight_decay)
        gradient = effective_gradient(parameter, gradient, decay, self.maximize)
        m, v = update_moments(self.betas, gradient, state)
        b1, b2 = self.betas
        now, after = (_mu(b1, self.momentum_decay, k) for k in (t, t + 1))
        product = mu_product(b1, self.momentum_decay, t)
        denominator = np.sqrt(v / (1 - b2**t))
        denominator += self.eps
        parameter -= lr * (1 - now) / (1 - product) * gradient / denominator
        parameter -= lr * after / (1 - product * after) * m / denominator


def _mu(beta: float, momentum_decay: float, t: int) -> float:
    return beta * (1 - 0.5 * math.pow(0.96, t * momentum_decay))


@lru_cache(maxsize=64)
def mu_product(beta: float, momentum_decay: float, t: int) -> float:
    """Product of NAdam's mu over the steps 1 ... t; it is the same for every parameter."""
    product = 1.0
    for k in range(1, t + 1):
        product *= _mu(beta, momentum_decay, k)
        if product < 1e-20:  # far below what 1 - product can tell from 1
            break
    return product
