"""torch.optim.lr_scheduler.StepLR."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from simdp.spec import Float
from simdp.workload.schedules.base import Count, Schedule


class StepLR(Schedule):
    """``lr(k) = base gamma^floor((k - 1) / step_size)``, as torch.optim.lr_scheduler.StepLR.

    Attributes
    ----------
    step_size : int
        Steps between two changes.
    gamma : float
        Factor of each change.
    """

    multiplies: ClassVar[bool] = True

    kind: Literal["step_lr"] = "step_lr"
    step_size: Count
    gamma: Float = Field(0.1, ge=0)

    def lr(self, base: float, step: int) -> float:
        return float(base * self.gamma ** ((step - 1) // self.step_size))
