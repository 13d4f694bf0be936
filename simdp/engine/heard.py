"""Heard: a script as it was played, for other scenarios that charge other times for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from simdp.arrays import Floats
from simdp.engine.clocks.streams import Streams
from simdp.engine.ops import Feed, Hold, Launch, Meet, Op, Stretch, Wait, Work
from simdp.engine.slowdown import SLOWED, Slowdown
from simdp.results.trace import SETUP
from simdp.scenario import Scenario
from simdp.scenario.wiring import wiring_of


@dataclass
class Busy:
    """Work of one step that nothing comes between.

    Attributes
    ----------
    step : int
        As in `simdp.engine.ops.Work`.
    slowed, steady : ndarray, shape `(world_size,)`
        What stragglers slow down, their factors included, and what they do not [s].
    num_hooks : int
        How many hooks are part of it.
    """

    step: int
    slowed: Floats
    steady: Floats
    num_hooks: int = 0


class Heard:
    """A script as it was played, to be played again with other times.

    Parameters
    ----------
    num_steps : int, optional
        Steps that are recorded; what comes after the first operation of a later one is only passed
        on. Left out, all are.
    """

    def __init__(self, num_steps: int | None = None) -> None:
        self.ops: list[Busy | Launch | Wait | Meet | Feed] = []
        self._end = inf if num_steps is None else num_steps

    def listen(self, script: Iterator[Op]) -> Iterator[Op]:
        """Pass a script on."""
        for op in script:
            if not isinstance(op, Wait) and op.step >= self._end:
                yield op
                yield from script
                return
            match op:
                case Work():
                    self._work(op)
                case Stretch():
                    for work in op.works():
                        self._work(work)
                case Hold():
                    pass
                case _:
                    self.ops.append(op)
            yield op

    def _work(self, op: Work) -> None:
        last = self.ops[-1] if self.ops else None
        if not isinstance(last, Busy) or last.step != op.step:
            last = Busy(op.step, np.zeros(len(op.seconds)), np.zeros(len(op.seconds)))
            self.ops.append(last)
        if op.activity in SLOWED:
            last.slowed += op.seconds
            last.num_hooks += op.activity == "host" and op.name in ("hook", "")
        else:
            last.steady += op.seconds

    def forget_setup(self) -> None:
        """Leave out what comes before the first step, if all ranks leave it at one instant.

        Then it moves every later instant alike. They do where they meet, or wait for the last of
        the collectives.
        """
        begin = next((i for i, op in enumerate(self.ops) if _step(op) > SETUP), 0)
        setup = self.ops[:begin]
        waits = {call for op in setup if isinstance(op, Wait) for call in op.calls}
        calls = [op.call for op in setup if isinstance(op, Launch)]
        if calls and isinstance(setup[-1], Wait | Meet) and waits == set(calls):
            del self.ops[:begin]

    @property
    def is_timed(self) -> bool:
        """Whether no time depends on more than work, and the cost of collectives of all ranks."""
        launches = [op for op in self.ops if isinstance(op, Launch)]
        there = not any(isinstance(op, Feed) for op in self.ops)
        return there and all(op.seconds is not None and op.groups is None for op in launches)

    def step_ends(self, first: Scenario, others: Sequence[Scenario]) -> Floats:
        """Play it for scenarios that only charge the same otherwise, side by side.

        Parameters
        ----------
        first : Scenario
            Whose script it is.
        others : sequence of Scenario
            Without pauses on the clock.

        Returns
        -------
        ndarray, shape `(num_steps + 1, num_scenarios, world_size)`
            When each rank is done with the setup and with each step [s].
        """
        charged, n = _Charged(first, others), first.cluster.world_size
        clock, ends = np.zeros((len(others), n)), dict[int, Floats]()

        def done(step: int, instants: Floats) -> None:
            ends[step] = np.maximum(ends[step], instants) if step in ends else instants

        def record(op: Launch, ready: Floats, enter: Floats, end: Floats) -> None:
            if n > 1:
                done(op.step, end)

        def until(op: Launch, begin: Floats) -> Floats:
            return op.latest(begin) + charged.collective(op) if n > 1 else begin

        streams = Streams(*charged.slowdowns, until, record, charged.message)
        for op in self.ops:
            match op:
                case Busy():
                    clock = clock + streams.stretched(clock, charged.busy(op))
                    done(op.step, clock)
                case Launch():
                    streams.launch(op, clock)
                case Wait():
                    clock = streams.wait(op.calls, clock)
                case Meet():
                    clock = np.broadcast_to(clock.max(axis=1, keepdims=True), clock.shape)
                    done(op.step, clock)
        steps, nothing = range(SETUP, max(ends, default=SETUP) + 1), np.zeros_like(clock)
        found: Floats = np.maximum.accumulate([ends.get(step, nothing) for step in steps])
        return found


class _Charged:
    """What some scenarios charge for the operations of another one's script.

    Parameters
    ----------
    first : Scenario
        Whose script it is.
    others : sequence of Scenario
        Which charge; each is a row of what is found.

    Attributes
    ----------
    slowdowns : (ndarray, ndarray), shape `(num_scenarios, 1)` each
        By how much compute and collectives slow each other down.
    """

    def __init__(self, first: Scenario, others: Sequence[Scenario]) -> None:
        n, old = first.cluster.world_size, first.cluster.overheads
        overheads = [other.cluster.overheads for other in others]
        self.slowdowns = (
            _column(each.compute_slowdown for each in overheads),
            _column(each.collective_slowdown for each in overheads),
        )
        self._hook = _column(each.hook - old.hook for each in overheads)
        before = old.before_collective(n)
        self._message = _column(each.before_collective(n) - before for each in overheads)
        wirings = {id(other.cluster): other.cluster for other in others}
        wired = {key: wiring_of(cluster) for key, cluster in wirings.items()}
        self._costs = [(other.collectives.cost, wired[id(other.cluster)]) for other in others]
        self._seconds: dict[tuple[str, float], Floats] = {}
        self._before, stragglers = Slowdown(first.cluster, first.seed), first.cluster.stragglers
        self._slowdowns = [
            None if other.cluster.stragglers == stragglers else Slowdown(other.cluster, other.seed)
            for other in others
        ]
        self._alike = np.array([one is None for one in self._slowdowns])[:, None]
        self._step, self._old = SETUP, np.ones(n)  # nothing slows the setup down
        self._new = np.ones((len(others), n))

    def busy(self, op: Busy) -> Floats:
        """How long work takes by itself, shape `(num_scenarios, world_size)` [s]."""
        if op.step != self._step:
            old = self._old = self._before.factors(op.step)
            each = [old if one is None else one.factors(op.step) for one in self._slowdowns]
            self._step, self._new = op.step, np.array(each)
        slowed = np.where(self._alike, op.slowed, op.slowed / self._old * self._new)
        found: Floats = slowed + op.num_hooks * self._hook * self._new + op.steady
        return found

    def message(self, op: Launch) -> Floats:
        """How long a collective keeps its stream before it begins [s]."""
        return op.message + self._message

    def collective(self, op: Launch) -> Floats:
        """How long a collective takes, from when the last rank has come [s]."""
        key = op.plan.collective, op.nbytes
        if key not in self._seconds:
            self._seconds[key] = _column(cost.seconds(*key, at) for cost, at in self._costs)
        return self._seconds[key]


def _column(values: Iterable[float]) -> Floats:
    return np.array(list(values))[:, None]


def _step(op: Busy | Launch | Wait | Meet | Feed) -> int:
    return SETUP if isinstance(op, Wait) else op.step
