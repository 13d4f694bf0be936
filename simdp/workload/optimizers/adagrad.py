"""Adagrad with torch.optim.Adagrad's arguments and arithmetic."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Array
from simdp.spec import Bool, Float
from simdp.workload.optimizers.base import State, Temporaries, effective_gradient
from simdp.workload.optimizers.fusable import Fusable


class Adagrad(Fusable):
    """``s += g^2``; ``p -= lr / (1 + (t - 1) lr_decay) g / (sqrt(s) + eps)``.

    Attributes
    ----------
    lr_decay : float
        How the learning rate falls with the step t, beside the sum s.
    initial_accumulator_value : float
        Of s before the first step.

    References
    ----------
    Duchi, Hazan and Singer, "Adaptive subgradient methods for online learning and stochastic
    optimization", JMLR 12, 2011.
    """

    kind: Literal["adagrad"] = "adagrad"
    lr: Float = Field(1e-2, ge=0)
    lr_decay: Float = Field(0.0, ge=0)
    weight_decay: Float = Field(0.0, ge=0)
    initial_accumulator_value: Float = Field(0.0, ge=0)
    eps: Float = Field(1e-10, ge=0)
    maximize: Bool = False

    def starting_state(self) -> dict[str, float]:
        return {"sum": self.initial_accumulator_value}

    def num_kernels(self) -> int:
        # Sum: addcmul; denominator: sqrt, add; parameter: addcdiv.
        return 4 + bool(self.weight_decay) + self.maximize

    def passes(self) -> int:
        # Sum: addcmul 3; sqrt 2, add 2; parameter: addcdiv 4.
        return 11 + 3 * bool(self.weight_decay) + 2 * self.maximize

    def temporaries(self) -> Temporaries:
        # sqrt, and g where it is changed; all at once g is changed in any case, by lr.
        return Temporaries(1 + (bool(self.weight_decay) or self.maximize), 2)

    def update(self, parameter: Array, gradient: Array, state: State, lr: float, t: int) -> None:
        gradient = effective_gradient(parameter, gradient, self.weight_decay, self.maximize)
        total = state["sum"]
        total += gradient * gradient
        denominator = np.sqrt(total)
        denominator += self.eps
        parameter -= lr / (1 + (t - 1) * self.lr_decay) * gradient / denominator
