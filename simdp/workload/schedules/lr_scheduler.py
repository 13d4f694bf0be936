"""Schedules of torch.optim.lr_scheduler; each is named as its torch class.

torch's constructors write ``lr``, ``initial_lr`` and the momentum of the group, and most schedulers
compute the next rate from the current one. So the rates of `SequentialLR` and `ChainedScheduler`
have no closed form: they follow from a replay of all members, constructors first.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from simdp.spec import Bool, Float, problem
from simdp.workload.schedules import SCHEDULES, AnySchedule
from simdp.workload.schedules.base import LONGEST_REPLAY, Count, Milestones, Progress, Schedule


class ConstantLR(Schedule):
    """``lr(k) = base factor`` for ``k <= total_iters``, then base, as torch's ConstantLR."""

    multiplies: ClassVar[bool] = True

    kind: Literal["constant_lr"] = "constant_lr"
    factor: Float = Field(1 / 3, gt=0, le=1)
    """Factor of the first steps; above 0, since torch divides by it to end them."""
    total_iters: Count = 5
    """Number of these steps."""

    def lr(self, base: float, step: int) -> float:
        return base * self.factor if step <= self.total_iters else base


class CosineAnnealingLR(Schedule):
    """``lr(k) = eta_min + (base - eta_min) (1 + cos(pi (k - 1) / T_max)) / 2``, as torch's.

    After T_max steps the rate rises again, as in torch. Loshchilov and Hutter, "SGDR: stochastic
    gradient descent with warm restarts", arXiv 1608.03983, without the restarts.
    """

    kind: Literal["cosine_annealing_lr"] = "cosine_annealing_lr"
    T_max: Count
    """Steps from the base down to ``eta_min``."""
    eta_min: Float = Field(0.0, ge=0)
    """Lowest learning rate."""

    def lr(self, base: float, step: int) -> float:
        high = (1 + math.cos(math.pi * (step - 1) / self.T_max)) / 2
        return self.eta_min + (base - self.eta_min) * high


class CosineAnnealingWarmRestarts(Schedule):
    """``lr(k) = eta_min + (base - eta_min) (1 + cos(pi e / T)) / 2``, restarted repeatedly.

    e counts the steps since the last restart. The first cycle has ``T = T_0`` steps, and each T is
    T_mult times the one before. Loshchilov and Hutter, "SGDR: stochastic gradient descent with warm
    restarts", arXiv 1608.03983.
    """

    kind: Literal["cosine_annealing_warm_restarts"] = "cosine_annealing_warm_restarts"
    T_0: Count
    """Steps of the first cycle."""
    T_mult: Count = 1
    """Length of a cycle over that of the one before."""
    eta_min: Float = Field(0.0, ge=0)
    """Lowest learning rate."""

    def lr(self, base: float, step: int) -> float:
        done, length = step - 1, self.T_0
        if self.T_mult == 1:
            done %= length
        while done >= length:
            done -= length
            length *= self.T_mult
        high = (1 + math.cos(math.pi * done / length)) / 2
        return self.eta_min + (base - self.eta_min) * high


class CyclicLR(Schedule):
    """``lr(k) = base_lr + (max_lr - base_lr) s a``: up along a line and down again, as torch's.

    s rises from 0 to 1 in step_size_up steps and falls in step_size_down. In cycle number c = 1, 2,
    ... the height a is 1 with ``triangular``, ``2^(1 - c)`` with ``triangular2`` and ``gamma^(k -
    1)`` with ``exp_range``. The optimizer's rate is not used. Momentum moves in the opposite
    direction. Smith, "Cyclical learning rates for training neural networks", arXiv 1506.01186.
    """

    takes_base: ClassVar[bool] = False

    kind: Literal["cyclic_lr"] = "cyclic_lr"
    base_lr: Float = Field(ge=0)
    """Lowest and highest learning rate."""
    max_lr: Float = Field(ge=0)
    """Lowest and highest learning rate."""
    step_size_up: Count = 2000
    """Steps in which the rate rises."""
    step_size_down: Count | None = None
    """Steps in which it falls; by default as many."""
    mode: Literal["triangular", "triangular2", "exp_range"] = "triangular"
    """Change of the height from cycle to cycle."""
    gamma: Float = Field(1.0, ge=0)
    """Of ``exp_range``."""
    cycle_momentum: Bool = True
    """Whether the optimizer's momentum, or its first beta, changes too."""
    base_momentum: Float = Field(0.8, ge=0, lt=1)
    """Lowest and highest momentum."""
    max_momentum: Float = Field(0.9, ge=0, lt=1)
    """Lowest and highest momentum."""

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


