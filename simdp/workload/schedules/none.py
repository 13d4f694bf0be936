"""No schedule: every step has the optimizer's learning rate."""

from __future__ import annotations

from typing import Literal

from simdp.workload.schedules.base import Schedule


class NoSchedule(Schedule):
    """``lr(k) = base`` at every step k."""

    kind: Literal["none"] = "none"
    per: Literal["step"] = "step"

    def lr(self, base: float, step: int) -> float:
        return base
