"""RMSprop with torch.optim.RMSprop's arguments and arithmetic."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Array
from simdp.spec import Bool, Float
from simdp.workload.optimizers.base import Optimizer, State, Temporaries, effective_gradient


class RMSprop(Optimizer):
    """``v = alpha v + (1 - alpha) g^2``; ``p -= lr g / (sqrt(v) + eps)``, or with momentum.

    Attributes
    ----------
    alpha : float
        Share of the average v that stays at each step.
    momentum : float
        Above 0, ``b = momentum b + g / (sqrt(v) + eps)`` and ``p -= lr b``.
    centered : bool
        Whether the square of the average gradient is taken off v.

    References
    ----------
    Tieleman and Hinton, "Lecture 6.5: RMSProp", COURSERA: Neural networks for machine learning,
    2012; centered: Graves, arXiv 1308.0850.
    """

    kind: Literal["rmsprop"] = "rmsprop"
    lr: Float = Field(1e-2, ge=0)
    alpha: Float = Field(0.99, ge=0, le=1)
    eps: Float = Field(1e-8, ge=0)
    weight_decay: Float = Field(0.0, ge=0)
    momentum: Float = Field(0.0, ge=0)
    centered: Bool = False
    maximize: Bool = False

    def starting_state(self) -> dict[str, float]:
        names = ["square_avg"]
        names += ["momentum_buffer"] if self.momentum else []
        names += ["grad_avg"] if self.centered else []
        return dict.fromkeys(names, 0.0)

    def num_kernels(self) -> int:
        # v: mul, addcmul; denominator: sqrt, add; parameter: addcdiv; buffer: mul, addcdiv.
        return (
            5
            + 2 * bool(self.momentum)
            + 2 * self.centered
            + bool(self.weight_decay)
            + self.maximize
        )

    def temporaries(self) -> Temporaries:
        # sqrt, and g where it is changed.
        changed = bool(self.weight_decay) or self.maximize
        return Temporaries(1 + changed, 1 + changed)

    def update(self, parameter: Array, gradient: Array, state: State, lr: float, t: int) -> None:
        gradient = effective_gradient(parameter, gradient, self.weight_decay, self.maximize)
        v = state["square_avg"]
        v *= self.alpha
        v += (1 - self.alpha) * gradient * gradient
        if self.centered:
            mean = state["grad_avg"]
            mean += (1 - self.alpha) * (gradient - mean)
            v = v - mean * mean
        direction = gradient / (np.sqrt(v) + self.eps)
        if self.momentum:
            buffer = state["momentum_buffer"]
            buffer *= self.momentum
            buffer += direction
            direction = buffer
        parameter -= lr * direction
