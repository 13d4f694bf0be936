"""Muon with torch.optim.Muon's arguments; other tensors than matrices have an optimizer beside."""

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
from simdp.workload.optimizers.base import Optimizer, State, Temporaries


class Muon(Optimizer):
    """``p = (1 - lr weight_decay) p - lr s O(u)``: the momentum u of a matrix, made orthogonal.

    ``b = momentum b + (1 - momentum) g``, and u is b, or g and b joined once more with nesterov. O
    divides by the norm and iterates ``X = a X + (b X X^T + c X X^T X X^T) X``, which brings
    singular values near 1. torch does so in bfloat16, and its matrix products take the time of
    that; here their numbers are in the dtype of the parameters.
    ``s = sqrt(max(1, rows / columns))``, or ``0.2 sqrt(max(rows, columns))`` to match the updates
    of AdamW.

    Attributes
    ----------
    weight_decay : float
        Share of the parameter, times lr, that is taken off it at each step.
    momentum : float
        Share of b that stays at each step.
    nesterov : bool
        Whether the update looks ahead by momentum.
    ns_coefficients : tuple of float
        a, b and c.
    eps : float
        Least norm to divide by.
    ns_steps : int
        Iterations.
    adjust_lr_fn : {"original", "match_rms_adamw"} or None
        Which s; None is the first.
    rest : tuple of str
        Patterns of the names of parameters that ``rest_optimizer`` updates, as in parameter groups:
        all that are no matrices, and by custom embeddings and the head.
    rest_optimizer : Optimizer
        Theirs, with a learning rate of its own.

    References
    ----------
    torch.optim.Muon; Jordan et al., "Muon: an optimizer for hidden layers in neural networks",
    2024; Liu et al., "Muon is scalable for LLM training", arXiv 2502.16982.
    """

    whole_tensors: ClassVar[bool] = True

    kind: Literal["muon"] = "muon"
    weight_decay: Float = Field(0.1, ge=0)
    momentum: Float = Field(0.95, ge=0)
    nesterov: Bool = True
    ns_coefficients: tuple[Float, Float, Float] = (3.4445, -4.775, 2.0315)
    eps: Float = Field(1e-7, ge=0)
    ns_steps: Int = Field(5, ge=0, lt=100)
    adjust_lr_fn: Literal["original", "match_rms_adamw"] | None = None
    rest: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    rest_optimizer: AnyOptimizer = Field("adamw", validate_default=True)

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
        # What looks ahead; X and its successor are half as large, and so is X X^T at most.
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
        """Make all singular values about 1, by Newton and Schulz's iteration."""
        a, b, c = self.ns_coefficients
        tall = matrix.shape[0] > matrix.shape[1]
        found = matrix.T if tall else matrix
        found = found / max(float(np.linalg.norm(found)), self.eps)
        for _ in range(self.ns_steps):
            gram = found @ found.T
            found = a * found + (b * gram + c * (gram @ gram)) @ found
        return found.T if tall else found
