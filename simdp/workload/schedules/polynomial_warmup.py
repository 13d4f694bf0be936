"""Hugging Face's get_polynomial_decay_schedule_with_warmup."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from simdp.spec import Float
from simdp.workload.schedules.warmup import Warmup


class PolynomialWarmup(Warmup):
    """``lr(k)`` rises evenly from 0 to base, then falls to lr_end as a power of what is left.

    With ``x = (k - 1 - warmup_steps) / (total_steps - warmup_steps)`` after the warm-up:
    ``lr(k) = lr_end + (base - lr_end) (1 - x)^power``, and lr_end from ``x = 1`` on.

    Attributes
    ----------
    warmup_steps : int
        Steps on which the rate rises; the first of them has rate 0.
    total_steps : int
        Steps after which the rate is lr_end.
    lr_end : float
        Lowest learning rate.
    power : float
        Of what is left.

    References
    ----------
    transformers.get_polynomial_decay_schedule_with_warmup.
    """

    kind: Literal["polynomial_warmup"] = "polynomial_warmup"
    lr_end: Float = Field(1e-7, ge=0)
    power: Float = Field(1.0, ge=0)

    def rate(self, base: float, done: int, steps: int) -> float:
        if done >= max(1, steps):
            return self.lr_end
        return float(self.lr_end + (base - self.lr_end) * (1 - done / steps) ** self.power)
