"""The schedule of "Attention is all you need"."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from simdp.spec import Float
from simdp.workload.schedules.base import Count, Schedule


class Noam(Schedule):
    """``lr(k) = factor d_model^-0.5 min(k^-0.5, k warmup_steps^-1.5)``, whatever the base.

    Attributes
    ----------
    d_model : int
        Width of the transformer.
    warmup_steps : int
        Steps on which the rate rises.
    factor : float
        Scales every rate.

    References
    ----------
    Vaswani et al., "Attention is all you need", arXiv 1706.03762, equation 3.
    """

    takes_base: ClassVar[bool] = False

    kind: Literal["noam"] = "noam"
    d_model: Count
    warmup_steps: Count
    factor: Float = Field(1.0, ge=0)

    def lr(self, base: float, step: int) -> float:
        rise_or_fall = min(step**-0.5, step * self.warmup_steps**-1.5)
        return float(self.factor * self.d_model**-0.5 * rise_or_fall)
