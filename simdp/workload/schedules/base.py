"""The base of learning rate schedules."""

from __future__ import annotations

import math
from abc import abstractmethod
from itertools import pairwise
from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import AfterValidator, Field

from simdp.spec import Int, Spec, problem

Count = Annotated[Int, Field(ge=1, le=10**9)]


LONGEST_REPLAY = 10_000
"""Steps of a composed schedule that are tried before a run."""


def _rise(value: list[int]) -> list[int]:
    if any(after < before for before, after in pairwise(value)):
        raise problem(f"{value} falls; give the smallest milestone first.")
    return value


Milestones = Annotated[list[Annotated[Int, Field(ge=0, le=10**9)]], AfterValidator(_rise)]
"""Numbers of finished steps after which something changes."""


class Progress(NamedTuple):
    """Where a run is when the optimizer takes a step.

    Attributes
    ----------
    step : int
        Number of the step, from 1.
    epoch : int
        Epochs before that of the step.
    reductions : int
        How often the loss has ceased to fall, as `ReduceLROnPlateau` sees it.
    """

    step: int
    epoch: int = 0
    reductions: int = 0


class Schedule(Spec):
    """How the learning rate changes from step to step, or from epoch to epoch.

    Attributes
    ----------
    per : {"step", "epoch"}
        When a script calls ``scheduler.step()``: after every step, or once at the end of each
        epoch. Where it is epoch, all that is said of steps, here and in arguments, is of epochs.
    """

    takes_base: ClassVar[bool] = True
    """Whether the optimizer's own rate counts."""

    multiplies: ClassVar[bool] = False
    """Whether the rate is the base times what depends on the step alone."""

    kind: str
    per: Literal["step", "epoch"] = "step"

    @abstractmethod
    def lr(self, base: float, step: int) -> float:
        """Learning rate that a step uses.

        Parameters
        ----------
        base : float
            The optimizer's own learning rate, or that of a parameter's group.
        step : int
            Number of the step, or of the epoch, from 1; torch's ``last_epoch`` is one less.

        Raises
        ------
        ValueError
            If the schedule is over by then.
        """

    def momentum(self, step: int) -> float | None:
        """Momentum, or Adam's first beta, of a step; None where the optimizer's own stays."""
        return None

    def counted(self) -> frozenset[str]:
        """What of a `Progress` the rate follows."""
        return frozenset([self.per])

    def number(self, progress: Progress) -> int:
        """Number of the step or epoch, from 1."""
        return progress.step if self.per == "step" else progress.epoch + 1

    def at(self, base: float, progress: Progress) -> float:
        """Learning rate at some place of a run; see `lr`."""
        return self.lr(base, self.number(progress))

    def problem_with(self, num_steps: int, num_epochs: int = 1) -> str | None:
        """Say why a run of so many steps and epochs cannot follow this schedule, or None."""
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
