"""Adam with torch.optim.Adam's arguments and arithmetic."""

from __future__ import annotations

from math import sqrt
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from simdp.spec import Bool
from simdp.workload.optimizers.base import Array, Optimizer, State

Beta = Annotated[float, Field(ge=0, lt=1)]


class Adam(Optimizer):
    """Adam (Kingma and Ba, arXiv 1412.6980); weight decay is added to the gradient."""

    kind: Literal["adam"] = "adam"
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: float = Field(1e-8, ge=0)
    weight_decay: float = Field(0.0, ge=0)
    amsgrad: Bool = False
    maximize: Bool = False

    def state_names(self) -> list[str]:
        return ["exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if self.amsgrad else [])]

    def update(self, parameter: Array, gradient: Array, state: State, lr: float, t: int) -> None:
        gradient = -gradient if self.maximize else gradient
        if self.weight_decay:
            gradient = gradient + self.weight_decay * parameter
        moments(self.betas, self.eps, self.amsgrad, parameter, gradient, state, lr, t)


def moments(
    betas: tuple[float, float],
    eps: float,
    amsgrad: bool,
    parameter: Array,
    gradient: Array,
    state: State,
    lr: float,
    t: int,
) -> None:
    """Adam's step: ``p -= lr / (1 - b1^t) m / (sqrt(v) / sqrt(1 - b2^t) + eps)``."""
    (b1, b2), m, v = betas, state["exp_avg"], state["exp_avg_sq"]
    m += (1 - b1) * (gradient - m)
    v *= b2
    v += (1 - b2) * gradient * gradient
    if amsgrad:
        np.maximum(state["max_exp_avg_sq"], v, out=state["max_exp_avg_sq"])
        v = state["max_exp_avg_sq"]
    denominator = np.sqrt(v)
    denominator /= sqrt(1 - b2**t)
    denominator += eps
    parameter -= lr / (1 - b1**t) * m / denominator