class ExponentialLR(Schedule):
    """``lr(k) = base gamma^(k - 1)``, as torch's ExponentialLR."""

    multiplies: ClassVar[bool] = True

    kind: Literal["exponential_lr"] = "exponential_lr"
    gamma: Float = Field(ge=0)
    """Factor of each step."""

    def lr(self, base: float, step: int) -> float:
        return float(base * self.gamma ** (step - 1))


Table = Annotated[list[Annotated[Float, Field(ge=0)]], Field(min_length=1)]


class LambdaLR(Schedule):
    """``lr(k) = base table[k - 1]``: torch's LambdaLR of a function with these values."""

    multiplies: ClassVar[bool] = True

    kind: Literal["lambda_lr"] = "lambda_lr"
    table: Table
    """Factor of each step; a step after the last is an error."""

    def lr(self, base: float, step: int) -> float:
        return base * within(self.kind, self.table, step)[-1]


def within(kind: str, table: list[float], length: int) -> list[float]:
    """The first ``length`` entries of a table; raises ValueError if it is shorter."""
    if length > len(table):
        raise ValueError(
            f"{kind} has a table of {len(table)}, but {length} are needed; make it longer."
        )
    return table[:length]


class LinearLR(Schedule):
    """``lr(k) = base f``, f going evenly from start_factor to end_factor, as torch's LinearLR.

    ``f = start_factor + (end_factor - start_factor) min(k - 1, total_iters) / total_iters``.
    """

    multiplies: ClassVar[bool] = True

    kind: Literal["linear_lr"] = "linear_lr"
    start_factor: Float = Field(1 / 3, gt=0, le=1)
    """Factors of the first step, and from step ``total_iters + 1`` on."""
    end_factor: Float = Field(1.0, ge=0, le=1)
    """Factors of the first step, and from step ``total_iters + 1`` on."""
    total_iters: Count = 5
    """Steps between the two."""

    def lr(self, base: float, step: int) -> float:
        done = min(step - 1, self.total_iters) / self.total_iters
        return base * (self.start_factor + (self.end_factor - self.start_factor) * done)


class MultiStepLR(Schedule):
    """``lr(k) = base gamma^n``, n milestones being at most k - 1, as torch's MultiStepLR."""

    multiplies: ClassVar[bool] = True

    kind: Literal["multi_step_lr"] = "multi_step_lr"
    milestones: Milestones
    """Numbers of finished steps after which the rate changes; a repeated one changes it
    repeatedly."""
    gamma: Float = Field(0.1, ge=0)
    """Factor of each change."""

    def lr(self, base: float, step: int) -> float:
        return float(base * self.gamma ** bisect_right(self.milestones, step - 1))


class MultiplicativeLR(Schedule):
    """``lr(k) = base table[0] ... table[k - 2]``, as torch's MultiplicativeLR.

    With a constant factor, use `ExponentialLR`.
    """

    multiplies: ClassVar[bool] = True

    kind: Literal["multiplicative_lr"] = "multiplicative_lr"
    table: Table
    """Factor from each step to the next; a step that lacks one is an error."""

    def lr(self, base: float, step: int) -> float:
        return base * math.prod(self.factors(step - 1))

    def factors(self, num_steps: int) -> list[float]:
        """Factors of the first ``num_steps`` changes."""
        return within(self.kind, self.table, num_steps)


