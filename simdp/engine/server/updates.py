"""Updates: which gradient the server applies, and when each worker goes on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from simdp.strategies.parameter_server import ParameterServer

Action = Callable[[float], None]
"""Something that happens; it is told the instant [s]."""


class Yard(Protocol):
    """What updates can order; see `simdp.engine.server.run.ServerRun`."""

    @property
    def num_steps(self) -> int:
        """How many gradients each worker computes, or how often all update together."""

    def begin(self, rank: int, step: int, now: float) -> None:
        """Let a worker compute its gradient of a step, and push it."""

    def pull(self, rank: int, now: float) -> None:
        """Let a worker get the newest weights."""

    def update(self, ranks: Sequence[int], now: float, done: Action) -> None:
        """Apply the mean of some gradients that have come; then do something."""

    def drop(self, rank: int, step: int) -> None:
        """Forget a gradient that has come; its worker is from now on in the step that goes on."""

    def has_samples(self, rank: int, step: int) -> bool:
        """Whether a worker has anything to learn from in a step."""

    def leave_out(self, rank: int, step: int) -> None:
        """Let a worker be in a step in which it computes nothing."""

    def finish_step(self, step: int, oldest: int) -> None:
        """Note that no gradient of a step, or of one before it, will be applied any more.

        ``oldest`` is the first step that a worker may still begin.
        """

    def waited(self, rank: int, name: str, begin: float, end: float) -> None:
        """Note for what a worker has waited [s]."""


class Updates(ABC):
    """What the server does with gradients.

    Parameters
    ----------
    strategy : ParameterServer
        With its options.
    yard : Yard
        Where workers and the server are.
    world_size : int
        Number of workers.

    Attributes
    ----------
    busy : bool
        Whether an update is under way.
    finished : list of float
        When each step ended that all update together [s].
    """

    def __init__(self, strategy: ParameterServer, yard: Yard, world_size: int) -> None:
        self.strategy, self.yard, self.world_size = strategy, yard, world_size
        self.busy, self.finished = False, list[float]()

    @abstractmethod
    def start(self, rank: int, now: float) -> None:
        """A worker has the first weights."""

    @abstractmethod
    def came(self, ranks: Sequence[int], now: float) -> None:
        """The gradients of some workers have come at an instant, in order of rank."""

    @abstractmethod
    def pulled(self, rank: int, now: float) -> None:
        """A worker has new weights."""

    @property
    @abstractmethod
    def are_done(self) -> bool:
        """Whether nothing is left to apply."""


class Synchronous(Updates):
    """One update for the first gradients of a step; those that come later are dropped.

    With backups, a worker without samples sits a step out: its gradient of zeros would be the first
    to come, and take the place of one from which there is something to learn.
    """

    def __init__(self, strategy: ParameterServer, yard: Yard, world_size: int) -> None:
        super().__init__(strategy, yard, world_size)
        self.version = 0
        self._taken: list[int] = []
        self._late: list[int] = []
        self._idle: dict[int, float] = {}  # workers without samples, and since when
        self._of = [0] * world_size  # the version that each worker has pulled
        self._wanted = self._of_step(0)

    def _of_step(self, step: int) -> int:
        """How many gradients an update takes."""
        first = self.world_size - self.strategy.backup
        return min(first, sum(self._takes_part(rank, step) for rank in range(self.world_size)))

    def _takes_part(self, rank: int, step: int) -> bool:
        return not self.strategy.backup or self.yard.has_samples(rank, step)

    def start(self, rank: int, now: float) -> None:
        self._begin(rank, now)

    def _begin(self, rank: int, now: float) -> None:
        step = self._of[rank]
        if self._takes_part(rank, step):
            self.yard.begin(rank, step, now)
            return
        self.yard.leave_out(rank, step)
        if step == self.version:
            self._idle[rank] = now
        else:
            self._pull(rank, now)

    def came(self, ranks: Sequence[int], now: float) -> None:
        for rank in ranks:
            if self._of[rank] == self.version and len(self._taken) < self._wanted:
                self._taken.append(rank)
                continue
            self.yard.drop(rank, min(self.version, self.yard.num_steps - 1))
            if len(self._taken) == self._wanted:  # newer weights will be there in a moment
                self._late.append(rank)
            else:
                self._pull(rank, now)
        if len(self._taken) == self._wanted and not self.busy:
            self.busy = True
            self.yard.update(sorted(self._taken), now, self._updated)

    def _updated(self, now: float) -> None:
        self.busy, self.version = False, self.version + 1
        self.finished.append(now)
        self.yard.finish_step(self.version - 1, min(self._of))
        for rank, since in self._idle.items():
            self.yard.waited(rank, "for the update", since, now)
        ranks = sorted([*self._taken, *self._late, *self._idle])
        self._taken, self._late, self._idle = [], [], {}
        if not self.are_done:
            self._wanted = self._of_step(self.version)
        for rank in ranks:
            self._pull(rank, now)

    def _pull(self, rank: int, now: float) -> None:
        self._of[rank] = self.version
        self.yard.pull(rank, now)

    def pulled(self, rank: int, now: float) -> None:
        if not self.are_done:
            self._begin(rank, now)

    @property
    def are_done(self) -> bool:
        return self.version == self.yard.num_steps


class Asynchronous(Updates):
    """An update for every gradient, in the order in which they come."""

    def __init__(self, strategy: ParameterServer, yard: Yard, world_size: int) -> None:
        super().__init__(strategy, yard, world_size)
        self._queue: deque[int] = deque()
        self._done = [0] * world_size  # steps
        self._ahead: dict[int, float] = {}  # workers that wait, and since when
        self._slowest = 0

    def start(self, rank: int, now: float) -> None:
        self._begin(rank, now)

    def _begin(self, rank: int, now: float) -> None:
        if self._done[rank] == self.yard.num_steps:
            return
        if self.yard.has_samples(rank, self._done[rank]):
            self.yard.begin(rank, self._done[rank], now)
        else:
            self.yard.leave_out(rank, self._done[rank])
            self._go_on(rank, now)

    def came(self, ranks: Sequence[int], now: float) -> None:
        self._queue += ranks
        self._next(now)

    def _next(self, now: float) -> None:
        if self._queue and not self.busy:
            self.busy, rank = True, self._queue.popleft()
            self.yard.update([rank], now, partial(self._applied, rank))

    def _applied(self, rank: int, now: float) -> None:
        self.busy = False
        self._go_on(rank, now)
        self._next(now)

    def _go_on(self, rank: int, now: float) -> None:
        """A worker is done with a step: let it pull, and those that have waited for it."""
        self._done[rank] += 1
        slowest = min(self._done)
        if slowest > self._slowest:
            self.yard.finish_step(slowest - 1, slowest)
        self._slowest = slowest
        self._ahead[rank] = now
        for other in sorted(self._ahead):
            if self._may_go_on(other):
                since = self._ahead.pop(other)
                self.yard.waited(other, "for the slowest", since, now)
                self.yard.pull(other, now)

    def _may_go_on(self, rank: int) -> bool:
        limit = self.strategy.max_staleness
        done = self._done[rank]
        return limit is None or done - self._slowest <= limit or done == self.yard.num_steps

    def pulled(self, rank: int, now: float) -> None:
        self._begin(rank, now)

    @property
    def are_done(self) -> bool:
        return self._slowest == self.yard.num_steps


UPDATES: dict[str, type[Updates]] = {"asynchronous": Asynchronous, "synchronous": Synchronous}
"""By ``strategy.updates``."""
