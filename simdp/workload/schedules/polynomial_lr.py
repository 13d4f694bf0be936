"""torch.optim.lr_scheduler.PolynomialLR."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from simdp.spec import Float
from simdp.workload.schedules.base import Count, Schedule


class PolynomialLR(Schedule):
    """``lr(k) = base (1 - min(k - 1, total_iters) / total_iters)^power``, as torch's PolynomialLR.

    Attributes
    ----------
    total_iters : int
        Steps after which the rate is 0.
    power : float
        Of the polynomial.

    References
    ----------
    torch.optim.lr_scheduler.PolynomialLR.
    """

    multiplies: ClassVar[bool] = True

    kind: Literal["polynomial_lr"] = "polynomial_lr"
    total_iters: Count = 5
    power: Float = Field(1.0, ge=0)

    def lr(self, base: float, step: int) -> float:
        left = 1 - min(step - 1, self.total_iters) / self.total_iters
        return float(base * left**self.power)
