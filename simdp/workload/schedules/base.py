"""Base of learning rate schedules, and the schedule that follows the loss."""

from __future__ import annotations

import math
from abc import abstractmethod
from itertools import pairwise
from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import AfterValidator, Field

from simdp.spec import Float, Int, Spec, problem

Count = Annotated[Int, Field(ge=1, le=10**9)]


LONGEST_REPLAY = 10_000
"""Maximum number of steps of a composed schedule that are checked before a run."""


def _rise(value: list[int]) -> list[int]:
    if any(after < before for before, after in pairwise(value)):
        raise problem(f"{value} falls; give the smallest milestone first.")
    return value


Milestones = Annotated[list[Annotated[Int, Field(ge=0, le=10**9)]], AfterValidator(_rise)]
"""Numbers of finished steps after which something changes."""


class Progress(NamedTuple):
    """Progress of a run at an optimizer step."""

    step: int
    """Number of the step, from 1."""
    epoch: int = 0
    """Number of the step's epoch, from 0."""
    reductions: int = 0
    """Number of reductions by `ReduceLROnPlateau`."""


class Schedule(Spec):
    """Base of learning rate schedules."""

    takes_base: ClassVar[bool] = True
    """Whether the rate depends on the optimizer's own."""

    multiplies: ClassVar[bool] = False
    """Whether the rate is the base times a factor of the step."""

    kind: str
    per: Literal["step", "epoch"] = "step"
    """When a script calls ``scheduler.step()``: after every step, or at the end of each epoch. With
    epoch, read "epoch" for "step" in the arguments and descriptions of schedules."""

    @abstractmethod
    def lr(self, base: float, step: int) -> float:
        """Learning rate of a step.

        Parameters
        ----------
        base : float
            Learning rate of the optimizer, or of a parameter group.
        step : int
            Number of the step, or of the epoch, from 1; torch's ``last_epoch`` is one less.

        Raises
        ------
        ValueError
            If the schedule ends before this step.
        """

    def momentum(self, step: int) -> float | None:
        """Momentum, or Adam's first beta, of a step; None for the optimizer's own."""
        return None

    def counted(self) -> frozenset[str]:
        """Fields of `Progress` that the rate depends on."""
        return frozenset([self.per])

    def number(self, progress: Progress) -> int:
        """Number of the step or epoch, from 1."""
        return progress.step if self.per == "step" else progress.epoch + 1

    def at(self, base: float, progress: Progress) -> float:
        """Learning rate at this progress of a run; see `lr`."""
        return self.lr(base, self.number(progress))

    def problem_with(self, num_steps: int, num_epochs: int = 1) -> str | None:
        """Reason why a run of this length cannot follow the schedule, or None."""
        try:
            last = self.at(1.0, Progress(num_steps, num_epochs - 1))
        except ValueError as error:
            return str(error)
        except OverflowError:
            last = math.inf
        if math.isfinite(last):
            return None
        return f"the learning rate of step {num_steps} is too large to write; lower the factors."


class NoSchedule(Schedule):
    """``lr(k) = base`` at every step k."""

    kind: Literal["none"] = "none"
    per: Literal["step"] = "step"

    def lr(self, base: float, step: int) -> float:
        return base


class Seen(NamedTuple):
    """State of a plateau: best value, later values without progress, values still ignored, ..."""

    best: float | None = None
    num_bad: int = 0
    cooldown: int = 0
    reductions: int = 0


class ReduceLROnPlateau(Schedule):
    """Reduces the learning rate when the training loss stops falling, as torch's scheduler.

    It uses the mean loss of all ranks in a step, or the mean of an epoch's steps: equal on every
    rank, as in a script that reduces it over the ranks first; that takes no time here. The rate of
    a step follows from the losses before it.
    """

    kind: Literal["reduce_lr_on_plateau"] = "reduce_lr_on_plateau"
    mode: Literal["min", "max"] = "min"
    """Whether smaller or larger losses are better."""
    factor: Float = Field(0.1, ge=0, lt=1)
    """Of each reduction."""
    patience: Int = Field(10, ge=0, le=10**9)
    """Values without progress that are tolerated."""
    threshold: Float = Field(1e-4, ge=0)
    """Margin by which a value must be better than the best."""
    threshold_mode: Literal["rel", "abs"] = "rel"
    """Whether the margin is a share of the best, or a difference."""
    cooldown: Int = Field(0, ge=0, le=10**9)
    """Values after a reduction that do not count as bad."""
    min_lr: Float = Field(0.0, ge=0)
    """Lowest learning rate."""
    eps: Float = Field(1e-8, ge=0)
    """Smallest reduction that is applied."""

    def lr(self, base: float, step: int) -> float:
        """Learning rate after ``step - 1`` reductions."""
        rate = base
        for _ in range(step - 1):
            lower = max(rate * self.factor, self.min_lr)
            if rate - lower <= self.eps:
                break
            rate = lower
        return rate

    def counted(self) -> frozenset[str]:
        return frozenset(["reductions"])

    def number(self, progress: Progress) -> int:
        return progress.reductions + 1

    def seen(self, before: Seen, value: float) -> Seen:
        """State after one more loss, as torch's ``step(value)``."""
        best, num_bad, cooldown, reductions = before
        if best is None or self._is_better(value, best):
            best, num_bad = value, 0
        else:
            num_bad += 1
        if cooldown > 0:
            cooldown, num_bad = cooldown - 1, 0
        if num_bad > self.patience:
            return Seen(best, 0, self.cooldown, reductions + 1)
        return Seen(best, num_bad, cooldown, reductions)

    def _is_better(self, value: float, best: float) -> bool:
        sign = -1.0 if self.mode == "min" else 1.0
        margin = self.threshold * (best if self.threshold_mode == "rel" else 1.0)
        return sign * value > sign * best + margin