class OneCycleLR(Schedule):
    """``lr(k)`` rises from max_lr / div_factor to max_lr, then falls far below, as torch's.

    Between the ends of a phase, ``lr = end + (start - end) (1 + cos(pi x)) / 2``, or a line. The
    first phase ends at ``k - 1 = pct_start total_steps - 1``, the last at ``total_steps - 1`` with
    the lowest rate, ``max_lr / div_factor / final_div_factor``. The base is not used. Smith and
    Topin, arXiv 1708.07120.
    """

    takes_base: ClassVar[bool] = False

    kind: Literal["one_cycle_lr"] = "one_cycle_lr"
    max_lr: Float = Field(ge=0)
    """Highest learning rate."""
    total_steps: Count
    """Steps of the cycle; a step after them is an error, as in torch."""
    pct_start: Float = Field(0.3, ge=0, le=1)
    """Share of the steps in which the rate rises."""
    anneal_strategy: Literal["cos", "linear"] = "cos"
    """Shape of each phase."""
    cycle_momentum: Bool = True
    """Whether the optimizer's momentum, or its first beta, changes too: down as the rate rises, and
    back as it falls."""
    base_momentum: Float = Field(0.85, ge=0, lt=1)
    """Lowest and highest momentum."""
    max_momentum: Float = Field(0.95, ge=0, lt=1)
    """Lowest and highest momentum."""
    div_factor: Float = Field(25.0, gt=0)
    """``max_lr`` over the first rate."""
    final_div_factor: Float = Field(1e4, gt=0)
    """The first rate over the last."""
    three_phase: Bool = False
    """Whether the rate first falls symmetrically to its rise, and then to the lowest rate."""

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
        """Rate and momentum (None for the optimizer's own) of a step, from 1, of a cycle.

        ``rates`` are the first, the highest and the last; ``momenta`` the highest and the lowest.
        Raises ValueError if torch's scheduler does at this step.
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
        """The value at a step, from the values at begin and end of each phase."""
        done, ends = step - 1, self._ends()
        turn = next((i for i, end in enumerate(ends) if done <= end), len(ends) - 1)
        begin = ends[turn - 1] if turn else 0.0
        first, final = phases[turn]
        share = (done - begin) / (ends[turn] - begin)
        if self.anneal_strategy == "cos":
            return final + (first - final) / 2 * (1 + math.cos(math.pi * share))
        return first + (final - first) * share

    def _ends(self) -> list[float]:
        """Number of steps done at the end of each phase."""
        up = self.pct_start * self.total_steps - 1
        return [up, *([2 * up] if self.three_phase else []), self.total_steps - 1]


class PolynomialLR(Schedule):
    """``lr(k) = base (1 - min(k - 1, total_iters) / total_iters)^power``, torch's PolynomialLR."""

    multiplies: ClassVar[bool] = True

    kind: Literal["polynomial_lr"] = "polynomial_lr"
    total_iters: Count = 5
    """Steps after which the rate is 0."""
    power: Float = Field(1.0, ge=0)
    """Of the polynomial."""

    def lr(self, base: float, step: int) -> float:
        left = 1 - min(step - 1, self.total_iters) / self.total_iters
        return float(base * left**self.power)


# Replay of composed schedules ---------------------------------------------------------------------

MAX_REPLAYS = 64
"""Maximum number of cached replays."""


class SchedulerGroup:
    """Entries of ``optimizer.param_groups[0]`` that schedulers read and write.

    The first constructor sets ``initial_lr``, the base of the schedulers constructed next.
    ``max_lr``, ``min_lr`` and ``momenta`` (highest and lowest) are those of the last constructor
    that set them. A momentum of None is the optimizer's own.
    """

    def __init__(self, lr: float) -> None:
        self.lr = lr
        self.initial_lr: float | None = None
        self.max_lr = self.min_lr = 0.0
        self.momentum: float | None = None
        self.momenta = (0.0, 0.0)


