"""Optimizers for large batches and models: LARS, LAMB, Adafactor, Muon."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from math import sqrt
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Array
from simdp.spec import Bool, Float, Int
from simdp.workload.optimizers import AnyOptimizer
from simdp.workload.optimizers.adam import Beta, moments, update_moments
from simdp.workload.optimizers.base import Optimizer, State, Temporaries, TrustRatio


class LARS(TrustRatio):
    """``b = momentum b + r (g + weight_decay p)``; ``p = p - lr b``, or with nesterov as SGD's.

    ``r = trust_coefficient |p| / (|g| + weight_decay |p| + eps)``. The rate is outside of the
    momentum, as in torch's SGD, apex's LARC and timm's Lars; in the paper it is inside. You, Gitman
    and Ginsburg, "Large batch training of convolutional networks", arXiv 1708.03888.
    """

    kind: Literal["lars"] = "lars"
    lr: Float = Field(1.0, ge=0)
    momentum: Float = Field(0.9, ge=0)
    """Share of b that is kept in each step."""
    nesterov: Bool = False
    """Whether to use Nesterov's momentum."""
    weight_decay: Float = Field(0.0, ge=0)
    trust_coefficient: Float = Field(1e-3, gt=0)
    """Share of a tensor's norm that a step may change."""
    eps: Float = Field(1e-8, ge=0)
    always_adapt: Bool = False
    maximize: Bool = False

    def starting_state(self) -> dict[str, float]:
        return {"momentum_buffer": 0.0} if self.momentum else {}

    def num_kernels(self) -> int:
        # Two norms; gradient: add, mul; buffer: mul, add; parameter: add.
        return (7 + self.nesterov if self.momentum else 5) + self.maximize

    def temporaries(self) -> Temporaries:
        # The scaled gradient, and Nesterov's.
        return Temporaries(1 + self.nesterov, 1)

    def nbytes_moved(self, num_elements: int, itemsize: int) -> float:
        """Both tensors are read for their norms, then again as in SGD."""
        return (2 + 3 + 2 * len(self.starting_state())) * num_elements * itemsize

    def measured(self, parameter: Array, gradient: Array, state: State, t: int) -> Array:
        return -gradient if self.maximize else gradient

    def ratio(self, weight_norm: float, measured_norm: float) -> float:
        decay = self.weight_decay * weight_norm
        return self.trust_coefficient * weight_norm / (measured_norm + decay + self.eps)

    def finish(
        self, parameter: Array, measured: Array, state: State, lr: float, t: int, ratio: float
    ) -> None:
        change = ratio * (measured + self.weight_decay * parameter)
        if self.momentum:
            buffer = state["momentum_buffer"]
            buffer *= self.momentum
            buffer += change
            change = change + self.momentum * buffer if self.nesterov else buffer
        parameter -= lr * change


class LAMB(TrustRatio):
    """``p -= lr |p| / |u| u`` for each tensor, u being AdamW's update with its decay.

    ``u = m / (1 - b1^t) / (sqrt(v) / sqrt(1 - b2^t) + eps) + weight_decay p``. apex also clips the
    gradient of all tensors to a norm of 1 before; here `clip_grad_norm` does this.

    References
    ----------
    You et al., "Large batch optimization for deep learning: training BERT in 76 minutes", arXiv
    1904.00962, algorithm 2; apex.optimizers.FusedLAMB.
    """

    kind: Literal["lamb"] = "lamb"
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: Float = Field(1e-6, ge=0)
    weight_decay: Float = Field(0.01, ge=0)
    bias_correction: Bool = True
    """Whether averages are divided by ``1 - b^t``."""
    always_adapt: Bool = False
    maximize: Bool = False

    def starting_state(self) -> dict[str, float]:
        return moments()

    def num_kernels(self) -> int:
        # m: lerp; v: mul, addcmul; u: sqrt, div, add, div, add; two norms; parameter: add.
        return 11 + self.maximize

    def temporaries(self) -> Temporaries:
        # u and its denominator, and a changed g; all at once u overwrites the gradient.
        return Temporaries(2 + self.maximize, 0)

    def nbytes_moved(self, num_elements: int, itemsize: int) -> float:
        """Bytes of apex's three kernels: for u, for the norms, and for the parameter."""
        return (7 + 2 + 3) * num_elements * itemsize

    def measured(self, parameter: Array, gradient: Array, state: State, t: int) -> Array:
        m, v = update_moments(self.betas, -gradient if self.maximize else gradient, state)
        b1, b2 = self.betas if self.bias_correction else (0.0, 0.0)
        update: Array = m / (1 - b1**t) / (np.sqrt(v) / sqrt(1 - b2**t) + self.eps)
        return update + self.weight_decay * parameter if self.weight_decay else update

    def ratio(self, weight_norm: float, measured_norm: float) -> float:
        return weight_norm / measured_norm

    def finish(
        self, parameter: Array, measured: Array, state: State, lr: float, t: int, ratio: float
    ) -> None:
        parameter -= lr * ratio * measured


