"""Hugging Face's get_cosine_with_hard_restarts_schedule_with_warmup."""

from __future__ import annotations

import math
from typing import Literal

from simdp.workload.schedules.base import Count
from simdp.workload.schedules.warmup import Warmup


class CosineHardRestartsWarmup(Warmup):
    """``lr(k)`` rises evenly from 0 to base, then follows a cosine to 0 several times.

    With ``x = (k - 1 - warmup_steps) / (total_steps - warmup_steps)`` after the warm-up:
    ``lr(k) = base (1 + cos(pi (num_cycles x mod 1))) / 2``, and 0 from ``x = 1`` on.

    Attributes
    ----------
    warmup_steps : int
        Steps on which the rate rises; the first of them has rate 0.
    total_steps : int
        Steps after which the rate is 0.
    num_cycles : int
        How often the cosine goes from base to 0.

    References
    ----------
    transformers.get_cosine_with_hard_restarts_schedule_with_warmup.
    """

    kind: Literal["cosine_hard_restarts_warmup"] = "cosine_hard_restarts_warmup"
    num_cycles: Count = 1

    def rate(self, base: float, done: int, steps: int) -> float:
        share = done / max(1, steps)
        if share >= 1:
            return 0.0
        return base * (1 + math.cos(math.pi * (self.num_cycles * share % 1))) / 2
