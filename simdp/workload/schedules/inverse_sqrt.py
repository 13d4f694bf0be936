"""Hugging Face's get_inverse_sqrt_schedule."""

from __future__ import annotations

from math import sqrt
from typing import Literal

from pydantic import Field

from simdp.spec import Int
from simdp.workload.schedules.base import Count, Schedule

WITHOUT_WARMUP = 10_000
"""What the time scale is without a warm-up."""


class InverseSqrt(Schedule):
    """``lr(k)`` rises evenly from 0 to base, then falls as one over the root of the steps.

    With ``e = k - 1`` and ``T = timescale``: ``lr(k) = base e / warmup_steps`` for
    ``e < warmup_steps``, then ``base sqrt(T / (e + T - warmup_steps))``.

    Attributes
    ----------
    warmup_steps : int
        Steps on which the rate rises; the first of them has rate 0.
    timescale : int or None
        Steps in which the rate falls to ``1 / sqrt(2)``, after the warm-up; as long as that, or
        10,000 without one, unless it is given.

    References
    ----------
    transformers.get_inverse_sqrt_schedule.
    """

    kind: Literal["inverse_sqrt"] = "inverse_sqrt"
    warmup_steps: Int = Field(ge=0, le=10**9)
    timescale: Count | None = None

    def lr(self, base: float, step: int) -> float:
        done = step - 1
        if done < self.warmup_steps:
            return base * (done / self.warmup_steps)
        scale = self.timescale or self.warmup_steps or WITHOUT_WARMUP
        return base / sqrt((done + scale - self.warmup_steps) / scale)
