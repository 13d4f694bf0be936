"""Averaged SGD with torch.optim.ASGD's arguments and arithmetic."""

from __future__ import annotations

from math import prod
from typing import Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Array
from simdp.spec import Bool, Float
from simdp.workload.optimizers.base import Optimizer, State, Temporaries, effective_gradient


class ASGD(Optimizer):
    """``p = (1 - lambd e) p - e g`` with ``e = lr / (1 + lambd lr (t - 1))^alpha``.

    lr is the rate of the step before, whose end computes e, as in torch: where a schedule changes
    the rate, that counts one step later. In the first step ``e = lr``. Training also keeps the
    average ax of the parameters since step t0, and does not read it.

    Attributes
    ----------
    lambd, alpha : float
        How fast the steps get smaller.
    t0 : float
        Step at which averaging begins.

    References
    ----------
    Polyak and Juditsky, "Acceleration of stochastic approximation by averaging", SIAM Journal on
    Control and Optimization 30(4), 1992.
    """

    kind: Literal["asgd"] = "asgd"
    lr: Float = Field(1e-2, ge=0)
    lambd: Float = Field(1e-4, ge=0)
    alpha: Float = Field(0.75, ge=0)
    t0: Float = Field(1e6, ge=0)
    weight_decay: Float = Field(0.0, ge=0)
    maximize: Bool = False

    def starting_state(self) -> dict[str, float]:
        return {"ax": 0.0, "eta": self.lr}

    def state_shapes(self, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        return {"ax": shape, "eta": ()}

    def state_elements(self, shape: tuple[int, ...]) -> list[int]:
        return [prod(shape)]  # scalars such as eta and the step are not counted

    def state_names(self) -> list[str]:
        return ["ax"]

    def num_kernels(self) -> int:
        # Parameter: mul, add; average: copy, which the update of a mean replaces after t0.
        return 3 + bool(self.weight_decay) + self.maximize

    def temporaries(self) -> Temporaries:
        # g where it is changed; all at once its sum with the decaying parameter.
        return Temporaries(bool(self.weight_decay) or self.maximize, 1)

    def step(self, parameter: Array, gradient: Array, state: State, lr: float, t: int) -> None:
        eta = state["eta"]
        if t == 1:
            eta[...] = lr
        own = {"ax": state["ax"], "eta": np.broadcast_to(eta, (parameter.size,))}
        super().step(parameter, gradient, own, lr, t)
        eta[...] = lr / (1 + self.lambd * lr * t) ** self.alpha

    def update(self, parameter: Array, gradient: Array, state: State, lr: float, t: int) -> None:
        gradient = effective_gradient(parameter, gradient, self.weight_decay, self.maximize)
        eta, average = state["eta"], state["ax"]
        share = 1 / max(1.0, t - 1 - self.t0)
        parameter *= 1 - self.lambd * eta
        parameter -= eta * gradient
        if share == 1:
            average[:] = parameter
        else:
            average += share * (parameter - average)
