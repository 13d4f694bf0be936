"""torch.optim.lr_scheduler.ChainedScheduler."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, field_validator

from simdp.spec import problem
from simdp.workload.schedules import SCHEDULES, AnySchedule
from simdp.workload.schedules.base import Progress, Schedule


class ChainedScheduler(Schedule):
    """``lr(k)`` is the base times what each of several schedules multiplies it by, as in torch.

    Each may count steps or epochs, so that one warms up step by step while another falls from epoch
    to epoch, as where a script steps both by itself.

    Attributes
    ----------
    schedulers : list of Schedule
        Kinds that multiply; the others set a rate, whatever was set before them.

    References
    ----------
    torch.optim.lr_scheduler.ChainedScheduler.
    """

    kind: Literal["chained_scheduler"] = "chained_scheduler"
    per: Literal["step"] = "step"
    schedulers: Annotated[list[AnySchedule], Field(min_length=1)]

    @field_validator("schedulers")
    @classmethod
    def _each_multiplies(cls, value: list[Schedule]) -> list[Schedule]:
        for i, member in enumerate(value):
            if not member.multiplies:
                known = [kind for kind in SCHEDULES if SCHEDULES[kind].multiplies]
                raise problem(
                    f"number {i}, {member.kind}, sets the rate instead of multiplying it; chain "
                    f"only {', '.join(known)}."
                )
        return value

    def counted(self) -> frozenset[str]:
        return frozenset().union(*(member.counted() for member in self.schedulers))

    def at(self, base: float, progress: Progress) -> float:
        return base * math.prod(member.at(1.0, progress) for member in self.schedulers)

    def lr(self, base: float, step: int) -> float:
        return self.at(base, Progress(step, step - 1))