class Scheduler(ABC):
    """A member of a composition."""

    @abstractmethod
    def initial_step(self) -> None:
        """Take the first step, as torch's ``_initial_step``."""

    @abstractmethod
    def step(self) -> None:
        """Take the step after a step of the optimizer."""

    @abstractmethod
    def begin_turn(self) -> None:
        """Start from the base, as torch's ``_update_lr(0)``."""

    @abstractmethod
    def undo(self) -> None:
        """Decrease ``last_epoch`` by one; the rate stays."""


class SingleSchedule(Scheduler):
    """A scheduler that is not composed; ``__init__`` does the work of torch's constructor."""

    def __init__(self, schedule: Schedule, group: SchedulerGroup) -> None:
        self.schedule, self.group, self.last_epoch = schedule, group, -1
        if isinstance(schedule, CyclicLR):
            group.lr = schedule.base_lr
        elif isinstance(schedule, OneCycleLR):
            group.initial_lr = schedule.max_lr / schedule.div_factor
            group.max_lr = schedule.max_lr
            group.min_lr = group.initial_lr / schedule.final_div_factor
        if isinstance(schedule, CyclicLR | OneCycleLR) and schedule.cycle_momentum:
            group.momenta = (schedule.max_momentum, schedule.base_momentum)
            group.momentum = schedule.max_momentum
        if group.initial_lr is None:
            group.initial_lr = group.lr
        self.base = group.initial_lr
        self.initial_step()
        if isinstance(schedule, CyclicLR):
            group.lr = self.base  # torch's constructor replaces its base after the first step

    def initial_step(self) -> None:
        self.last_epoch += 1
        if self.schedule.kind in FROM_CURRENT:
            self.group.lr *= self.schedule.lr(1.0, 1) if self.schedule.multiplies else 1.0
        else:
            self._set()

    def step(self) -> None:
        self.last_epoch += 1
        follow = FROM_CURRENT.get(self.schedule.kind)
        if follow is None:
            self._set()
        else:
            self.group.lr = follow(self.schedule, self.group.lr, self.base, self.last_epoch)

    def begin_turn(self) -> None:
        self.last_epoch = 0
        if self.schedule.kind == "multiplicative_lr":
            return  # no closed form in torch: continues from the current rate
        self._set()

    def undo(self) -> None:
        self.last_epoch -= 1

    def _set(self) -> None:
        """Set the rate, independent of the current one, and the momentum."""
        schedule, group, number = self.schedule, self.group, self.last_epoch + 1
        if number < 1:
            raise ValueError(
                f"{schedule.kind} would be stepped before its first step; do not nest "
                "sequential_lr so deep."
            )
        momentum = None
        if isinstance(schedule, OneCycleLR):
            assert group.initial_lr is not None, "its constructor has set it"
            rates = (group.initial_lr, group.max_lr, group.min_lr)
            group.lr, momentum = schedule.along(rates, group.momenta, number)
        else:
            group.lr = schedule.lr(self.base, number)
            momentum = schedule.momentum(number)
        if momentum is not None:
            group.momentum = momentum


class ChainedSchedules(Scheduler):
    """All members take every step, one after the other: torch's ChainedScheduler."""

    def __init__(self, members: Sequence[Scheduler]) -> None:
        self.members = list(members)

    def initial_step(self) -> None:
        self.step()  # torch: members handle it like any other step

    def step(self) -> None:
        for member in self.members:
            member.step()

    def begin_turn(self) -> None:
        raise NotImplementedError("a chain has no rate to begin with; its place is the first")

    def undo(self) -> None:
        for member in self.members:
            member.undo()


