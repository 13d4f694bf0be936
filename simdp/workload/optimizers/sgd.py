"""SGD, ASGD and Rprop."""

from __future__ import annotations

from math import prod
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from simdp.arrays import Array
from simdp.spec import Bool, Float, problem
from simdp.workload.optimizers.base import (
    Fusable,
    Optimizer,
    State,
    Temporaries,
    effective_gradient,
)


class SGD(Fusable):
    """``b = momentum b + (1 - dampening) g``; ``p = p - lr b``, or with nesterov g + momentum b."""

    kind: Literal["sgd"] = "sgd"
    momentum: Float = Field(0.0, ge=0)
    """Share of b that is kept in each step."""
    dampening: Float = 0.0
    """Share of the gradient that b leaves out, except in the first step."""
    weight_decay: Float = Field(0.0, ge=0)
    nesterov: Bool = False
    """Whether to use Nesterov's momentum."""
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


class ASGD(Optimizer):
    """``p = (1 - lambd e) p - e g`` with ``e = lr / (1 + lambd lr (t - 1))^alpha``.

    As in torch, e is computed at the end of the step before, with its lr: a schedule's change acts
    one step later. In the first step ``e = lr``. Training also keeps the average ax of the
    parameters since step t0, and does not read it.

    References
    ----------
    Polyak and Juditsky, "Acceleration of stochastic approximation by averaging", SIAM Journal on
    Control and Optimization 30(4), 1992.
    """

    kind: Literal["asgd"] = "asgd"
    lr: Float = Field(1e-2, ge=0)
    lambd: Float = Field(1e-4, ge=0)
    """Decay of the steps."""
    alpha: Float = Field(0.75, ge=0)
    """Decay of the steps."""
    t0: Float = Field(1e6, ge=0)
    """Step at which averaging begins."""
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
        # A changed g; all at once its sum with the decaying parameter.
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


class Rprop(Optimizer):
    """``p -= sign(g) s``: a step size of each element grows while the gradient keeps its sign.

    If the sign changes, s shrinks and the step is skipped. The learning rate is only the initial s;
    schedules do not change it later, as in torch.

    References
    ----------
    Riedmiller and Braun, "A direct adaptive method for faster backpropagation learning: the RPROP
    algorithm", ICNN 1993.
    """

    indexes_gradients: ClassVar[bool] = True

    kind: Literal["rprop"] = "rprop"
    lr: Float = Field(1e-2, ge=0)
    etas: tuple[Annotated[Float, Field(gt=0, lt=1)], Annotated[Float, Field(gt=1)]] = (0.5, 1.2)
    """Factors of s if the sign changes, and if it stays."""
    step_sizes: tuple[Annotated[Float, Field(ge=0)], Annotated[Float, Field(ge=0)]] = (1e-6, 50.0)
    """Smallest and largest s."""
    maximize: Bool = False

    @model_validator(mode="after")
    def _sizes_rise(self) -> Self:
        least, most = self.step_sizes
        if least > most:
            raise problem(f"step_sizes {least:g}, {most:g} fall; give the smaller one first.")
        return self

    def starting_state(self) -> dict[str, float]:
        return {"prev": 0.0, "step_size": self.lr}

    def num_kernels(self) -> int:
        # Sign: mul, sign, three comparisons and three fills; step size: mul, clamp; gradient:
        # clone, comparison, fill, sign; parameter: addcmul; copy.
        return 16 + self.maximize

    def temporaries(self) -> Temporaries:
        # The sign of the product, the gradient's copy and its sign; and a changed g.
        return Temporaries(3 + self.maximize, 3)

    def update(self, parameter: Array, gradient: Array, state: State, lr: float, t: int) -> None:
        gradient = -gradient if self.maximize else gradient
        shrink, grow = self.etas
        previous, size = state["prev"], state["step_size"]
        if t == 1:
            size[:] = lr
        kept = gradient * previous
        size *= np.where(kept > 0, grow, np.where(kept < 0, shrink, 1.0)).astype(size.dtype)
        np.clip(size, *self.step_sizes, out=size)
        previous[:] = np.where(kept < 0, 0, gradient)
        parameter -= np.sign(previous) * size
