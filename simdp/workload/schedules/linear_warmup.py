"""Hugging Face's get_linear_schedule_with_warmup."""

from __future__ import annotations

from typing import Literal

from simdp.workload.schedules.warmup import Warmup


class LinearWarmup(Warmup):
    """``lr(k)`` rises evenly from 0 to base, then falls evenly to 0, as Hugging Face's.

    With ``e = k - 1``: ``lr(k) = base e / warmup_steps`` for ``e < warmup_steps``, then
    ``base max(0, (total_steps - e) / (total_steps - warmup_steps))``.

    Attributes
    ----------
    warmup_steps : int
        Steps on which the rate rises; the first of them has rate 0.
    total_steps : int
        Steps after which the rate is 0.

    References
    ----------
    transformers.get_linear_schedule_with_warmup.
    """

    kind: Literal["linear_warmup"] = "linear_warmup"

    def rate(self, base: float, done: int, steps: int) -> float:
        return base * max(0.0, (steps - done) / max(1, steps))
