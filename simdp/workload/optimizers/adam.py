"""Optimizers with a step size per parameter: Adam and relatives, Adagrad, RMSprop."""

from __future__ import annotations

import math
from functools import lru_cache
from math import sqrt
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Array
from simdp.spec import Bool, Float
from simdp.workload.optimizers.base import (
    Fusable,
    Optimizer,
    State,
    Temporaries,
    decouple,
    effective_gradient,
)

Beta = Annotated[Float, Field(ge=0, lt=1)]


class AdamBase(Fusable):
    """Base of Adam and AdamW, which differ in the weight decay."""

    decoupled: ClassVar[bool]
    """Whether the parameter decays directly instead of through its gradient."""

    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: Float = Field(1e-8, ge=0)
    weight_decay: Float = Field(0.0, ge=0)
    amsgrad: Bool = False
    """Whether to divide by the largest average of squares so far instead of the last one."""
    maximize: Bool = False

    def starting_state(self) -> dict[str, float]:
        return moments(self.amsgrad)

    def num_kernels(self) -> int:
        # m: lerp; v: mul, addcmul; denominator: sqrt, div, add; parameter: addcdiv; decay.
        return 7 + self.amsgrad + bool(self.weight_decay) + self.maximize

    def passes(self) -> int:
        # m: lerp 3; v: mul 2, addcmul 3; sqrt 2, div 2, add 2; parameter: addcdiv 4.
        decay = 2 if self.decoupled else 3  # p in and out; g and p in, g out
        return 18 + 3 * self.amsgrad + decay * bool(self.weight_decay) + 2 * self.maximize

    def temporaries(self) -> Temporaries:
        # sqrt, its quotient, and a changed g; all at once g is freed before the sqrt.
        changed = self.maximize or (bool(self.weight_decay) and not self.decoupled)
        return Temporaries(2 + changed, 1)

    def update(self, parameter: Array, gradient: Array, state: State, lr: float, t: int) -> None:
        decay = decouple(parameter, lr, self.weight_decay, self.decoupled)
        gradient = effective_gradient(parameter, gradient, decay, self.maximize)
        descend(self.betas, self.eps, self.amsgrad, parameter, gradient, state, lr, t)


class Adam(AdamBase):
    """Adam (Kingma and Ba, arXiv 1412.6980); weight decay is added to the gradient."""

    decoupled: ClassVar[bool] = False
    kind: Literal["adam"] = "adam"


class AdamW(AdamBase):
    """Adam with decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101)."""

    decoupled: ClassVar[bool] = True
    kind: Literal["adamw"] = "adamw"
    weight_decay: Float = Field(0.01, ge=0)
    """Share of the parameter, times lr, that is subtracted from it in each step."""


def moments(amsgrad: bool = False) -> dict[str, float]:
    """Names and initial values of Adam's state."""
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


class Adamax(Optimizer):
    """``u = max(b2 u, |g| + eps)``; ``p -= lr / (1 - b1^t) m / u``, m as Adam's.

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
        # |g|, and a changed g; all at once g is overwritten by |g|.
        return Temporaries(1 + (bool(self.weight_decay) or self.maximize), 1)

    def update(self, parameter: Array, gradient: Array, state: State, lr: float, t: int) -> None:
        gradient = effective_gradient(parameter, gradient, self.weight_decay, self.maximize)
        (b1, b2), m, u = self.betas, state["exp_avg"], state["exp_inf"]
        m += (1 - b1) * (gradient - m)
        u *= b2
        np.maximum(u, np.abs(gradient) + self.eps, out=u)
        parameter -= lr / (1 - b1**t) * m / u


class NAdam(Optimizer):
    """Adam with Nesterov's momentum, ``mu_t = b1 (1 - 0.96^(t momentum_decay) / 2)``.

    ``p -= lr ((1 - mu_t) g / (1 - M_t) + mu_{t+1} m / (1 - M_{t+1})) / (sqrt(v / (1 - b2^t)) +
    eps)``, where M_t is the product of mu_1 ... mu_t, and m and v are Adam's. Dozat, "Incorporating
    Nesterov momentum into Adam", ICLR workshop, 2016.
    """

    kind: Literal["nadam"] = "nadam"
    lr: Float = Field(2e-3, ge=0)
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: Float = Field(1e-8, ge=0)
    weight_decay: Float = Field(0.0, ge=0)
    momentum_decay: Float = Field(4e-3, ge=0)
    """Rate at which mu rises to b1; with 0 it stays at half of b1."""
    decoupled_weight_decay: Bool = False
    """Whether weight decay is decoupled, as in AdamW, or added to the gradient."""
    maximize: Bool = False

    def starting_state(self) -> dict[str, float]:
        return moments()

    def num_kernels(self) -> int:
        # m: lerp; v: mul, addcmul; denominator: div, sqrt, add; parameter: addcdiv twice.
        return 8 + bool(self.weight_decay) + self.maximize

    def temporaries(self) -> Temporaries:
        # v / (1 - b2^t), its root, and a changed g; all at once the root and g.
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
    """Product of NAdam's mu over the steps 1 ... t, equal for all parameters."""
    product = 1.0
    for k in range(1, t + 1):
        product *= _mu(beta, momentum_decay, k)
        if product < 1e-20:  # 1 - product is 1 in float64
            break
    return product