Epsilon = Annotated[Float, Field(ge=0)]


class Adafactor(Optimizer):
    """Adam's second moment kept as one number for each row and column, and no first moment.

    ``v = r c / mean(r)`` of a matrix, r and c being averages of ``g^2`` over its columns and rows;
    v itself of a vector. ``u = g / sqrt(v)``, and ``p -= a u / max(1, rms(u) / d)`` with ``a =
    min(lr, 1 / sqrt(t)) max(eps[1], rms(p))``. At step t new squares have weight ``t^beta2_decay``.

    References
    ----------
    Shazeer and Stern, "Adafactor: adaptive learning rates with sublinear memory cost", arXiv
    1804.04235.
    """

    whole_tensors: ClassVar[bool] = True

    kind: Literal["adafactor"] = "adafactor"
    lr: Float = Field(1e-2, ge=0)
    beta2_decay: Float = Field(-0.8, le=0)
    """Exponent of the weight of new squares."""
    eps: tuple[Epsilon | None, Epsilon] = (None, 1e-3)
    """Minimum root of v, by default the dtype's precision; minimum root mean square of a
    parameter."""
    d: Float = Field(1.0, ge=1)
    """Maximum root mean square of an update."""
    weight_decay: Float = Field(0.0, ge=0)
    """Share of the parameter, times lr, that is subtracted from it in each step."""
    maximize: Bool = False

    def starting_state(self) -> dict[str, float]:
        return {"row_var": 0.0, "col_var": 0.0, "variance": 0.0}

    def state_shapes(self, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        if len(shape) < 2:
            return {"variance": shape}
        *outer, rows, columns = shape
        return {"row_var": (*outer, rows, 1), "col_var": (*outer, 1, columns)}

    def num_kernels(self) -> int:
        # Of each side: norm, square, div, lerp; v: product, mean, clamp, div, clamp, rsqrt; update:
        # mul, norm; parameter: norm, add.
        return 18 + bool(self.weight_decay) + self.maximize

    def temporaries(self) -> Temporaries:
        # v, which becomes the update, and a changed g.
        return Temporaries(1 + self.maximize, 1 + self.maximize)

    def nbytes_moved(self, num_elements: int, itemsize: int) -> float:
        """Bytes of the kernels over all elements, one by one.

        The gradient is read for both averages and the update; v is written, divided, clamped and
        its root taken, then multiplied and measured; the parameter is measured and updated.
        """
        passes = 2 + 1 + 2 + 2 + 2 + 3 + 1 + 1 + 3
        passes += 2 * (bool(self.weight_decay) + self.maximize)
        return passes * num_elements * itemsize

    def update(self, parameter: Array, gradient: Array, state: State, lr: float, t: int) -> None:
        gradient = -gradient if self.maximize else gradient
        least = np.finfo(gradient.dtype).eps if self.eps[0] is None else self.eps[0]
        root = float(np.linalg.norm(parameter)) / sqrt(max(parameter.size, 1))
        alpha = max(self.eps[1], root) * min(lr, 1 / sqrt(t))
        if self.weight_decay:
            parameter *= 1 - lr * self.weight_decay
        change = gradient / np.sqrt(np.maximum(self._square(gradient, state, t, least), least**2))
        rms = float(np.linalg.norm(change)) / sqrt(max(change.size, 1))
        parameter -= alpha / max(1.0, rms / self.d) * change

    def _square(self, gradient: Array, state: State, t: int, least: float) -> Array:
        """Update the averages with the gradient; return their estimate of its square."""
        share, squares = t**self.beta2_decay, gradient * gradient
        if gradient.ndim < 2:
            variance = state["variance"]
            variance += share * (squares - variance)
            return variance
        row, column = state["row_var"], state["col_var"]
        row += share * (squares.mean(axis=-1, keepdims=True) - row)
        column += share * (squares.mean(axis=-2, keepdims=True) - column)
        square: Array = row * column / np.maximum(row.mean(axis=-2, keepdims=True), least)
        return square


class Muon(Optimizer):
    """``p = (1 - lr weight_decay) p - lr s O(u)``: the momentum u of a matrix, made orthogonal.

    ``b = momentum b + (1 - momentum) g``, and u is b, or with nesterov g and b combined once more.
    O divides by the norm and iterates ``X = a X + (b X X^T + c X X^T X X^T) X``, which brings
    singular values near 1. torch does so in bfloat16, and its matrix products are timed so; here
    their numbers are in the dtype of the parameters. ``s = sqrt(max(1, rows / columns))``, or ``0.2
    sqrt(max(rows, columns))`` to match the updates of AdamW.

    References
    ----------
    torch.optim.Muon; Jordan et al., "Muon: an optimizer for hidden layers in neural networks",
    2024; Liu et al., "Muon is scalable for LLM training", arXiv 2502.16982.
    """

    whole_tensors: ClassVar[bool] = True

    kind: Literal["muon"] = "muon"
    weight_decay: Float = Field(0.1, ge=0)
    """Share of the parameter, times lr, that is subtracted from it in each step."""
    momentum: Float = Field(0.95, ge=0)
    """Share of b that is kept in each step."""
    nesterov: Bool = True
    """Whether to use Nesterov's momentum."""
    ns_coefficients: tuple[Float, Float, Float] = (3.4445, -4.775, 2.0315)
    """a, b and c."""
    eps: Float = Field(1e-7, ge=0)
    """Minimum norm to divide by."""
    ns_steps: Int = Field(5, ge=0, lt=100)
    """Iterations."""
    adjust_lr_fn: Literal["original", "match_rms_adamw"] | None = None
    """Choice of s; None is the first."""
    rest: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Patterns of the names of parameters that ``rest_optimizer`` updates, as in parameter groups:
    all that are not matrices, and by custom embeddings and the head."""
    rest_optimizer: AnyOptimizer = Field("adamw", validate_default=True)
    """Optimizer of these, with a learning rate of its own."""

    def for_parameter(self, name: str) -> Optimizer:
        if any(fnmatchcase(name, pattern) for pattern in self.rest):
            return self.rest_optimizer.for_parameter(name)
        return super().for_parameter(name)

    def unmatched(self, names: Iterable[str]) -> list[str]:
        known = list(names)
        idle = [p for p in self.rest if not any(fnmatchcase(name, p) for name in known)]
        return idle + super().unmatched(known)

    def problem_with(self, name: str, shape: tuple[int, ...]) -> str | None:
        if len(shape) == 2:
            return None
        return (
            f"muon updates matrices, but {name!r} has the shape {shape}; add its name, or a "
            "pattern of names such as '*.bias', to rest."
        )

    def starting_state(self) -> dict[str, float]:
        return {"momentum_buffer": 0.0}

    def num_kernels(self) -> int:
        # Buffer: lerp, lerp; X: cast, norm, clamp, div; three products each; parameter: mul, add.
        return 7 + self.nesterov + 3 * self.ns_steps

    def temporaries(self) -> Temporaries:
        # Nesterov's gradient; X, its successor and X X^T have at most half of its bytes each.
        return Temporaries(1 + self.nesterov, 1 + self.nesterov)

    def flops(self, shape: tuple[int, ...]) -> float:
        least, most = sorted(shape)
        return float(self.ns_steps * (4 * least**2 * most + 2 * least**3))

    def update(self, parameter: Array, gradient: Array, state: State, lr: float, t: int) -> None:
        buffer = state["momentum_buffer"]
        buffer += (1 - self.momentum) * (gradient - buffer)
        ahead = gradient + self.momentum * (buffer - gradient) if self.nesterov else buffer
        rows, columns = parameter.shape
        scale = sqrt(max(1.0, rows / columns))
        if self.adjust_lr_fn == "match_rms_adamw":
            scale = 0.2 * sqrt(max(rows, columns))
        parameter *= 1 - lr * self.weight_decay
        parameter -= lr * scale * self._orthogonal(ahead)

    def _orthogonal(self, matrix: Array) -> Array:
        """Bring all singular values near 1, by Newton and Schulz's iteration."""
        a, b, c = self.ns_coefficients
        tall = matrix.shape[0] > matrix.shape[1]
        iterate = matrix.T if tall else matrix
        iterate = iterate / max(float(np.linalg.norm(iterate)), self.eps)
        for _ in range(self.ns_steps):
            gram = iterate @ iterate.T
            iterate = a * iterate + (b * gram + c * (gram @ gram)) @ iterate
        return iterate.T if tall else iterate
