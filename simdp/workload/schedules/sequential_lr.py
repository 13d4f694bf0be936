"""torch.optim.lr_scheduler.SequentialLR."""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from simdp.spec import problem
from simdp.workload.schedules import AnySchedule
from simdp.workload.schedules.base import Milestones, Schedule


class SequentialLR(Schedule):
    """One schedule after another, each counting from its own first step, as torch's SequentialLR.

    Attributes
    ----------
    schedulers : list of Schedule
        In the order of their turns; none counts epochs by itself. Each starts from the base,
        wherever the one before ended.
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
            wrong = schedulers[i].problem_with(end - begin) if end > begin else None
            if wrong:
                raise problem(f"{value} gives schedulers.{i} {end - begin} steps: {wrong}")
        return value

    def lr(self, base: float, step: int) -> float:
        member, own = self._turn(step)
        return member.lr(base, own)

    def momentum(self, step: int) -> float | None:
        member, own = self._turn(step)
        return member.momentum(own)

    def _turn(self, step: int) -> tuple[Schedule, int]:
        """Whose turn a step is, and which of its own steps."""
        turn = bisect_right(self.milestones, step - 1)
        begin = self.milestones[turn - 1] if turn else 0
        return self.schedulers[turn], step - begin
