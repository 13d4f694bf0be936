"""Schedule: the learning rate of each step."""

from __future__ import annotations

import math
from abc import abstractmethod
from itertools import pairwise
from typing import Annotated

from pydantic import AfterValidator, Field

from simdp.spec import Int, Spec, problem

Count = Annotated[Int, Field(ge=1, le=10**9)]


def _rise(value: list[int]) -> list[int]:
    if any(after <= before for before, after in pairwise(value)):
        raise problem(f"{value} does not rise; give each milestone once, smallest first.")
    return value


Milestones = Annotated[list[Annotated[Int, Field(ge=0, le=10**9)]], AfterValidator(_rise)]
"""Numbers of finished steps after which something changes."""


class Schedule(Spec):
    """How the learning rate changes from step to step."""

    kind: str

    @abstractmethod
    def lr(self, base: float, step: int) -> float:
        """Learning rate that a step uses.

        Parameters
        ----------
        base : float
            The optimizer's own learning rate, or that of a parameter's group.
        step : int
            Number of the step, from 1; torch's ``last_epoch`` is one less.

        Raises
        ------
        ValueError
            If the schedule is over by then.
        """

    def problem_with(self, num_steps: int) -> str | None:
        """Say why a run of so many steps cannot follow this schedule, or None."""
        try:
            last = self.lr(1.0, num_steps)
        except ValueError as error:
            return str(error)
        except OverflowError:
            last = math.inf
        if math.isfinite(last):
            return None
        return f"the learning rate of step {num_steps} is too large to write; lower the factors."
