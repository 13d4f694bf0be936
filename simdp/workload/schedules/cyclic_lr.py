"""torch.optim.lr_scheduler.CyclicLR."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from simdp.spec import Bool, Float, problem
from simdp.workload.schedules.base import Count, Schedule


class CyclicLR(Schedule):
    """``lr(k) = base_lr + (max_lr - base_lr) s a``: up along a line and down again, as torch's.

    s rises from 0 to 1 in step_size_up steps and falls in step_size_down. In cycle number c = 1, 2,
    ... the height a is 1 with ``triangular``, ``2^(1 - c)`` with ``triangular2`` and
    ``gamma^(k - 1)`` with ``exp_range``. The optimizer's rate does not count. Momentum goes the
    other way, from max_momentum down to base_momentum.

    Attributes
    ----------
    base_lr, max_lr : float
        Lowest and highest learning rate.
    step_size_up : int
        Steps on which the rate rises.
    step_size_down : int or None
        Steps on which it falls; as many, unless it is given.
    mode : {"triangular", "triangular2", "exp_range"}
        How the height changes.
    gamma : float
        Of ``exp_range``.
    cycle_momentum : bool
        Whether the optimizer's momentum, or its first beta, moves too.
    base_momentum, max_momentum : float
        Lowest and highest momentum.

    References
    ----------
    torch.optim.lr_scheduler.CyclicLR; Smith, "Cyclical learning rates for training neural
    networks", arXiv 1506.01186.
    """

    takes_base: ClassVar[bool] = False

    kind: Literal["cyclic_lr"] = "cyclic_lr"
    base_lr: Float = Field(ge=0)
    max_lr: Float = Field(ge=0)
    step_size_up: Count = 2000
    step_size_down: Count | None = None
    mode: Literal["triangular", "triangular2", "exp_range"] = "triangular"
    gamma: Float = Field(1.0, ge=0)
    cycle_momentum: Bool = True
    base_momentum: Float = Field(0.8, ge=0, lt=1)
    max_momentum: Float = Field(0.9, ge=0, lt=1)

    @model_validator(mode="after")
    def _gamma_is_of_exp_range(self) -> Self:
        if self.gamma != 1.0 and self.mode != "exp_range":
            raise problem(f"gamma is of mode exp_range, but mode is {self.mode}; leave gamma out.")
        return self

    def lr(self, base: float, step: int) -> float:
        return self.base_lr + (self.max_lr - self.base_lr) * self._height(step)

    def momentum(self, step: int) -> float | None:
        if not self.cycle_momentum:
            return None
        return self.max_momentum - (self.max_momentum - self.base_momentum) * self._height(step)

    def _height(self, step: int) -> float:
        up, down = self.step_size_up, self.step_size_down or self.step_size_up
        cycle, done = divmod(step - 1, up + down)
        share = done / up if done <= up else (up + down - done) / down
        if self.mode == "triangular2":
            share /= 2.0**cycle
        elif self.mode == "exp_range":
            share *= float(self.gamma ** (step - 1))
        return share