class InTurns(ChainedSchedules):
    """Members take turns, which begin at the milestones: torch's SequentialLR."""

    def __init__(
        self, members: Sequence[Scheduler], milestones: Sequence[int], group: SchedulerGroup
    ) -> None:
        super().__init__(members)
        self.milestones, self.last_epoch = milestones, 0
        assert group.initial_lr is not None, "the members' constructors have set it"
        group.lr = group.initial_lr
        self.undo()
        self.members[bisect_right(milestones, 0)].initial_step()

    def step(self) -> None:
        self.last_epoch += 1
        turn = bisect_right(self.milestones, self.last_epoch)
        if turn and self.milestones[turn - 1] == self.last_epoch:
            self.members[turn].begin_turn()
        else:
            self.members[turn].step()


def construct(schedule: Schedule, group: SchedulerGroup) -> Scheduler:
    """Construct a schedule after its members, in their order."""
    if not isinstance(schedule, ChainedScheduler | SequentialLR):
        return SingleSchedule(schedule, group)
    members = [construct(member, group) for member in schedule.schedulers]
    if isinstance(schedule, SequentialLR):
        return InTurns(members, schedule.milestones, group)
    return ChainedSchedules(members)


class Replay:
    """Rates and momenta of a `SequentialLR` or `ChainedScheduler`, step by step."""

    def __init__(self, schedule: Schedule, base: float) -> None:
        self.schedule = schedule  # keeps its id, the key of the cache, in use
        self._group = SchedulerGroup(base)
        self._scheduler = construct(schedule, self._group)
        self.rates, self.momenta = [self._group.lr], [self._group.momentum]

    def upto(self, step: int) -> Replay:
        """Continue to a step, counted from 1; raises ValueError if the schedule ends before it."""
        while len(self.rates) < step:
            self._scheduler.step()
            self.rates.append(self._group.lr)
            self.momenta.append(self._group.momentum)
        return self


_replays: dict[tuple[int, float], Replay] = {}


def replay(schedule: Schedule, base: float) -> Replay:
    """The replay of a composition, shared by all its steps."""
    key = id(schedule), base
    if key not in _replays:
        if len(_replays) >= MAX_REPLAYS:
            _replays.clear()
        _replays[key] = Replay(schedule, base)
    return _replays[key]


# The next rate from the current one: torch's get_lr, with e = last_epoch.


def _constant(own: ConstantLR, rate: float, base: float, e: int) -> float:
    if e == 0:
        return rate * float(own.factor)
    return rate / float(own.factor) if e == own.total_iters else rate


def _linear(own: LinearLR, rate: float, base: float, e: int) -> float:
    if e == 0:
        return rate * float(own.start_factor)
    if e > own.total_iters:
        return rate
    rise = own.end_factor - own.start_factor
    return float(rate * (1 + rise / (own.total_iters * own.start_factor + (e - 1) * rise)))


def _exponential(own: ExponentialLR, rate: float, base: float, e: int) -> float:
    return rate * float(own.gamma)


def _step(own: StepLR, rate: float, base: float, e: int) -> float:
    return rate * float(own.gamma) if e and e % own.step_size == 0 else rate


def _multi_step(own: MultiStepLR, rate: float, base: float, e: int) -> float:
    return float(rate * own.gamma ** own.milestones.count(e))


def _multiplicative(own: MultiplicativeLR, rate: float, base: float, e: int) -> float:
    return rate * float(own.factors(e)[-1]) if e > 0 else rate


def _polynomial(own: PolynomialLR, rate: float, base: float, e: int) -> float:
    if e > own.total_iters:
        return rate
    left = (1 - e / own.total_iters) / (1 - (e - 1) / own.total_iters)
    return float(rate * left**own.power)


def _cosine(own: CosineAnnealingLR, rate: float, base: float, e: int) -> float:
    length, least = own.T_max, own.eta_min
    if (e - 1 - length) % (2 * length) == 0:
        return float(rate + (base - least) * (1 - math.cos(math.pi / length)) / 2)
    now, before = (1 + math.cos(math.pi * t / length) for t in (e, e - 1))
    return float(now / before * (rate - least) + least)


def _as_it_is(own: Schedule, rate: float, base: float, e: int) -> float:
    return rate


