"""AdamW with torch.optim.AdamW's arguments and arithmetic."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from simdp.arrays import Array
from simdp.spec import Bool, Float
from simdp.workload.optimizers.adam import Beta, descend, moments
from simdp.workload.optimizers.base import (
    State,
    Temporaries,
    decouple,
    effective_gradient,
)
from simdp.workload.optimizers.fusable import Fusable


class AdamW(Fusable):
    """Adam with decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101).

    Attributes
    ----------
    weight_decay : float
        Share of the parameter, times lr, that is taken off it at each step.
    amsgrad : bool
        Whether an update is divided by the largest average so far instead of the last one.
    """

    kind: Literal["adamw"] = "adamw"
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: Float = Field(1e-8, ge=0)
    weight_decay: Float = Field(0.01, ge=0)
    amsgrad: Bool = False
    maximize: Bool = False

    def starting_state(self) -> dict[str, float]:
        return moments(self.amsgrad)

    def num_kernels(self) -> int:
        # As Adam; the decay is a mul of the parameter.
        return 7 + self.amsgrad + bool(self.weight_decay) + self.maximize

    def passes(self) -> int:
        # As Adam; the decay reads and writes the parameter.
        changed = 2 * bool(self.weight_decay) + 2 * self.maximize
        return 18 + 3 * self.amsgrad + changed

    def temporaries(self) -> Temporaries:
        # As Adam; the decay makes no new g.
        return Temporaries(2 + self.maximize, 1)

    def update(self, parameter: Array, gradient: Array, state: State, lr: float, t: int) -> None:
        decay = decouple(parameter, lr, self.weight_decay, True)
        gradient = effective_gradient(parameter, gradient, decay, self.maximize)
        descend(self.betas, self.eps, self.amsgrad, parameter, gradient, state, lr, t)
