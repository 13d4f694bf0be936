"""torch.optim.lr_scheduler.LinearLR."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from simdp.spec import Float
from simdp.workload.schedules.base import Count, Schedule


class LinearLR(Schedule):
    """``lr(k) = base f``, f going evenly from start_factor to end_factor, as torch's LinearLR.

    ``f = start_factor + (end_factor - start_factor) min(k - 1, total_iters) / total_iters``.

    Attributes
    ----------
    start_factor, end_factor : float
        Factors of the first step, and from step ``total_iters + 1`` on.
    total_iters : int
        Steps between the two.

    References
    ----------
    torch.optim.lr_scheduler.LinearLR.
    """

    multiplies: ClassVar[bool] = True

    kind: Literal["linear_lr"] = "linear_lr"
    start_factor: Float = Field(1 / 3, gt=0, le=1)
    end_factor: Float = Field(1.0, ge=0, le=1)
    total_iters: Count = 5

    def lr(self, base: float, step: int) -> float:
        done = min(step - 1, self.total_iters) / self.total_iters
        return base * (self.start_factor + (self.end_factor - self.start_factor) * done)
