"""torch.optim.lr_scheduler.MultiplicativeLR, of a table instead of a function."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from simdp.workload.schedules.base import Schedule
from simdp.workload.schedules.lambda_lr import Table, within


class MultiplicativeLR(Schedule):
    """``lr(k) = base table[0] ... table[k - 2]``, as torch's MultiplicativeLR.

    A factor that is always the same is an `ExponentialLR`.

    Attributes
    ----------
    table : list of float
        The factor from each step to the next; a step that lacks one is an error.

    References
    ----------
    torch.optim.lr_scheduler.MultiplicativeLR.
    """

    multiplies: ClassVar[bool] = True

    kind: Literal["multiplicative_lr"] = "multiplicative_lr"
    table: Table

    def lr(self, base: float, step: int) -> float:
        return base * math.prod(self.factors(step - 1))

    def factors(self, num_steps: int) -> list[float]:
        """The factors of the first so many changes."""
        return within(self.kind, self.table, num_steps)
