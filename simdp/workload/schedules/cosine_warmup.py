"""Hugging Face's get_cosine_schedule_with_warmup."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from simdp.spec import Float
from simdp.workload.schedules.warmup import Warmup


class CosineWarmup(Warmup):
    """``lr(k)`` rises evenly from 0 to base, then follows a cosine to 0, as Hugging Face's.

    With ``e = k - 1``: ``lr(k) = base e / warmup_steps`` for ``e < warmup_steps``, then
    ``base (1 + cos(2 pi num_cycles (e - warmup_steps) / (total_steps - warmup_steps))) / 2``.

    Attributes
    ----------
    warmup_steps : int
        Steps on which the rate rises; the first of them has rate 0.
    total_steps : int
        Steps after which the cosine has done its cycles; it goes on after them.
    num_cycles : float
        Waves of the cosine; half a wave leads from base to 0.

    References
    ----------
    transformers.get_cosine_schedule_with_warmup.
    """

    kind: Literal["cosine_warmup"] = "cosine_warmup"
    num_cycles: Float = Field(0.5, ge=0)

    def rate(self, base: float, done: int, steps: int) -> float:
        wave = math.cos(2 * math.pi * self.num_cycles * (done / max(1, steps)))
        return base * ((1 + wave) / 2)
