"""torch.optim.lr_scheduler.MultiStepLR."""

from __future__ import annotations

from bisect import bisect_right
from typing import ClassVar, Literal

from pydantic import Field

from simdp.spec import Float
from simdp.workload.schedules.base import Milestones, Schedule


class MultiStepLR(Schedule):
    """``lr(k) = base gamma^n``, n milestones being at most k - 1, as torch's MultiStepLR.

    Attributes
    ----------
    milestones : list of int
        Finished steps after which the rate changes; one that is repeated changes it as often.
    gamma : float
        Factor of each change.

    References
    ----------
    torch.optim.lr_scheduler.MultiStepLR.
    """

    multiplies: ClassVar[bool] = True

    kind: Literal["multi_step_lr"] = "multi_step_lr"
    milestones: Milestones
    gamma: Float = Field(0.1, ge=0)

    def lr(self, base: float, step: int) -> float:
        return float(base * self.gamma ** bisect_right(self.milestones, step - 1))
