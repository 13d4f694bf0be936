"""LARS: SGD whose rate each tensor scales by its norm over that of its gradient."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from simdp.arrays import Array
from simdp.spec import Bool, Float
from simdp.workload.optimizers.base import State, Temporaries
from simdp.workload.optimizers.trust import TrustRatio


class LARS(TrustRatio):
    """``b = momentum b + r (g + weight_decay p)``; ``p = p - lr b``, or with nesterov as SGD's.

    ``r = trust_coefficient |p| / (|g| + weight_decay |p| + eps)``. The rate is outside of the
    momentum, as in torch's SGD, in apex's LARC and timm's Lars; in the paper it is inside.

    Attributes
    ----------
    momentum : float
        Share of b that stays at each step.
    nesterov : bool
        Whether the update looks ahead by momentum.
    trust_coefficient : float
        How much of a tensor's norm a step may change.

    References
    ----------
    You, Gitman and Ginsburg, "Large batch training of convolutional networks", arXiv 1708.03888.
    """

    kind: Literal["lars"] = "lars"
    lr: Float = Field(1.0, ge=0)
    momentum: Float = Field(0.9, ge=0)
    nesterov: Bool = False
    weight_decay: Float = Field(0.0, ge=0)
    trust_coefficient: Float = Field(1e-3, gt=0)
    eps: Float = Field(1e-8, ge=0)
    always_adapt: Bool = False
    maximize: Bool = False

    def starting_state(self) -> dict[str, float]:
        return {"momentum_buffer": 0.0} if self.momentum else {}

    def num_kernels(self) -> int:
        # Two norms; gradient: add, mul; buffer: mul, add; parameter: add.
        return (7 + self.nesterov if self.momentum else 5) + self.maximize

    def temporaries(self) -> Temporaries:
        # The scaled gradient, and what looks ahead.
        return Temporaries(1 + self.nesterov, 1)

    def nbytes_moved(self, num_elements: int, itemsize: int) -> float:
        """Both tensors are read for their norms, then once more as by SGD."""
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