class RAdam(Optimizer):
    """Adam whose first steps do not divide by sqrt(v), while v averages too few gradients.

    ``p -= lr m / (1 - b1^t)``, times ``r sqrt(1 - b2^t) / (sqrt(v) + eps)`` as soon as rho > 5;
    ``rho = rho_inf - 2 t b2^t / (1 - b2^t)``, ``rho_inf = 2 / (1 - b2) - 1`` and
    ``r^2 = (rho - 4) (rho - 2) rho_inf / ((rho_inf - 4) (rho_inf - 2) rho)``.
    Liu et al., "On the variance of the adaptive learning rate and beyond", arXiv 1908.03265.
    """

    kind: Literal["radam"] = "radam"
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: Float = Field(1e-8, ge=0)
    weight_decay: Float = Field(0.0, ge=0)
    decoupled_weight_decay: Bool = False
    """Whether weight decay is decoupled, as in AdamW, or added to the gradient."""
    maximize: Bool = False

    def starting_state(self) -> dict[str, float]:
        return moments()

    def num_kernels(self) -> int:
        # m: lerp; v: mul, addcmul; m: div; denominator: sqrt, add, div; step: mul; add.
        return 9 + bool(self.weight_decay) + self.maximize

    def temporaries(self) -> Temporaries:
        # Five factors and products of the step, and a changed g; all at once one buffer.
        changed = bool(self.maximize or (self.weight_decay and not self.decoupled_weight_decay))
        return Temporaries(5 + changed, 1)

    def update(self, parameter: Array, gradient: Array, state: State, lr: float, t: int) -> None:
        decay = decouple(parameter, lr, self.weight_decay, self.decoupled_weight_decay)
        gradient = effective_gradient(parameter, gradient, decay, self.maximize)
        m, v = update_moments(self.betas, gradient, state)
        b1, b2 = self.betas
        step = lr / (1 - b1**t) * m
        rectified = rectification(b2, t)
        if rectified is not None:
            step *= rectified * sqrt(1 - b2**t) / (np.sqrt(v) + self.eps)
        parameter -= step


def rectification(beta: float, t: int) -> float | None:
    """RAdam's r at step t, or None while ``rho <= 5``."""
    longest = 2 / (1 - beta) - 1
    rho = longest - 2 * t * beta**t / (1 - beta**t)
    if rho <= 5:
        return None
    return sqrt((rho - 4) * (rho - 2) * longest / ((longest - 4) * (longest - 2) * rho))


class Adagrad(Fusable):
    """``s += g^2``; ``p -= lr / (1 + (t - 1) lr_decay) g / (sqrt(s) + eps)``.

    Duchi, Hazan and Singer, "Adaptive subgradient methods for online learning and stochastic
    optimization", JMLR 12, 2011.
    """

    kind: Literal["adagrad"] = "adagrad"
    lr: Float = Field(1e-2, ge=0)
    lr_decay: Float = Field(0.0, ge=0)
    """Decay of the learning rate with the step t."""
    weight_decay: Float = Field(0.0, ge=0)
    initial_accumulator_value: Float = Field(0.0, ge=0)
    """Initial value of s."""
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
        # sqrt, and a changed g; all at once g is always changed, by lr.
        return Temporaries(1 + (bool(self.weight_decay) or self.maximize), 2)

    def update(self, parameter: Array, gradient: Array, state: State, lr: float, t: int) -> None:
        gradient = effective_gradient(parameter, gradient, self.weight_decay, self.maximize)
        total = state["sum"]
        total += gradient * gradient
        denominator = np.sqrt(total)
        denominator += self.eps
        parameter -= lr / (1 + (t - 1) * self.lr_decay) * gradient / denominator


class Adadelta(Optimizer):
    """``p -= lr g sqrt(u + eps) / sqrt(v + eps)``; v, u average g^2 and the steps' squares.

    Zeiler, "ADADELTA: an adaptive learning rate method", arXiv 1212.5701.
    """

    kind: Literal["adadelta"] = "adadelta"
    lr: Float = Field(1.0, ge=0)
    rho: Float = Field(0.9, ge=0, le=1)
    """Decay rate of v and u."""
    eps: Float = Field(1e-6, ge=0)
    weight_decay: Float = Field(0.0, ge=0)
    maximize: Bool = False

    def starting_state(self) -> dict[str, float]:
        return {"square_avg": 0.0, "acc_delta": 0.0}

    def num_kernels(self) -> int:
        # v, u: mul, addcmul; roots: add, sqrt; delta: div, mul; parameter: add.
        return 11 + bool(self.weight_decay) + self.maximize

    def temporaries(self) -> Temporaries:
        # Two roots, and a changed g.
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


class RMSprop(Optimizer):
    """``v = alpha v + (1 - alpha) g^2``; ``p -= lr g / (sqrt(v) + eps)``, or with momentum.

    Tieleman and Hinton, "Lecture 6.5: RMSProp", COURSERA: Neural networks for machine learning,
    2012; centered: Graves, arXiv 1308.0850.
    """

    kind: Literal["rmsprop"] = "rmsprop"
    lr: Float = Field(1e-2, ge=0)
    alpha: Float = Field(0.99, ge=0, le=1)
    """Decay rate of the average v."""
    eps: Float = Field(1e-8, ge=0)
    weight_decay: Float = Field(0.0, ge=0)
    momentum: Float = Field(0.0, ge=0)
    """Above 0, ``b = momentum b + g / (sqrt(v) + eps)`` and ``p -= lr b``."""
    centered: Bool = False
    """Whether to subtract the square of the average gradient from v."""
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
        # sqrt, and a changed g.
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
