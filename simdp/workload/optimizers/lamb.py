"""LAMB, as in apex's FusedLAMB and MLPerf's BERT."""

from __future__ import annotations

from math import sqrt
from typing import Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Array
from simdp.spec import Bool, Float
from simdp.workload.optimizers.adam import Beta, moments, update_moments
from simdp.workload.optimizers.base import State, Temporaries
from simdp.workload.optimizers.trust import TrustRatio


class LAMB(TrustRatio):
    """``p -= lr |p| / |u| u`` for each tensor, u being AdamW's update with its decay.

    ``u = m / (1 - b1^t) / (sqrt(v) / sqrt(1 - b2^t) + eps) + weight_decay p``. apex also clips the
    gradient of all tensors to a norm of 1 before, which is `clip_grad_norm` here.

    Attributes
    ----------
    bias_correction : bool
        Whether averages are divided by ``1 - b^t``.

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
    always_adapt: Bool = False
    maximize: Bool = False

    def starting_state(self) -> dict[str, float]:
        return moments()

    def num_kernels(self) -> int:
        # m: lerp; v: mul, addcmul; u: sqrt, div, add, div, add; two norms; parameter: add.
        return 11 + self.maximize

    def temporaries(self) -> Temporaries:
        # u and its denominator, and g where it is changed; all at once u takes the gradient's room.
        return Temporaries(2 + self.maximize, 0)

    def nbytes_moved(self, num_elements: int, itemsize: int) -> float:
        """Those of apex's three kernels: one makes u, one the norms, one changes the parameter."""
        return (7 + 2 + 3) * num_elements * itemsize

    def measured(self, parameter: Array, gradient: Array, state: State, t: int) -> Array:
        m, v = update_moments(self.betas, -gradient if self.maximize else gradient, state)
        b1, b2 = self.betas if self.bias_correction else (0.0, 0.0)
        found: Array = m / (1 - b1**t) / (np.sqrt(v) / sqrt(1 - b2**t) + self.eps)
        return found + self.weight_decay * parameter if self.weight_decay else found

    def ratio(self, weight_norm: float, measured_norm: float) -> float:
        return weight_norm / measured_norm

    def finish(
        self, parameter: Array, measured: Array, state: State, lr: float, t: int, ratio: float
    ) -> None:
        parameter -= lr * ratio * measured
