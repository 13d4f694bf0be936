"""torch.optim.lr_scheduler.ChainedScheduler."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, field_validator

from simdp.spec import problem
from simdp.workload.schedules import SCHEDULES, AnySchedule
from simdp.workload.schedules.base import LONGEST_REPLAY, Progress, Schedule
from simdp.workload.schedules.shared_group import replay


class ChainedScheduler(Schedule):
    """Several schedules that all take every step, one after the other, as in torch.

    Each changes the rate that the one before it leaves: those that multiply (`constant_lr`,
    `linear_lr`, `exponential_lr`, `step_lr`, ...) make a product, `cosine_annealing_lr` goes on
    from the current rate, and one that sets a rate (`lambda_lr`, `one_cycle_lr`, ...) undoes what
    comes before it in the list.

    Where some count steps and others epochs, as in a script that steps both itself, the rate is the
    base times the factor of each: one warms up step by step while another falls from epoch to
    epoch.

    Attributes
    ----------
    schedulers : list of Schedule
        In the order in which they are constructed and stepped. If they do not all count the same,
        only kinds that multiply.

    References
    ----------
    torch.optim.lr_scheduler.ChainedScheduler.
    """

    kind: Literal["chained_scheduler"] = "chained_scheduler"
    per: Literal["step"] = "step"
    schedulers: Annotated[list[AnySchedule], Field(min_length=1)]

    @field_validator("schedulers")
    @classmethod
    def _members_fit(cls, value: list[Schedule]) -> list[Schedule]:
        counted = frozenset[str]().union(*(member.counted() for member in value))
        for i, member in enumerate(value):
            if "reductions" in member.counted():
                raise problem(
                    f"number {i}, {member.kind}, follows the loss, which a chain has no place for "
                    "(torch refuses it, too); use it alone."
                )
            if len(counted) > 1 and not member.multiplies:
                known = [kind for kind in SCHEDULES if SCHEDULES[kind].multiplies]
                raise problem(
                    f"number {i}, {member.kind}, sets the rate, and others count "
                    f"{' and '.join(sorted(f'{one}s' for one in counted))}; count one of the two "
                    f"(per), or chain only {', '.join(known)}."
                )
        return value

    def counted(self) -> frozenset[str]:
        return frozenset[str]().union(*(member.counted() for member in self.schedulers))

    def number(self, progress: Progress) -> int:
        return progress.epoch + 1 if self.counted() == {"epoch"} else progress.step

    def at(self, base: float, progress: Progress) -> float:
        if len(self.counted()) > 1:
            return base * math.prod(member.at(1.0, progress) for member in self.schedulers)
        return self.lr(base, self.number(progress))

    def lr(self, base: float, step: int) -> float:
        if len(self.counted()) > 1:
            return self.at(base, Progress(step, step - 1))
        return replay(self, base).upto(step).rates[step - 1]

    def momentum(self, step: int) -> float | None:
        if len(self.counted()) > 1:
            return None
        return replay(self, 1.0).upto(step).momenta[step - 1]

    def problem_with(self, num_steps: int, num_epochs: int = 1) -> str | None:
        each = (member.problem_with(num_steps, num_epochs) for member in self.schedulers)
        played = min(num_steps, LONGEST_REPLAY), min(num_epochs, LONGEST_REPLAY)
        return next((wrong for wrong in each if wrong), None) or super().problem_with(*played)
