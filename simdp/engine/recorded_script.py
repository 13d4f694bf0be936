"""Records one run's operations so that variants with other timings can be replayed."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import inf
from typing import Any, NamedTuple

import numpy as np

from simdp.arrays import Floats
from simdp.cluster.stragglers import DegradedLink
from simdp.collectives import Wiring
from simdp.collectives.costs import Cost
from simdp.engine.clocks.vector import Streams
from simdp.engine.compute.profile_times import Times, times_of
from simdp.engine.compute.roofline import Roofline, roofline_of
from simdp.engine.interpreters.costs import Costs
from simdp.engine.ops import (
    BytesMoved,
    CallWork,
    ClockBarrier,
    ClockOp,
    ClockWait,
    ComputeWork,
    Feed,
    FusedWork,
    HostWork,
    Launch,
    MemoryChange,
    RecordedPass,
    UpdateWork,
)
from simdp.engine.simulate import common_to, play
from simdp.engine.slowdown import SLOWED, Slowdown
from simdp.errors import OperationError
from simdp.results.metrics import Metrics, steady_step_time, times
from simdp.results.trace import SETUP, StepEnds, TraceBuilder
from simdp.scenario.placement import wiring_of
from simdp.scenario.root import Scenario
from simdp.workload import Workload
from simdp.workload.compute import FromMeasurements


@dataclass
class Busy:
    """Consecutive work of one step, with its number of hooks.

    ``slowed`` is the work with straggler slowdowns, which are included; ``steady`` the other [s].
    Of them the calls in passes, which stragglers slow down, the bytes moved, and the parts of
    updates take another time on another device.
    """

    step: int
    slowed: Floats
    steady: Floats
    num_hooks: int = 0
    calls: list[CallWork] = field(default_factory=list)
    nbytes: float = 0.0
    updates: list[UpdateWork] = field(default_factory=list)


class WorkTimes(NamedTuple):
    """Seconds of each piece of work, shape `(num_works, 1)` or `(num_works, world_size)`.

    ``passes`` without stragglers, which slow them down; ``steady`` is all other work [s].
    """

    passes: Floats
    steady: Floats

    def less(self, other: WorkTimes) -> WorkTimes:
        """The difference [s]."""
        return WorkTimes(self.passes - other.passes, self.steady - other.steady)


class WorkOnDevices:
    """Computes how long the work of a recorded run takes on other devices.

    Parameters
    ----------
    works : sequence of Busy
        The recorded work.
    scenario : Scenario
        Of the run.
    costs : Costs
        Of the run.
    """

    def __init__(self, works: Sequence[Busy], scenario: Scenario, costs: Costs) -> None:
        self._scenario, self._costs, self._num_works = scenario, costs, len(works)
        numbers: dict[Hashable, int] = {}
        self._passes: list[RecordedPass] = []
        known: dict[int, int] = {}  # many calls share one pass
        entries = list[tuple[int, int, int]]()
        for place, work in enumerate(works):
            for of, call in work.calls:
                if id(of) not in known:
                    known[id(of)] = numbers.setdefault(of.key, len(numbers))
                    if len(numbers) > len(self._passes):
                        self._passes.append(of)
                entries.append((place, known[id(of)], call))
        self._place, self._pass, self._call = np.array(entries, dtype=np.int64).reshape(-1, 3).T
        self._nbytes = np.array([work.nbytes for work in works])[:, None]
        self._updates = [(place, part) for place, work in enumerate(works) for part in work.updates]
        self._first = self._times(scenario)

    def longer(self, other: Scenario) -> WorkTimes:
        """By how much work takes longer with another scenario's devices and measured times."""
        return self._times(other).less(self._first)

    def copying(self, nbytes: float, other: Scenario) -> float:
        """By how much a copy takes longer on the slowest device than in the run [s]."""
        new, first = (roofline_of(scenario.cluster) for scenario in (other, self._scenario))
        slowest = new.moving(nbytes).max() - first.moving(nbytes).max()
        return float(slowest)

    def _times(self, scenario: Scenario) -> WorkTimes:
        costs, roofline = self._costs, roofline_of(scenario.cluster)
        times = times_of(scenario.workload, scenario.strategy, roofline)
        passes = [costs.seconds_of(recorded, times, roofline) for recorded in self._passes]
        same = all(columns.seconds.shape[1] == 1 for columns in passes)
        ranks = slice(1) if same else slice(None)
        kinds, kind = np.unique(
            np.array([columns.column[ranks] for columns in passes]).reshape(len(passes), -1),
            axis=1,
            return_inverse=True,
        )
        seconds = np.zeros((self._num_works, kinds.shape[1]))
        for number, of_passes in enumerate(kinds.T):
            table = np.array([c.seconds[:, at] for c, at in zip(passes, of_passes, strict=True)])
            if len(table):
                weights = table[self._pass, self._call]
                seconds[:, number] = np.bincount(self._place, weights, self._num_works)
        return WorkTimes(seconds[:, kind.reshape(-1)], self._steady(roofline))

    def _steady(self, roofline: Roofline) -> Floats:
        bandwidth = roofline.bandwidth
        if (bandwidth == bandwidth[0]).all():
            bandwidth = bandwidth[:1]
        seconds: Floats = self._nbytes / bandwidth
        parts = {part.name: part for _, part in self._updates}
        busy = {name: self._costs.update_seconds(name, roofline) for name in parts}
        if self._updates:
            seconds = np.repeat(seconds, len(roofline.bandwidth) // seconds.shape[1], axis=1)
        for place, part in self._updates:
            seconds[place] += busy[part.name] * np.array(part.active)
        return seconds


class RecordedScript:
    """A recorded script, for replays with other times.

    Parameters
    ----------
    num_steps : int, optional
        Recorded steps; later ones are only passed on. Default: all.

    Attributes
    ----------
    ops : list
        The operations.
    knows_origins : bool
        Whether the time of all work on other devices is known.
    """

    def __init__(self, num_steps: int | None = None) -> None:
        self.ops: list[Busy | Launch | ClockWait | ClockBarrier | Feed] = []
        self.knows_origins = True
        self._end = inf if num_steps is None else num_steps

    def listen(self, script: Iterator[ClockOp]) -> Iterator[ClockOp]:
        """Record a script, and yield it."""
        for op in script:
            if not isinstance(op, ClockWait) and op.step >= self._end:
                yield op
                yield from script
                return
            match op:
                case ComputeWork():
                    self._work(op)
                case FusedWork():
                    for work in op.works():
                        self._work(work)
                case MemoryChange():
                    pass
                case Launch() | ClockWait() | ClockBarrier() | Feed():
                    self.ops.append(op)
                case _:
                    raise OperationError(f"{__name__}.RecordedScript", type(op))
            yield op

    def _work(self, op: ComputeWork) -> None:
        last = self.ops[-1] if self.ops else None
        if not isinstance(last, Busy) or last.step != op.step:
            last = Busy(op.step, np.zeros(len(op.seconds)), np.zeros(len(op.seconds)))
            self.ops.append(last)
        if op.activity in SLOWED:
            last.slowed += op.seconds
            last.num_hooks += op.activity == "host" and op.name in ("hook", "")
        else:
            last.steady += op.seconds
        match op.origin:
            case CallWork() as work:
                last.calls.append(work)
            case BytesMoved(nbytes):
                last.nbytes += nbytes
            case UpdateWork() as work:
                last.updates.append(work)
            case HostWork():
                pass
            case _:
                self.knows_origins = False

    def forget_setup(self) -> None:
        """Drop operations before the first step, if all ranks leave the setup at one instant.

        This is so after a barrier, or after a wait for the last collectives; then the setup delays
        all later instants equally.
        """
        begin = next((i for i, op in enumerate(self.ops) if _step(op) > SETUP), 0)
        setup = self.ops[:begin]
        waits = {call for op in setup if isinstance(op, ClockWait) for call in op.calls}
        calls = [op.call for op in setup if isinstance(op, Launch)]
        if calls and isinstance(setup[-1], ClockWait | ClockBarrier) and waits == set(calls):
            del self.ops[:begin]

    @property
    def is_timed(self) -> bool:
        """Whether times depend only on work and on the cost of collectives of all ranks."""
        launches = [op for op in self.ops if isinstance(op, Launch)]
        there = not any(isinstance(op, Feed) for op in self.ops)
        return there and all(op.seconds is not None and op.groups is None for op in launches)

    @property
    def works(self) -> list[Busy]:
        """All work, in its order."""
        return [op for op in self.ops if isinstance(op, Busy)]

    def step_ends(
        self,
        first: Scenario,
        others: Sequence[Scenario],
        devices: WorkOnDevices | None = None,
    ) -> Floats:
        """Replay the script, which is that of ``first``, with the times of other scenarios.

        These have no pauses on the clock. With ``devices``, theirs may differ.

        Returns
        -------
        ndarray, shape `(num_steps + 1, num_scenarios, world_size)`
            When each rank finishes the setup and each step [s].
        """
        charged, n = _Charged(first, others, devices), first.cluster.world_size
        clock, ends = np.zeros((len(others), n)), dict[int, Floats]()

        def done(step: int, instants: Floats) -> None:
            ends[step] = np.maximum(ends[step], instants) if step in ends else instants

        def record(op: Launch, ready: Floats, enter: Floats, end: Floats) -> None:
            if n > 1:
                done(op.step, end)

        def until(op: Launch, begin: Floats) -> Floats:
            return op.latest(begin) + charged.collective(op) if n > 1 else begin

        streams = Streams(charged.of_collective, until, record, charged.message, charged.slowdown)
        for op in self.ops:
            match op:
                case Busy():
                    clock = clock + streams.stretched(clock, charged.busy(op))
                    done(op.step, clock)
                case Launch():
                    streams.launch(op, charged.ready(op, clock))
                case ClockWait():
                    clock = streams.wait(op.calls, clock)
                case ClockBarrier():
                    clock = np.broadcast_to(clock.max(axis=1, keepdims=True), clock.shape)
                    done(op.step, clock)
                case _:  # also `Feed`, with which a script is not timed
                    raise OperationError(f"{__name__}.RecordedScript.step_ends", type(op))
        steps, nothing = range(SETUP, max(ends, default=SETUP) + 1), np.zeros_like(clock)
        return np.maximum.accumulate([ends.get(step, nothing) for step in steps])


class _Charged:
    """Times of a script's operations in other scenarios, one row each."""

    def __init__(
        self, first: Scenario, others: Sequence[Scenario], devices: WorkOnDevices | None
    ) -> None:
        self._others, self._devices, self._num_works = others, devices, 0
        self._longer = None if devices is None else _longer(devices, first, others)
        self._copies: dict[float, Floats] = {}
        n, old = first.cluster.world_size, first.cluster.overheads
        overheads = [other.cluster.overheads for other in others]
        self.of_collective = _column(overhead.collective_slowdown for overhead in overheads)
        self._hook = _column(overhead.hook - old.hook for overhead in overheads)
        per_node = first.cluster.local_size
        hosts = [scenario.workload.host.before_step(per_node) for scenario in (first, *others)]
        self._host = _column(overhead - hosts[0] for overhead in hosts[1:])
        before = old.before_collective(n)
        self._message = _column(overhead.before_collective(n) - before for overhead in overheads)
        wirings = {id(other.cluster): other.cluster for other in others}
        wired = {key: wiring_of(cluster) for key, cluster in wirings.items()}
        self._costs = [(other.collectives.cost, wired[id(other.cluster)]) for other in others]
        self._seconds: dict[tuple[str, float], Floats] = {}
        self._beside: dict[tuple[str, float], Floats] = {}
        self._before, stragglers = Slowdown(first.cluster, first.seed), first.cluster.stragglers
        self._slowdowns = [
            None if other.cluster.stragglers == stragglers else Slowdown(other.cluster, other.seed)
            for other in others
        ]
        self._alike = np.array([scenario is None for scenario in self._slowdowns])[:, None]
        self._step, self._old = SETUP, np.ones(n)  # nothing slows the setup down
        self._new = np.ones((len(others), n))

    def busy(self, op: Busy) -> Floats:
        """Duration of work without collectives, shape `(num_scenarios, world_size)` [s]."""
        host: float | Floats = 0.0
        if op.step != self._step:
            host = self._host  # a step begins with its host's work
            old = self._old = self._before.factors(op.step)
            factors = [
                old if slowdown is None else slowdown.factors(op.step)
                for slowdown in self._slowdowns
            ]
            self._step, self._new = op.step, np.array(factors)
        busy, steady = op.slowed, op.steady
        if self._longer is not None:
            passes, rest = (factors[:, self._num_works] for factors in self._longer)
            busy, steady = busy + passes * self._old, steady + rest
            self._num_works += 1
        slowed = np.where(self._alike, busy, busy / self._old * self._new)
        return slowed + (op.num_hooks * self._hook + host) * self._new + steady

    def ready(self, op: Launch, clock: Floats) -> Floats:
        """The clock at a launch, later by what its copies take longer than in the script [s]."""
        if self._devices is None or not op.copied:
            return clock
        if op.copied not in self._copies:
            seconds = (self._devices.copying(op.copied, other) for other in self._others)
            self._copies[op.copied] = _column(seconds)
        return clock + self._copies[op.copied]

    def message(self, op: Launch) -> Floats:
        """Time that a collective occupies its stream before it begins [s]."""
        return op.message + self._message

    def collective(self, op: Launch) -> Floats:
        """Duration of a collective from the last rank's arrival [s]."""
        key = op.plan.collective, op.nbytes
        if key not in self._seconds:
            self._seconds[key] = _column(cost.seconds(*key, at) for cost, at in self._costs)
        return self._seconds[key]

    def slowdown(self, op: Launch) -> Floats:
        """Relative increase of compute time while a collective runs, in each scenario."""
        key = op.plan.collective, op.nbytes
        if key not in self._beside:
            self._beside[key] = _column(
                other.cluster.slowdown_beside(
                    key[0], other.cluster.world_size, key[1], partial(_alone, cost, key[0], at)
                )
                for other, (cost, at) in zip(self._others, self._costs, strict=True)
            )
        return self._beside[key]


def _alone(cost: Cost, collective: str, wiring: Wiring, nbytes: float) -> float:
    return cost.seconds(collective, nbytes, wiring)


def _longer(
    devices: WorkOnDevices, first: Scenario, others: Sequence[Scenario]
) -> tuple[Floats, Floats]:
    """By how much passes and other work take longer, `(num_scenarios, num_works, ranks or 1)`."""
    extra = [devices.longer(other) for other in others]
    passes, steady = (np.stack(np.broadcast_arrays(*column)) for column in zip(*extra, strict=True))
    return passes, steady


def _column(values: Iterable[float]) -> Floats:
    return np.array(list(values))[:, None]


def _step(op: Busy | Launch | ClockWait | ClockBarrier | Feed) -> int:
    return SETUP if isinstance(op, ClockWait) else op.step


MICRO_STEPS = (3, 4)
"""Micro-steps of the short steps from which longer ones are extrapolated."""

WORTH_IT = 12
"""Minimum micro-steps of a step for which `MICRO_STEPS` are simulated instead."""

ALIKE = 1e-9
"""Relative rounding error of step times that are extrapolated from `MICRO_STEPS`."""

NETWORK = {"link": None, "inter_node": None}
"""Fields of a cluster that affect only the cost of collectives."""

CHARGED_ANEW = {
    "hook": 0.0,
    "message": 0.0,
    "message_per_rank": 0.0,
    "compute_slowdown": 0.0,
    "collective_slowdown": 0.0,
}
"""Overheads that a replay can change."""


class Stopwatch:
    """Times steps of scenarios that share most of their times with the first one.

    Parameters
    ----------
    scenario : Scenario
        The first, without a sweep and without numerics.
    recorded : RecordedScript, optional
        Its script, recorded with `simdp.engine.simulate.times_alone`; default: it is simulated
        here.
    metrics : Metrics, optional
        With ``recorded``: the metrics found.

    Attributes
    ----------
    metrics : Metrics
        Of the first scenario, those of `simdp.results.metrics.times`.
    repeats : bool
        Whether scenarios that differ only in times are replayed, at almost no cost.
    """

    def __init__(
        self,
        scenario: Scenario,
        recorded: RecordedScript | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self.scenario, self._recorded = scenario, recorded or RecordedScript()
        self._costs: Costs | None = None
        foreseen: Collection[str] = ()
        if recorded is not None and metrics is not None:
            self.metrics, self._times = metrics, common_to(scenario).times
        else:
            trace = TraceBuilder()
            run = play(scenario, trace, listen=self._recorded.listen).run
            samples = [record.samples for record in run.numbers.records]
            self.metrics = times(trace.build(), run.world_size, len(samples), samples)
            self._times, foreseen = run.times, run.program.facts.foreseen
            self._costs = run.costs
        self._foresees = bool(foreseen)
        self.repeats = (
            scenario.collectives.all_timed
            and not scenario.strategy.has_server
            and "collectives" not in foreseen
            and self._recorded.is_timed
            and not scenario.strategy.num_late
            and not Slowdown(scenario.cluster, scenario.seed).has_stops
            and not any(
                isinstance(straggler, DegradedLink) and straggler.comes_and_goes()
                for straggler in scenario.cluster.stragglers
            )
        )
        if self.repeats:
            self._recorded.forget_setup()
        self._repeats_on_others = (
            self.repeats
            and not foreseen
            and self._recorded.knows_origins
            and scenario.strategy.has_synchronous_ranks
            and scenario.workload.rebalance is None
        )

    def step_times(self, others: Sequence[Scenario]) -> list[float]:
        """Simulated time of a steady step of each scenario, up to rounding [s]."""
        charged = [other for other in others if self._differs_in_times(other)]
        moved = [other for other in others if self._differs_in_devices(other)]
        times = dict[int, float]()
        if charged:
            ends = self._recorded.step_ends(self.scenario, charged)
            times = {
                id(scenario): steady_step_time(ends[:, i].T) for i, scenario in enumerate(charged)
            }
        if moved:
            times |= zip(map(id, moved), self._on_devices(moved), strict=True)
        return [
            times[id(scenario)] if id(scenario) in times else self._played(scenario)
            for scenario in others
        ]

    def _on_devices(self, others: Sequence[Scenario]) -> list[float]:
        """Step times on other devices [s]."""
        if not self._is_periodic:
            ends = self._recorded.step_ends(self.scenario, others, self._devices)
            return [steady_step_time(ends[:, i].T) for i in range(len(others))]
        times = [
            watch.step_times(
                [with_work_of(scenario, watch.scenario.workload) for scenario in others]
            )
            for watch in self._shorter
        ]
        return [self._extrapolated(*both) for both in zip(*times, strict=True)]

    @cached_property
    def _devices(self) -> WorkOnDevices:
        """Times of the recorded work on other devices."""
        costs = self._costs
        if costs is None:  # the script was recorded in a run that is gone
            costs = play(self.scenario, TraceBuilder(keep=False)).run.costs
        return WorkOnDevices(self._recorded.works, self.scenario, costs)

    @cached_property
    def _shorter(self) -> list[Stopwatch]:
        """Stopwatches of a few micro-steps."""
        return [
            Stopwatch(self.scenario.model_copy(update={"workload": workload}))
            for workload in self._few
        ]

    def _played(self, other: Scenario) -> float:
        known = self._times if self._computes_alike(other) else None
        if self._is_periodic and other.workload is self.scenario.workload:
            return self._continued(other, known)
        return self._of_steps(other, known)

    @cached_property
    def _few(self) -> list[Workload]:
        """The workload with a few of its micro-steps, if it has many equal ones."""
        workload = self.scenario.workload
        accumulated = workload.grad_accum
        if not isinstance(accumulated, int) or accumulated < WORTH_IT:
            return []
        if workload.global_batch is not None or self.scenario.numerics:
            return []
        return [workload.model_copy(update={"grad_accum": few}) for few in MICRO_STEPS]

    @cached_property
    def _is_periodic(self) -> bool:
        """Whether the first scenario's step time follows from a few micro-steps."""
        if not self._few:
            return False
        step = self.metrics.step_time_s
        return bool(abs(self._continued(self.scenario, self._times) - step) <= ALIKE * step)

    def _continued(self, other: Scenario, known: Times | None) -> float:
        """Step time extrapolated from a few micro-steps [s]."""
        shorter = [other.model_copy(update={"workload": workload}) for workload in self._few]
        before, after = (self._of_steps(workload, known) for workload in shorter)
        return self._extrapolated(before, after)

    def _extrapolated(self, before: float, after: float) -> float:
        """Step time from those of `MICRO_STEPS` [s]."""
        more = self.scenario.workload.grad_accum
        assert isinstance(more, int)
        return after + (more - MICRO_STEPS[-1]) * (after - before)

    def _of_steps(self, other: Scenario, known: Times | None) -> float:
        ends = StepEnds(other.cluster.world_size)
        play(other, TraceBuilder(keep=False, ends=ends), times=known, listen=iter)
        return steady_step_time(ends.ends())

    def _computes_alike(self, other: Scenario) -> bool:
        """Whether another scenario computes the same on the same devices."""
        a, b = self.scenario.cluster, other.cluster
        return self.scenario.workload is other.workload and all(
            getattr(a, key) == getattr(b, key)
            for key in ("world_size", "local_size", "ranks_per_device", "device")
        )

    def _differs_in_devices(self, other: Scenario) -> bool:
        """Whether another scenario has the same operations, on other devices or measured anew."""
        a, b = self.scenario, other
        if not self._repeats_on_others:
            return False
        differs = a.cluster.device != b.cluster.device
        if a.workload is not b.workload:
            if with_work_of(b, a.workload).workload != b.workload:
                return False
            if not _has_alike_starts(a, b):
                return False
            differs = True
        cluster = b.cluster.model_copy(update={"device": a.cluster.device})
        equal_devices = b.model_copy(update={"cluster": cluster, "workload": a.workload})
        return differs and self._differs_in_times(equal_devices)

    def _differs_in_times(self, other: Scenario) -> bool:
        """Whether another scenario has the same operations, with other durations."""
        a, b = self.scenario, other
        if not self.repeats or not b.collectives.all_timed:
            return False
        if a.workload is not b.workload and not _differs_before_steps(a, b):
            return False
        same = {"cluster": None, "collectives": None, "workload": None}
        if a.model_copy(update=same) != b.model_copy(update=same):
            return False
        cost = {"cost": None}
        if a.collectives.model_copy(update=cost) != b.collectives.model_copy(update=cost):
            return False
        if a.cluster is b.cluster:
            return True
        before, after = a.cluster.overheads, b.cluster.overheads
        if before.hook != after.hook and (self._foresees or not before.hook):
            return False
        beside: dict[str, Any] = {**NETWORK, "stragglers": [], "failures": [], "overheads": None}
        if a.cluster.model_copy(update=beside) != b.cluster.model_copy(update=beside):
            return False
        if before.model_copy(update=CHARGED_ANEW) != after.model_copy(update=CHARGED_ANEW):
            return False
        if wiring_of(b.cluster).inter_bandwidth != wiring_of(a.cluster).inter_bandwidth:
            return False  # a strategy may read this
        stragglers = [*a.cluster.stragglers, *b.cluster.stragglers]
        are_equal = a.cluster.stragglers == b.cluster.stragglers
        return are_equal or all(straggler.by_factors for straggler in stragglers)


def with_work_of(scenario: Scenario, workload: Workload) -> Scenario:
    """A scenario with another workload, whose measured times and host stay."""
    new, old = scenario.workload.compute, workload.compute
    if scenario.workload.host != workload.host:
        workload = workload.model_copy(update={"host": scenario.workload.host})
    are_measured = isinstance(new, FromMeasurements) and isinstance(old, FromMeasurements)
    if are_measured and new is not old:
        workload = workload.model_copy(update={"compute": new})
    return scenario.model_copy(update={"workload": workload})


def _has_alike_starts(a: Scenario, b: Scenario) -> bool:
    """Whether both have host work before their steps, or neither has."""
    waits = [
        scenario.workload.host.before_step(scenario.cluster.local_size) > 0 for scenario in (a, b)
    ]
    return waits[0] == waits[1]


def _differs_before_steps(a: Scenario, b: Scenario) -> bool:
    """Whether workloads differ only in the duration of host work before their steps."""
    hosts = a.workload.host, b.workload.host
    if hosts[0] == hosts[1] or not _has_alike_starts(a, b):
        return False
    before = {"step": hosts[0].step, "per_neighbour": hosts[0].per_neighbour}
    if hosts[1].model_copy(update=before) != hosts[0]:
        return False
    return b.workload.model_copy(update={"host": hosts[0]}) == a.workload
