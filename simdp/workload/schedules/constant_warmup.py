"""Hugging Face's get_constant_schedule_with_warmup."""

from __future__ import annotations

from typing import ClassVar, Literal

from simdp.workload.schedules.base import Count, Schedule


class ConstantWarmup(Schedule):
    """``lr(k) = base min(1, (k - 1) / warmup_steps)``, as Hugging Face's.

    Attributes
    ----------
    warmup_steps : int
        Steps on which the rate rises; the first of them has rate 0.

    References
    ----------
    transformers.get_constant_schedule_with_warmup.
    """

    multiplies: ClassVar[bool] = True

    kind: Literal["constant_warmup"] = "constant_warmup"
    warmup_steps: Count

    def lr(self, base: float, step: int) -> float:
        return base * min(1.0, (step - 1) / self.warmup_steps)
