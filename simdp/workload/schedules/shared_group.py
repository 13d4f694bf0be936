"""Several of torch's schedulers on one optimizer: how they change the param group that they share.

torch's constructors write ``lr``, ``initial_lr`` and the momentum of the group, and most schedulers
make the next rate from the current one. So the rates of `SequentialLR` and `ChainedScheduler` have
no closed form: they follow from a replay of all members, constructors first.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

from simdp.workload.schedules.base import Schedule
from simdp.workload.schedules.cyclic_lr import CyclicLR
from simdp.workload.schedules.one_cycle_lr import OneCycleLR

MAX_REPLAYS = 64
"""Replays that are kept for the steps to come."""


class ParamGroup:
    """The entries of ``optimizer.param_groups[0]`` that schedulers read and write.

    Attributes
    ----------
    lr : float
        Current rate.
    initial_lr : float or None
        Base of the schedulers that are constructed next; the first constructor sets it.
    max_lr, min_lr : float
        Of the last `OneCycleLR` that was constructed.
    momentum : float or None
        Current momentum; None is the optimizer's own.
    momenta : tuple of float
        Highest and lowest momentum of the last constructor that set them.
    """

    def __init__(self, lr: float) -> None:
        self.lr = lr
        self.initial_lr: float | None = None
        self.max_lr = self.min_lr = 0.0
        self.momentum: float | None = None
        self.momenta = (0.0, 0.0)


class Scheduler(ABC):
    """What a composition needs of its members."""

    @abstractmethod
    def initial_step(self) -> None:
        """Take the first step, as torch's ``_initial_step``."""

    @abstractmethod
    def step(self) -> None:
        """Take the step that follows a step of the optimizer."""

    @abstractmethod
    def begin_turn(self) -> None:
        """Begin from the base, as torch's ``_update_lr(0)``."""

    @abstractmethod
    def undo(self) -> None:
        """Take back one step of ``last_epoch``; the rate stays."""


class Single(Scheduler):
    """A scheduler that is not composed; making it runs torch's constructor.

    Parameters
    ----------
    schedule : Schedule
        Its kind and arguments.
    group : ParamGroup
        The optimizer's.
    """

    def __init__(self, schedule: Schedule, group: ParamGroup) -> None:
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
            return  # it has no closed form in torch, and goes on from the current rate
        self._set()

    def undo(self) -> None:
        self.last_epoch -= 1

    def _set(self) -> None:
        """Set the rate, whatever the current one is, and the momentum."""
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


class Chain(Scheduler):
    """All members take every step, one after the other: torch's ChainedScheduler."""

    def __init__(self, members: Sequence[Scheduler]) -> None:
        self.members = list(members)

    def initial_step(self) -> None:
        self.step()  # torch: members do not notice that this is their first step

    def step(self) -> None:
        for member in self.members:
            member.step()

    def begin_turn(self) -> None:
        raise NotImplementedError("a chain has no rate to begin with; its place is the first")

    def undo(self) -> None:
        for member in self.members:
            member.undo()


class InTurns(Chain):
    """Members take turns, which begin at the milestones: torch's SequentialLR."""

    def __init__(
        self, members: Sequence[Scheduler], milestones: Sequence[int], group: ParamGroup
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


def construct(schedule: Any, group: ParamGroup) -> Scheduler:
    """Construct a schedule and, before it, its members, in the order in which they are written."""
    if not hasattr(schedule, "schedulers"):
        return Single(schedule, group)
    members = [construct(member, group) for member in schedule.schedulers]
    if hasattr(schedule, "milestones"):
        return InTurns(members, schedule.milestones, group)
    return Chain(members)


class Replay:
    """Rates and momenta of a composition, step by step.

    Parameters
    ----------
    schedule : Schedule
        A `SequentialLR` or `ChainedScheduler`.
    base : float
        The optimizer's learning rate.
    """

    def __init__(self, schedule: Schedule, base: float) -> None:
        self.schedule = schedule  # so that its id stays its own
        self._group = ParamGroup(base)
        self._scheduler = construct(schedule, self._group)
        self.rates, self.momenta = [self._group.lr], [self._group.momentum]

    def upto(self, step: int) -> Replay:
        """Go on to a step, counted from 1.

        Raises
        ------
        ValueError
            If the schedule is over by then.
        """
        while len(self.rates) < step:
            self._scheduler.step()
            self.rates.append(self._group.lr)
            self.momenta.append(self._group.momentum)
        return self


_replays: dict[tuple[int, float], Replay] = {}


def replay(schedule: Schedule, base: float) -> Replay:
    """The replay of a composition; the same one for all its steps."""
    key = id(schedule), base
    if key not in _replays:
        if len(_replays) >= MAX_REPLAYS:
            _replays.clear()
        _replays[key] = Replay(schedule, base)
    return _replays[key]


# The next rate from the current one: torch's get_lr, e being last_epoch.


def _constant(own: Any, rate: float, base: float, e: int) -> float:
    if e == 0:
        return rate * float(own.factor)
    return rate / float(own.factor) if e == own.total_iters else rate


def _linear(own: Any, rate: float, base: float, e: int) -> float:
    if e == 0:
        return rate * float(own.start_factor)
    if e > own.total_iters:
        return rate
    rise = own.end_factor - own.start_factor
    return float(rate * (1 + rise / (own.total_iters * own.start_factor + (e - 1) * rise)))


def _exponential(own: Any, rate: float, base: float, e: int) -> float:
    return rate * float(own.gamma)


def _step(own: Any, rate: float, base: float, e: int) -> float:
    return rate * float(own.gamma) if e and e % own.step_size == 0 else rate


def _multi_step(own: Any, rate: float, base: float, e: int) -> float:
    return float(rate * own.gamma ** own.milestones.count(e))


def _multiplicative(own: Any, rate: float, base: float, e: int) -> float:
    return rate * float(own.factors(e)[-1]) if e > 0 else rate


def _polynomial(own: Any, rate: float, base: float, e: int) -> float:
    if e > own.total_iters:
        return rate
    left = (1 - e / own.total_iters) / (1 - (e - 1) / own.total_iters)
    return float(rate * left**own.power)


def _cosine(own: Any, rate: float, base: float, e: int) -> float:
    length, least = own.T_max, own.eta_min
    if (e - 1 - length) % (2 * length) == 0:
        return float(rate + (base - least) * (1 - math.cos(math.pi / length)) / 2)
    now, before = (1 + math.cos(math.pi * t / length) for t in (e, e - 1))
    return float(now / before * (rate - least) + least)


def _as_it_is(own: Any, rate: float, base: float, e: int) -> float:
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
"""Kinds that make the next rate from the current one; the others set a rate."""
