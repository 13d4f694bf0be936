"""Adadelta with torch.optim.Adadelta's arguments and arithmetic."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Array
from simdp.spec import Bool, Float
from simdp.workload.optimizers.base import Optimizer, State, Temporaries, effective_gradient


class Adadelta(Optimizer):
    """``p -= lr g sqrt(u + eps) / sqrt(v + eps)``; v, u average g^2 and the steps' squares.

    Attributes
    ----------
    rho : float
        Share of v and u that stays at each step.

    References
    ----------
    Zeiler, "ADADELTA: an adaptive learning rate method", arXiv 1212.5701.
    """

    kind: Literal["adadelta"] = "adadelta"
    lr: Float = Field(1.0, ge=0)
    rho: Float = Field(0.9, ge=0, le=1)
    eps: Float = Field(1e-6, ge=0)
    weight_decay: Float = Field(0.0, ge=0)
    maximize: Bool = False

    def starting_state(self) -> dict[str, float]:
        return {"square_avg": 0.0, "acc_delta": 0.0}

    def num_kernels(self) -> int:
        # v, u: mul, addcmul; roots: add, sqrt; delta: div, mul; parameter: add.
        return 11 + bool(self.weight_decay) + self.maximize

    def temporaries(self) -> Temporaries:
        # Two roots, and g where it is changed.
        changed = bool(self.weight_decay) or self.maximize
        return Temporaries(2 + changed, 2 + changed)

    def update(self, parameter: Array, gradient: Array, state: State, lr: float, t: int) -> None:
        gradient = effective_gradient(parameter, gradient, self.weight_decay, self.maximize)
        v, u = state["square_avg"], state["acc_delta"]
        v *= self.rho
        v += (1 - self.rho) * gradient * gradient
        delta = np.sqrt(u + self.eps)
        delta /= np.sqrt(v + self.eps)
        delta *= gradient
        u *= self.rho
        u += (1 - self.rho) * delta * delta
        parameter -= lr * delta
