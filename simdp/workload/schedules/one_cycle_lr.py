"""torch.optim.lr_scheduler.OneCycleLR."""

from __future__ import annotations

import math
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from simdp.spec import Bool, Float, problem
from simdp.workload.schedules.base import Count, Schedule


class OneCycleLR(Schedule):
    """``lr(k)`` rises from max_lr / div_factor to max_lr, then falls far below, as torch's.

    Between the ends of a phase, ``lr = end + (start - end) (1 + cos(pi x)) / 2``, or a line. The
    first phase ends at ``k - 1 = pct_start total_steps - 1``, the last at ``total_steps - 1`` with
    the lowest rate, ``max_lr / div_factor / final_div_factor``. The base does not count.

    Attributes
    ----------
    max_lr : float
        Highest learning rate.
    total_steps : int
        Steps of the cycle; a step after them is an error, as in torch.
    pct_start : float
        Share of the steps on which the rate rises.
    anneal_strategy : {"cos", "linear"}
        Shape of each phase.
    cycle_momentum : bool
        Whether the optimizer's momentum, or its first beta, moves too: down as the rate rises, and
        back as it falls.
    base_momentum, max_momentum : float
        Lowest and highest momentum.
    div_factor, final_div_factor : float
        ``max_lr`` over the first rate; the first rate over the last.
    three_phase : bool
        Whether the rate falls as it rose first, and to the lowest rate after that.

    References
    ----------
    torch.optim.lr_scheduler.OneCycleLR; Smith and Topin, arXiv 1708.07120.
    """

    takes_base: ClassVar[bool] = False

    kind: Literal["one_cycle_lr"] = "one_cycle_lr"
    max_lr: Float = Field(ge=0)
    total_steps: Count
    pct_start: Float = Field(0.3, ge=0, le=1)
    anneal_strategy: Literal["cos", "linear"] = "cos"
    cycle_momentum: Bool = True
    base_momentum: Float = Field(0.85, ge=0, lt=1)
    max_momentum: Float = Field(0.95, ge=0, lt=1)
    div_factor: Float = Field(25.0, gt=0)
    final_div_factor: Float = Field(1e4, gt=0)
    three_phase: Bool = False

    @model_validator(mode="after")
    def _there_is_a_way_up(self) -> Self:
        if self.pct_start * self.total_steps == 1:  # torch divides by zero at its first step
            raise problem(
                f"pct_start {self.pct_start:g} of total_steps {self.total_steps} is a single step, "
                "which cannot rise; raise pct_start."
            )
        return self

    def lr(self, base: float, step: int) -> float:
        self._check(step)
        return self.along(self._rates(), self._momenta(), step)[0]

    def momentum(self, step: int) -> float | None:
        self._check(step)
        return self.along(self._rates(), self._momenta(), step)[1]

    def along(
        self, rates: tuple[float, float, float], momenta: tuple[float, float], step: int
    ) -> tuple[float, float | None]:
        """Rate and momentum of a step of a cycle through other rates.

        Parameters
        ----------
        rates : tuple of float
            The first, the highest and the last rate.
        momenta : tuple of float
            The highest and the lowest momentum.
        step : int
            From 1.

        Returns
        -------
        tuple
            Rate; and momentum, or None if it stays.

        Raises
        ------
        ValueError
            If torch's scheduler refuses so many steps.
        """
        if step > self.total_steps + 1:
            self._check(step)
        low, high, lowest = rates
        down = [(high, low), (low, lowest)] if self.three_phase else [(high, lowest)]
        rate = self._between([(low, high), *down], step)
        if not self.cycle_momentum:
            return rate, None
        most, least = momenta
        stays = [(most, most)] if self.three_phase else []
        return rate, self._between([(most, least), (least, most), *stays], step)

    def _rates(self) -> tuple[float, float, float]:
        low = self.max_lr / self.div_factor
        return low, self.max_lr, low / self.final_div_factor

    def _momenta(self) -> tuple[float, float]:
        return self.max_momentum, self.base_momentum

    def _check(self, step: int) -> None:
        if step > self.total_steps:
            raise ValueError(
                f"one_cycle_lr ends with step {self.total_steps}, but there is a step {step}; "
                "raise total_steps."
            )

    def _between(self, phases: list[tuple[float, float]], step: int) -> float:
        """The value at a step, from what each phase begins and ends with."""
        done, ends = step - 1, self._ends()
        turn = next((i for i, end in enumerate(ends) if done <= end), len(ends) - 1)
        begin = ends[turn - 1] if turn else 0.0
        first, final = phases[turn]
        share = (done - begin) / (ends[turn] - begin)
        if self.anneal_strategy == "cos":
            return final + (first - final) / 2 * (1 + math.cos(math.pi * share))
        return first + (final - first) * share

    def _ends(self) -> list[float]:
        """The number of steps done at the end of each phase."""
        up = self.pct_start * self.total_steps - 1
        return [up, *([2 * up] if self.three_phase else []), self.total_steps - 1]
