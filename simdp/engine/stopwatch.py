"""Stopwatch: step times of scenarios that differ little from one of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from simdp.arrays import Floats
from simdp.engine.clocks.vector import VectorFabric
from simdp.engine.ops import Feed, Hold, Launch, Meet, Op, Stretch, Wait, Work
from simdp.engine.simulate import play
from simdp.engine.slowdown import Slowdown
from simdp.results.metrics import steady_step_time, times
from simdp.results.trace import SETUP, StepEnds, TraceBuilder
from simdp.scenario import Scenario
from simdp.scenario.wiring import wiring_of

NETWORK = {"link": None, "inter_node": None}
"""What the cost of collectives knows of a cluster."""

CHARGED_ANEW = {
    "hook": 0.0,
    "message": 0.0,
    "message_per_rank": 0.0,
    "compute_slowdown": 0.0,
    "collective_slowdown": 0.0,
}
"""Overheads that a script heard once is charged again with."""

SLOWED = ("forward", "backward", "tail", "host")
"""Work that stragglers slow down; of the other activities they slow none."""


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
    """A script as it was played, to be played again with other times."""

    def __init__(self) -> None:
        self.ops: list[Busy | Launch | Wait | Meet | Feed] = []

    def listen(self, script: Iterator[Op]) -> Iterator[Op]:
        """Pass a script on."""
        for op in script:
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

    def again(self, first: Scenario, other: Scenario, slowdown: Slowdown) -> Iterator[Op]:
        """Yield what another scenario would, which only charges the same otherwise."""
        n, cost, wiring = first.cluster.world_size, other.collectives.cost, wiring_of(other.cluster)
        a, b = first.cluster.overheads, other.cluster.overheads
        hook = b.hook - a.hook
        message = b.before_collective(n) - a.before_collective(n)
        alike = first.cluster.stragglers == other.cluster.stragglers
        before = slowdown if alike else Slowdown(first.cluster, first.seed)
        step, old = SETUP, np.ones(n)  # nothing slows the setup down
        new = old
        asked: dict[tuple[str, float], float] = {}
        for op in self.ops:
            if isinstance(op, Busy):
                if op.step != step:
                    step, new = op.step, slowdown.factors(op.step)
                    old = new if alike else before.factors(op.step)
                slowed = op.slowed if alike else op.slowed / old * new
                seconds = slowed + op.num_hooks * hook * new + op.steady
                yield Work(op.step, "forward", "", seconds)
            elif isinstance(op, Launch):
                key = op.plan.collective, op.nbytes
                if key not in asked:
                    asked[key] = cost.seconds(*key, wiring)
                yield op._replace(seconds=asked[key], message=op.message + message)
            else:
                yield op


def _step(op: Busy | Launch | Wait | Meet | Feed) -> int:
    return SETUP if isinstance(op, Wait) else op.step


class Stopwatch:
    """Times steps; what other scenarios have in common with the first is not worked out again.

    Parameters
    ----------
    scenario : Scenario
        The first, without a sweep and without numerics.

    Attributes
    ----------
    metrics : dict
        Of the first scenario, those of `simdp.results.metrics.times`.
    repeats : bool
        Whether others that differ in times alone cost next to nothing.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario, self._heard = scenario, Heard()
        trace = TraceBuilder()
        played = play(scenario, trace, listen=self._heard.listen)
        run = played.run
        samples = [record.samples for record in run.numbers.records]
        self.metrics = times(trace.build(), run.world_size, len(samples), samples)
        self._times, self._network = run.times, played.clock.network
        self.repeats = (
            scenario.collectives.cost.timed
            and scenario.strategy.player == "together"
            and not run.program.facts.needs_nominal
            and self._heard.is_timed
        )
        if self.repeats:
            self._heard.forget_setup()

    def step_time(self, other: Scenario) -> float:
        """Simulated time of a steady step of another scenario, but for rounding [s]."""
        ends = StepEnds(other.cluster.world_size)
        trace = TraceBuilder(keep=False, ends=ends)
        if self._differs_in_times(other):
            slowdown = Slowdown(other.cluster, other.seed)
            fabric = VectorFabric(self._network, slowdown, trace, overheads=other.cluster.overheads)
            fabric.play(self._heard.again(self.scenario, other, slowdown))
        else:
            known = self._times if self._computes_alike(other) else None
            play(other, trace, times=known, listen=iter)
        return steady_step_time(ends.ends())

    def _computes_alike(self, other: Scenario) -> bool:
        """Whether the other one computes the same on the same devices."""
        a, b = self.scenario.cluster, other.cluster
        return self.scenario.workload is other.workload and all(
            getattr(a, key) == getattr(b, key)
            for key in ("world_size", "local_size", "ranks_per_device", "device")
        )

    def _differs_in_times(self, other: Scenario) -> bool:
        """Whether the other one says what the first one did, and only charges it otherwise."""
        a, b = self.scenario, other
        if not self.repeats or a.workload is not b.workload or not b.collectives.cost.timed:
            return False
        same = {"cluster": None, "collectives": None, "workload": None}
        if a.model_copy(update=same) != b.model_copy(update=same):
            return False
        cost = {"cost": None}
        if a.collectives.model_copy(update=cost) != b.collectives.model_copy(update=cost):
            return False
        before, after = a.cluster.overheads, b.cluster.overheads
        if before.hook != after.hook and (a.program.facts.needs_nominal or not before.hook):
            return False
        beside: dict[str, Any] = {**NETWORK, "stragglers": [], "overheads": None}
        if a.cluster.model_copy(update=beside) != b.cluster.model_copy(update=beside):
            return False
        if before.model_copy(update=CHARGED_ANEW) != after.model_copy(update=CHARGED_ANEW):
            return False
        if wiring_of(b.cluster).inter_bandwidth != wiring_of(a.cluster).inter_bandwidth:
            return False  # a strategy may read this
        stragglers = [*a.cluster.stragglers, *b.cluster.stragglers]
        alike = a.cluster.stragglers == b.cluster.stragglers
        return alike or not any(one.kind == "pause" for one in stragglers)
