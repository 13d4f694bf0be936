"""Rprop with torch.optim.Rprop's arguments and arithmetic."""

from __future__ import annotations

from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from simdp.arrays import Array
from simdp.spec import Bool, Float, problem
from simdp.workload.optimizers.base import Optimizer, State, Temporaries


class Rprop(Optimizer):
    """``p -= sign(g) s``: a step size of each element grows while the gradient keeps its sign.

    Where the sign turns, s shrinks and the step is left out. The learning rate is the first s, and
    nothing else: schedules do not change it later, as in torch.

    Attributes
    ----------
    etas : tuple of float
        Factors of s where the sign turns, and where it stays.
    step_sizes : tuple of float
        Smallest and largest s.

    References
    ----------
    Riedmiller and Braun, "A direct adaptive method for faster backpropagation learning: the RPROP
    algorithm", ICNN 1993.
    """

    kind: Literal["rprop"] = "rprop"
    lr: Float = Field(1e-2, ge=0)
    etas: tuple[Annotated[Float, Field(gt=0, lt=1)], Annotated[Float, Field(gt=1)]] = (0.5, 1.2)
    step_sizes: tuple[Annotated[Float, Field(ge=0)], Annotated[Float, Field(ge=0)]] = (1e-6, 50.0)
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
        # The sign of the product, the gradient's copy and its sign; and g where it is changed.
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
