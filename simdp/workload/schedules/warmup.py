"""What the schedules with a warm-up share: the way up, and the check of the two lengths."""

from __future__ import annotations

from abc import abstractmethod

from pydantic import Field, ValidationInfo, field_validator

from simdp.spec import Int, problem
from simdp.workload.schedules.base import Count, Schedule


class Warmup(Schedule):
    """``lr(k) = base (k - 1) / warmup_steps`` while that is below base, then what `rate` says.

    Attributes
    ----------
    warmup_steps : int
        Steps on which the rate rises; the first of them has rate 0.
    total_steps : int
        Steps of the whole schedule.
    """

    warmup_steps: Int = Field(ge=0, le=10**9)
    total_steps: Count

    @field_validator("total_steps")
    @classmethod
    def _warmup_fits(cls, value: int, info: ValidationInfo) -> int:
        warmup = info.data.get("warmup_steps", 0)
        if warmup > value:
            raise problem(f"{value} is less than warmup_steps, {warmup}; raise it or warm up less.")
        return value

    @abstractmethod
    def rate(self, base: float, done: int, steps: int) -> float:
        """Learning rate after ``done`` of ``steps`` steps that follow the warm-up."""

    def lr(self, base: float, step: int) -> float:
        done = step - 1
        if done < self.warmup_steps:
            return base * (done / self.warmup_steps)
        return self.rate(base, done - self.warmup_steps, self.total_steps - self.warmup_steps)
