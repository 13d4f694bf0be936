"""Adamax with torch.optim.Adamax's arguments and arithmetic."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Array
from simdp.spec import Bool, Float
from simdp.workload.optimizers.adam import Beta
from simdp.workload.optimizers.base import Optimizer, State, Temporaries, effective_gradient


class Adamax(Optimizer):
    """``u = max(b2 u, |g| + eps)``; ``p -= lr / (1 - b1^t) m / u``, m as Adam's.

    References
    ----------
    Kingma and Ba, "Adam: a method for stochastic optimization", arXiv 1412.6980, section 7.1.
    """

    kind: Literal["adamax"] = "adamax"
    lr: Float = Field(2e-3, ge=0)
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: Float = Field(1e-8, ge=0)
    weight_decay: Float = Field(0.0, ge=0)
    maximize: Bool = False

    def starting_state(self) -> dict[str, float]:
        return {"exp_avg": 0.0, "exp_inf": 0.0}

    def num_kernels(self) -> int:
        # m: lerp; u: mul, abs, add, maximum; parameter: addcdiv.
        return 6 + bool(self.weight_decay) + self.maximize

    def temporaries(self) -> Temporaries:
        # |g|, and g where it is changed; all at once that is |g| in the end.
        return Temporaries(1 + (bool(self.weight_decay) or self.maximize), 1)

    def update(self, parameter: Array, gradient: Array, state: State, lr: float, t: int) -> None:
        gradient = effective_gradient(parameter, gradient, self.weight_decay, self.maximize)
        (b1, b2), m, u = self.betas, state["exp_avg"], state["exp_inf"]
        m += (1 - b1) * (gradient - m)
        u *= b2
        np.maximum(u, np.abs(gradient) + self.eps, out=u)
        parameter -= lr / (1 - b1**t) * m / u
