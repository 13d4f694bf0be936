"""torch.optim.lr_scheduler.ConstantLR."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from simdp.spec import Float
from simdp.workload.schedules.base import Count, Schedule


class ConstantLR(Schedule):
    """``lr(k) = base factor`` for ``k <= total_iters``, then base, as torch's ConstantLR.

    Attributes
    ----------
    factor : float
        Factor of the first steps; above 0, since torch divides by it to end them.
    total_iters : int
        How many steps those are.

    References
    ----------
    torch.optim.lr_scheduler.ConstantLR.
    """

    multiplies: ClassVar[bool] = True

    kind: Literal["constant_lr"] = "constant_lr"
    factor: Float = Field(1 / 3, gt=0, le=1)
    total_iters: Count = 5

    def lr(self, base: float, step: int) -> float:
        return base * self.factor if step <= self.total_iters else base
