"""torch.optim.lr_scheduler.SequentialLR."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from simdp.spec import problem
from simdp.workload.schedules import AnySchedule
from simdp.workload.schedules.base import LONGEST_REPLAY, Milestones, Progress, Schedule
from simdp.workload.schedules.one_cycle_lr import OneCycleLR
from simdp.workload.schedules.shared_group import replay


class SequentialLR(Schedule):
    """One schedule after another, each counting from its own first step, as torch's SequentialLR.

    Each starts from its base, wherever the one before ended; `multiplicative_lr` goes on from
    there. The base is the optimizer's rate, but torch constructs all schedulers before the first
    step, and the constructors of `one_cycle_lr` and `cyclic_lr` change it for what comes after
    them, for the first step, and the momentum for all steps before their turn.

    Attributes
    ----------
    schedulers : list of Schedule
        In the order of their turns; all count what ``per`` says. Only the first can be a
        `sequential_lr` or `chained_scheduler`, as in torch.
    milestones : list of int
        Finished steps after which the next one takes over; one fewer than schedulers.

    References
    ----------
    torch.optim.lr_scheduler.SequentialLR.
    """

    kind: Literal["sequential_lr"] = "sequential_lr"
    schedulers: Annotated[list[AnySchedule], Field(min_length=1)]
    milestones: Milestones

    @field_validator("schedulers")
    @classmethod
    def _all_count_alike(cls, value: list[Schedule]) -> list[Schedule]:
        for i, member in enumerate(value):
            other = sorted(member.counted() - {"step"})
            if other:
                how = "write per: epoch beside schedulers" if other == ["epoch"] else "use it alone"
                raise problem(f"number {i}, {member.kind}, follows the {other[0]}; {how}.")
            if i and hasattr(member, "schedulers"):
                raise problem(
                    f"number {i}, {member.kind}, is made of several schedulers, which torch's "
                    "SequentialLR takes in the first place only; write its members here."
                )
        return value

    @field_validator("milestones")
    @classmethod
    def _each_has_its_turn(cls, value: list[int], info: ValidationInfo) -> list[int]:
        schedulers: list[Schedule] | None = info.data.get("schedulers")
        if schedulers is None:  # it is refused already
            return value
        if len(value) != len(schedulers) - 1:
            raise problem(
                f"{value} has length {len(value)}, but {len(schedulers)} schedulers need "
                f"{len(schedulers) - 1} of them."
            )
        for i, (begin, end) in enumerate(pairwise([0, *value])):
            # A cycle may take one step more here: torch's error comes when it is stepped again.
            long = end - begin - isinstance(schedulers[i], OneCycleLR)
            if long > 0 and schedulers[i].problem_with(long):
                wrong = schedulers[i].problem_with(end - begin)
                raise problem(f"{value} gives schedulers.{i} {end - begin} steps: {wrong}")
        return value

    def lr(self, base: float, step: int) -> float:
        return replay(self, base).upto(step).rates[step - 1]

    def momentum(self, step: int) -> float | None:
        return replay(self, 1.0).upto(step).momenta[step - 1]

    def problem_with(self, num_steps: int, num_epochs: int = 1) -> str | None:
        num = self.number(Progress(num_steps, num_epochs - 1))
        last = num - (self.milestones[-1] if self.milestones else 0)
        wrong = self.schedulers[-1].problem_with(last) if last > 0 else None
        played = min(num_steps, LONGEST_REPLAY), min(num_epochs, LONGEST_REPLAY)
        return wrong or super().problem_with(*played)
