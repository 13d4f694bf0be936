"""Adafactor with torch.optim.Adafactor's arguments and arithmetic."""

from __future__ import annotations

from math import sqrt
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Array
from simdp.spec import Bool, Float
from simdp.workload.optimizers.base import Optimizer, State, Temporaries

Epsilon = Annotated[Float, Field(ge=0)]


class Adafactor(Optimizer):
    """Adam's second moment kept as one number for each row and column, and no first moment.

    ``v = r c / mean(r)`` of a matrix, r and c being averages of ``g^2`` over its columns and rows;
    v itself of a vector. ``u = g / sqrt(v)``, and ``p -= a u / max(1, rms(u) / d)`` with
    ``a = min(lr, 1 / sqrt(t)) max(eps[1], rms(p))``. At step t new squares have the share
    ``t^beta2_decay``.

    Attributes
    ----------
    beta2_decay : float
        How fast new gradients lose weight.
    eps : tuple of (float or None, float)
        Least root of v, by default the dtype's precision; least root mean square of a parameter.
    d : float
        Largest root mean square of an update.
    weight_decay : float
        Share of the parameter, times lr, that is taken off it at each step.

    References
    ----------
    Shazeer and Stern, "Adafactor: adaptive learning rates with sublinear memory cost", arXiv
    1804.04235.
    """

    whole_tensors: ClassVar[bool] = True

    kind: Literal["adafactor"] = "adafactor"
    lr: Float = Field(1e-2, ge=0)
    beta2_decay: Float = Field(-0.8, le=0)
    eps: tuple[Epsilon | None, Epsilon] = (None, 1e-3)
    d: Float = Field(1.0, ge=1)
    weight_decay: Float = Field(0.0, ge=0)
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
        # v, which becomes the update, and g where it is changed.
        return Temporaries(1 + self.maximize, 1 + self.maximize)

    def nbytes_moved(self, num_elements: int, itemsize: int) -> float:
        """Those of the kernels that touch all elements, one by one.

        The gradient is read for either side and the update; v is written, divided, clamped, and its
        root taken, then multiplied and measured; the parameter is measured and changed.
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
        """Take the gradient into the averages; what they say of its square."""
        share, squares = t**self.beta2_decay, gradient * gradient
        if gradient.ndim < 2:
            variance = state["variance"]
            variance += share * (squares - variance)
            return variance
        row, column = state["row_var"], state["col_var"]
        row += share * (squares.mean(axis=-1, keepdims=True) - row)
        column += share * (squares.mean(axis=-2, keepdims=True) - column)
        found: Array = row * column / np.maximum(row.mean(axis=-2, keepdims=True), least)
        return found
