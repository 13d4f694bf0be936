"""Adam with torch.optim.Adam's arguments and arithmetic, and the moments that others share."""

from __future__ import annotations

from math import sqrt
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Array
from simdp.spec import Bool, Float
from simdp.workload.optimizers.base import State, Temporaries, effective_gradient
from simdp.workload.optimizers.fusable import Fusable

Beta = Annotated[Float, Field(ge=0, lt=1)]


class Adam(Fusable):
    """Adam (Kingma and Ba, arXiv 1412.6980); weight decay is added to the gradient.

    Attributes
    ----------
    amsgrad : bool
        Whether an update is divided by the largest average so far instead of the last one.
    """

    kind: Literal["adam"] = "adam"
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: Float = Field(1e-8, ge=0)
    weight_decay: Float = Field(0.0, ge=0)
    amsgrad: Bool = False
    maximize: Bool = False

    def starting_state(self) -> dict[str, float]:
        return moments(self.amsgrad)

    def num_kernels(self) -> int:
        # m: lerp; v: mul, addcmul; denominator: sqrt, div, add; parameter: addcdiv.
        return 7 + self.amsgrad + bool(self.weight_decay) + self.maximize

    def passes(self) -> int:
        # m: lerp 3; v: mul 2, addcmul 3; sqrt 2, div 2, add 2; parameter: addcdiv 4.
        changed = 3 * bool(self.weight_decay) + 2 * self.maximize
        return 18 + 3 * self.amsgrad + changed

    def temporaries(self) -> Temporaries:
        # sqrt, its quotient, and g where it is changed; all at once g goes before the sqrt.
        return Temporaries(2 + (bool(self.weight_decay) or self.maximize), 1)

    def update(self, parameter: Array, gradient: Array, state: State, lr: float, t: int) -> None:
        gradient = effective_gradient(parameter, gradient, self.weight_decay, self.maximize)
        descend(self.betas, self.eps, self.amsgrad, parameter, gradient, state, lr, t)


def moments(amsgrad: bool = False) -> dict[str, float]:
    """Names and starting values of Adam's state."""
    return {"exp_avg": 0.0, "exp_avg_sq": 0.0, **({"max_exp_avg_sq": 0.0} if amsgrad else {})}


def update_moments(
    betas: tuple[float, float], gradient: Array, state: State
) -> tuple[Array, Array]:
    """``m = b1 m + (1 - b1) g`` and ``v = b2 v + (1 - b2) g^2``, in place; return both."""
    (b1, b2), m, v = betas, state["exp_avg"], state["exp_avg_sq"]
    m += (1 - b1) * (gradient - m)
    v *= b2
    v += (1 - b2) * gradient * gradient
    return m, v


def descend(
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
    (b1, b2), (m, v) = betas, update_moments(betas, gradient, state)
    if amsgrad:
        np.maximum(state["max_exp_avg_sq"], v, out=state["max_exp_avg_sq"])
        v = state["max_exp_avg_sq"]
    denominator = np.sqrt(v)
    denominator /= sqrt(1 - b2**t)
    denominator += eps
    parameter -= lr / (1 - b1**t) * m / denominator
