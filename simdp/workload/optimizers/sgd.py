"""Stochastic gradient descent with torch.optim.SGD's arguments and arithmetic."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from simdp.arrays import Array
from simdp.spec import Bool, Float, problem
from simdp.workload.optimizers.base import State, Temporaries, effective_gradient
from simdp.workload.optimizers.fusable import Fusable


class SGD(Fusable):
    """``b = momentum b + (1 - dampening) g``; ``p = p - lr b``, or with nesterov g + momentum b.

    Attributes
    ----------
    momentum : float
        Share of b that stays at each step.
    dampening : float
        Share of the gradient that b leaves out, but at the first step.
    nesterov : bool
        Whether the update looks ahead by momentum.
    """

    kind: Literal["sgd"] = "sgd"
    momentum: Float = Field(0.0, ge=0)
    dampening: Float = 0.0
    weight_decay: Float = Field(0.0, ge=0)
    nesterov: Bool = False
    maximize: Bool = False

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> SGD:
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise problem("nesterov needs a momentum above 0 and no dampening; set momentum: 0.9.")
        return self

    def starting_state(self) -> dict[str, float]:
        return {"momentum_buffer": 0.0} if self.momentum else {}

    def num_kernels(self) -> int:
        # Buffer: mul, add; parameter: add.
        return (3 + self.nesterov if self.momentum else 1) + bool(self.weight_decay) + self.maximize

    def passes(self) -> int:
        # Parameter: add 3; buffer: mul 2, add 3; ahead, decay: add 3; -g: 2.
        changed = 3 * bool(self.weight_decay) + 2 * self.maximize
        return (8 + 3 * self.nesterov if self.momentum else 3) + changed

    def temporaries(self) -> Temporaries:
        # -g, g + decay, g + momentum: each takes the place of the one before.
        changed = bool(self.weight_decay) + self.maximize
        return Temporaries(min(changed + self.nesterov, 2), min(changed, 1))

    def update(self, parameter: Array, gradient: Array, state: State, lr: float, t: int) -> None:
        gradient = effective_gradient(parameter, gradient, self.weight_decay, self.maximize)
        if self.momentum:
            buffer = state["momentum_buffer"]
            if t == 1:
                buffer[:] = gradient  # the first buffer is the gradient itself, undampened
            else:
                buffer *= self.momentum
                buffer += (1 - self.dampening) * gradient
            gradient = gradient + self.momentum * buffer if self.nesterov else buffer
        parameter -= lr * gradient
