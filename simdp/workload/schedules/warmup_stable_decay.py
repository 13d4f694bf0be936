"""Hugging Face's get_wsd_schedule: a trapezoid."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from simdp.spec import Float, Int
from simdp.workload.schedules.base import Schedule

Shape = Literal["linear", "cosine", "1-sqrt"]


class WarmupStableDecay(Schedule):
    """``lr(k)`` rises to base, stays there, and falls: a trapezoid, as Hugging Face's WSD.

    Attributes
    ----------
    warmup_steps, stable_steps, decay_steps : int
        How long each part is; after them the lowest rate stays.
    warmup_type, decay_type : {"linear", "cosine", "1-sqrt"}
        How it rises and falls; with x the share of the part: ``1 - x``, ``(1 + cos(pi x)) / 2`` or
        ``1 - sqrt(x)`` on the way down, and on the way up the same with ``1 - x`` for x.
    min_lr_ratio : float
        Lowest rate over the base.

    References
    ----------
    transformers.get_wsd_schedule; Hu et al., "MiniCPM", arXiv 2404.06395, section 4.
    """

    kind: Literal["warmup_stable_decay"] = "warmup_stable_decay"
    warmup_steps: Int = Field(ge=0, le=10**9)
    stable_steps: Int = Field(ge=0, le=10**9)
    decay_steps: Int = Field(ge=0, le=10**9)
    warmup_type: Shape = "linear"
    decay_type: Shape = "cosine"
    min_lr_ratio: Float = Field(0.0, ge=0, le=1)

    def lr(self, base: float, step: int) -> float:
        done = step - 1
        falling = done - self.warmup_steps - self.stable_steps
        if done < self.warmup_steps:
            height = _height(self.warmup_type, 1 - done / self.warmup_steps)
        elif falling < 0:
            height = 1.0
        elif falling < self.decay_steps:
            height = _height(self.decay_type, falling / self.decay_steps)
        else:
            height = 0.0
        return base * (self.min_lr_ratio + (1 - self.min_lr_ratio) * height)


def _height(shape: Shape, share: float) -> float:
    if shape == "cosine":
        return (1 + math.cos(math.pi * share)) / 2
    return 1 - (share if shape == "linear" else math.sqrt(share))
