"""torch.optim.lr_scheduler.ExponentialLR."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from simdp.spec import Float
from simdp.workload.schedules.base import Schedule


class ExponentialLR(Schedule):
    """``lr(k) = base gamma^(k - 1)``, as torch's ExponentialLR.

    Attributes
    ----------
    gamma : float
        Factor of each step.
    """

    multiplies: ClassVar[bool] = True

    kind: Literal["exponential_lr"] = "exponential_lr"
    gamma: Float = Field(ge=0)

    def lr(self, base: float, step: int) -> float:
        return float(base * self.gamma ** (step - 1))