FROM_CURRENT: dict[str, Callable[[Any, float, float, int], float]] = {
    "constant_lr": _constant,
    "cosine_annealing_lr": _cosine,
    "exponential_lr": _exponential,
    "linear_lr": _linear,
    "multi_step_lr": _multi_step,
    "multiplicative_lr": _multiplicative,
    "none": _as_it_is,
    "polynomial_lr": _polynomial,
    "step_lr": _step,
}
"""Kinds that compute the next rate from the current one; the others set a rate."""


class ChainedScheduler(Schedule):
    """Several schedules that all take every step, one after the other, as in torch.

    Each changes the rate left by the one before it: those that multiply (`constant_lr`,
    `linear_lr`, `exponential_lr`, `step_lr`, ...) form a product, `cosine_annealing_lr` continues
    from the current rate, and one that sets a rate (`lambda_lr`, `one_cycle_lr`, ...) discards the
    effect of those before it in the list.

    If some count steps and others epochs, as in a script that steps both itself, the rate is the
    base times the factor of each: for example a warm-up by step and a decay by epoch.
    """

    kind: Literal["chained_scheduler"] = "chained_scheduler"
    per: Literal["step"] = "step"
    schedulers: Annotated[list[AnySchedule], Field(min_length=1)]
    """In the order in which they are constructed and stepped. If some count steps and others
    epochs, only kinds that multiply."""

    @field_validator("schedulers")
    @classmethod
    def _members_fit(cls, value: list[Schedule]) -> list[Schedule]:
        counted = frozenset[str]().union(*(member.counted() for member in value))
        for i, member in enumerate(value):
            if "reductions" in member.counted():
                raise problem(
                    f"number {i}, {member.kind}, follows the loss, which a chain does not support "
                    "(nor does torch); use it alone."
                )
            if len(counted) > 1 and not member.multiplies:
                known = [kind for kind, schedule in SCHEDULES.items() if schedule.multiplies]
                raise problem(
                    f"number {i}, {member.kind}, sets the rate, and others count "
                    f"{' and '.join(sorted(f'{unit}s' for unit in counted))}; count one of the "
                    f"two (per), or chain only {', '.join(known)}."
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
        problems = (member.problem_with(num_steps, num_epochs) for member in self.schedulers)
        replayed = min(num_steps, LONGEST_REPLAY), min(num_epochs, LONGEST_REPLAY)
        return next((wrong for wrong in problems if wrong), None) or super().problem_with(*replayed)


class SequentialLR(Schedule):
    """One schedule after another, each counting from its own first step, as torch's SequentialLR.

    Each starts from its base, independent of the rate before; `multiplicative_lr` continues from
    that rate. The base is the optimizer's rate, but torch constructs all schedulers before the
    first step, and the constructors of `one_cycle_lr` and `cyclic_lr` change the base of later
    schedulers, the rate of the first step, and the momentum of all steps before their turn.
    """

    kind: Literal["sequential_lr"] = "sequential_lr"
    schedulers: Annotated[list[AnySchedule], Field(min_length=1)]
    """In the order of their turns; all count steps, or epochs with ``per: epoch``. Only the first
    can be a `sequential_lr` or `chained_scheduler`, as in torch."""
    milestones: Milestones
    """Numbers of finished steps after which the next one takes over; one fewer than schedulers."""

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
        if schedulers is None:  # its error is reported already
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
        replayed = min(num_steps, LONGEST_REPLAY), min(num_epochs, LONGEST_REPLAY)
        return wrong or super().problem_with(*replayed)


class StepLR(Schedule):
    """``lr(k) = base gamma^floor((k - 1) / step_size)``, as torch.optim.lr_scheduler.StepLR."""

    multiplies: ClassVar[bool] = True

    kind: Literal["step_lr"] = "step_lr"
    step_size: Count
    """Steps between two changes."""
    gamma: Float = Field(0.1, ge=0)
    """Factor of each change."""

    def lr(self, base: float, step: int) -> float:
        return float(base * self.gamma ** ((step - 1) // self.step_size))
