"""ReduceLROnPlateau of torch.optim.lr_scheduler."""

from __future__ import annotations

from typing import Literal, NamedTuple

from pydantic import Field

from simdp.spec import Float, Int
from simdp.workload.schedules.base import Progress, Schedule


class Seen(NamedTuple):
    """What a plateau is known by.

    Attributes
    ----------
    best : float or None
        Best value so far.
    num_bad : int
        Values since then that were not better.
    cooldown : int
        Values that are still left out of count.
    reductions : int
        How often the rate was lowered.
    """

    best: float | None = None
    num_bad: int = 0
    cooldown: int = 0
    reductions: int = 0


class ReduceLROnPlateau(Schedule):
    """The learning rate falls by a factor when the training loss has ceased to fall, as torch's.

    What is looked at is the mean loss of all ranks in a step, or the mean of an epoch's steps: the
    same on every rank, as in a script that reduces it over the ranks first; that takes no time
    here. The rate of a step follows from the losses before it.

    Attributes
    ----------
    mode : {"min", "max"}
        Which losses are better.
    factor : float
        Of each reduction.
    patience : int
        Values without progress that are let pass.
    threshold : float
        By how much a value has to be better than the best.
    threshold_mode : {"rel", "abs"}
        Whether that is a share of the best, or a difference.
    cooldown : int
        Values after a reduction that are not counted as bad.
    min_lr : float
        Lowest learning rate.
    eps : float
        Reductions that change the rate by no more are not made.

    References
    ----------
    torch.optim.lr_scheduler.ReduceLROnPlateau.
    """

    kind: Literal["reduce_lr_on_plateau"] = "reduce_lr_on_plateau"
    mode: Literal["min", "max"] = "min"
    factor: Float = Field(0.1, ge=0, lt=1)
    patience: Int = Field(10, ge=0, le=10**9)
    threshold: Float = Field(1e-4, ge=0)
    threshold_mode: Literal["rel", "abs"] = "rel"
    cooldown: Int = Field(0, ge=0, le=10**9)
    min_lr: Float = Field(0.0, ge=0)
    eps: Float = Field(1e-8, ge=0)

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
        """Look at one more loss, as torch's ``step(value)``."""
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
