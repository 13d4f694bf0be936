"""Run all ranks of one scenario: each step's operations become numbers, memory and clock work."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from simdp.arrays import Floats
from simdp.engine.clocks.clock import Clock
from simdp.engine.collective import Launcher, Planner
from simdp.engine.compute.profile_times import Times, times_of
from simdp.engine.compute.roofline import roofline_of
from simdp.engine.interpreters.costs import Costs, WorkPiece
from simdp.engine.interpreters.footprints import Amount
from simdp.engine.interpreters.memory import OBSERVED_STEPS, MemoryInterpreter
from simdp.engine.interpreters.numbers import Numbers
from simdp.engine.interpreters.records import Forecast, Past, RecordsInterpreter, Shapes
from simdp.engine.network.traffic import Traffic
from simdp.engine.ops import ClockBarrier, ClockOp, ComputeWork, FusedWork, MemoryChange
from simdp.engine.samples import BatchSamples
from simdp.engine.slowdown import Slowdown
from simdp.engine.state import WHOLE, Segment, State
from simdp.job.targets import LossReached
from simdp.results.trace import SETUP
from simdp.scenario.root import Scenario
from simdp.steps import ops
from simdp.steps.facts import Facts
from simdp.steps.program import Program, flat
from simdp.workload.sampling import START, Participants, Start, StepBatches


class Backups:
    """Drops the ranks with the longest forward and backward (backup workers).

    Ranks are ordered by compute time with stragglers, without waiting for input or other ranks, so
    the dropped ranks are known before the step and do not depend on the clock.
    """

    def __init__(
        self, num_late: int, times: Times, samples: BatchSamples, facts: Facts, slowdown: Slowdown
    ) -> None:
        self._num_late, self._times, self._samples = num_late, times, samples
        self._facts, self._slowdown = facts, slowdown

    def of(self, step: int, batches: StepBatches) -> Participants:
        """Select the ranks that finish their gradients first; ties: the lower ranks.

        A rank without samples sends nothing; ranks with samples are selected before it.
        """
        n = self._facts.world_size
        there = batches.sizes.sum(axis=0) > 0
        seconds = self._seconds(batches) * self._slowdown.factors(step) + self._slowdown.lost(step)
        order = np.lexsort((np.arange(n), seconds, ~there))
        first = order[: min(n - self._num_late, max(int(there.sum()), 1))]
        dropped = np.setdiff1d(np.flatnonzero(there), first)
        return Participants.without(n, "late", dropped.tolist())

    def _seconds(self, batches: StepBatches) -> Floats:
        """Forward and backward time of a step on each rank, without stragglers [s]."""
        facts, total = self._facts, np.zeros(self._facts.world_size)
        calls, again = range(len(facts.graph.calls)), facts.recomputed
        for parts in batches.micro:
            shapes = self._samples.shapes(parts)
            for activity in ("forward", "backward", *["tail"] * bool(facts.tails)):
                columns = self._times.seconds(activity, parts.sizes, *shapes)
                rows = columns.seconds.sum(axis=0)
                if activity == "forward":
                    rows = rows + sum(
                        columns.seconds[inside] for call in calls for inside in again.get(call, ())
                    )
                total += rows[columns.column] if len(rows) > 1 else rows
        return total


class NominalTimes:
    """Times without contention, by which a few strategies sort gradients.

    Implements `simdp.steps.facts.Nominal`.
    """

    def __init__(
        self, times: Times, samples: BatchSamples, facts: Facts, launcher: Launcher
    ) -> None:
        self._times, self._samples, self._facts = times, samples, facts
        self._launcher = launcher

    def all_reduce_seconds(self, nbytes: float) -> float:
        """Time of an all_reduce that all ranks enter at the same instant [s]."""
        return self._launcher.predicted("all_reduce", nbytes)

    def ready_times(self, batches: StepBatches, micro: int) -> list[float]:
        """Ready times of gradients from the start of backward, on the slowest device [s]."""
        parts, facts, hook = batches.micro[micro], self._facts, self._facts.overheads.hook
        shapes, graph = self._samples.looked_at(parts), facts.graph

        def slowest(activity: str) -> list[float]:
            seconds = self._times.seconds(activity, parts.sizes, *shapes).seconds
            slowest_rank: list[float] = seconds.max(axis=1).tolist()
            return slowest_rank

        calls, of_calls = range(len(graph.calls)), slowest("backward")
        again = np.array(slowest("forward") if facts.recomputed else of_calls)
        tails = slowest("tail") if facts.tails else [0.0] * len(of_calls)
        clock, ready = of_calls[-1] if len(of_calls) > len(calls) else 0.0, list[float]()
        for number in reversed(calls):
            clock += float(again[list(facts.recomputed.get(number, ()))].sum())
            clock += of_calls[number]
            for _ in graph.ready_at[number]:
                clock += hook
                ready.append(clock)
            clock += tails[number]
        return ready


@dataclass(frozen=True)
class RunMode:
    """Parts of a run that are computed besides its times."""

    follows_memory: bool = True
    """Whether memory is followed in the first steps."""
    shows_memory: bool = True
    """Whether changes of memory go to the clock for timestamps."""
    is_quick: bool = False
    """Whether to compute timing only: work comes in pieces, and transfers have no spans."""


def program_of(
    scenario: Scenario, planner: Planner, times: Times, samples: BatchSamples, segment: Segment
) -> Program:
    """Create the program of a segment; a strategy may order gradients by nominal times."""
    program, participants = scenario.program, segment.participants
    if segment.start != START or participants is not None:
        program = scenario.program_with(None, segment.start, participants)
    if not program.facts.foreseen:
        return program
    launcher = Launcher(scenario.collectives, planner, program.groups)
    nominal = NominalTimes(times, samples, program.facts, launcher)
    return scenario.program_with(nominal, segment.start, participants)


EVERYTHING = RunMode()


class Run:
    """Runs a scenario's ranks: applies each operation to numbers, memory and time.

    ``times`` are compute times of a run with the same workload and devices, to reuse.

    Attributes
    ----------
    program, launcher
        Operations of the setup and of each step; starts collectives.
    numbers, memory, costs
        Interpreters: weights, gradients and losses; allocations; work for the clock.
    dropped : ndarray, shape `(world_size,)`, int64
        Number of samples of each rank that did not count.
    """

    def __init__(
        self,
        scenario: Scenario,
        slowdown: Slowdown,
        planner: Planner,
        times: Times | None = None,
        segment: Segment = WHOLE,
        mode: RunMode = EVERYTHING,
    ) -> None:
        self.scenario, self.slowdown, self._mode = scenario, slowdown, mode
        self._segment, self._dealt = segment, segment.start
        workload, cluster = scenario.workload, scenario.cluster
        self._num_samples = workload.num_samples(scenario.base)
        self.roofline = roofline_of(cluster)
        self.times = times or times_of(workload, scenario.strategy, self.roofline)
        self.samples = BatchSamples(scenario)
        self._shapes = Shapes(
            scenario, self.samples, len(self.times.names) > len(workload.graph.calls)
        )
        self.program = program_of(scenario, planner, self.times, self.samples, segment)
        self.launcher = Launcher(
            scenario.collectives, planner, self.program.groups, shows_transfers=not mode.is_quick
        )
        self.memory = MemoryInterpreter(scenario, self.program, self._shapes)
        self.costs = Costs(
            scenario,
            self.program,
            slowdown,
            self.launcher,
            self.times,
            self.roofline,
            self.samples,
            self.memory.footprint,
            self._shapes,
        )
        self._step = SETUP
        self._backups: Backups | None = None
        if num_late := scenario.strategy.num_late:
            facts = self.program.facts
            self._backups = Backups(num_late, self.times, self.samples, facts, slowdown)
        self._participants: Participants | None = None
        self.dropped = np.zeros(self.world_size, dtype=np.int64)

    @cached_property
    def numbers(self) -> RecordsInterpreter:
        """Interpreter of numbers; initial weights are drawn on first use."""
        if self._segment.past is not None:
            return Past(self.scenario, self.program, self._segment.past)
        return self._awake()

    def _awake(self) -> RecordsInterpreter:
        if self.scenario.numerics:
            return Numbers(self.scenario, self.program, self.launcher, self.samples)
        return Forecast(self.scenario, self.program)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.scenario.cluster.world_size

    def script(self, progress: Callable[[int], None] | None = None) -> Iterator[ClockOp]:
        """Yield the clock operations of the setup and every step."""
        workload, segment = self.scenario.workload, self._segment
        if segment.first and segment.past is not None:
            before = np.full(self.world_size, segment.past.clock)
            yield ComputeWork(SETUP, "host", "earlier segments", before)
        yield from self.setup()
        seed, base = self.scenario.seed, self.scenario.base
        batches = workload.batches(
            self.world_size, seed, base, segment.start, self.samples.has_indices
        )
        for step, step_batches in enumerate(batches, segment.first):
            if step == segment.stop_after:
                break
            play = self.quick_step if self._mode.is_quick else self.step
            yield from play(step, step_batches)
            self._count(step_batches)
            if progress is not None:
                progress(step + 1)
            if self._is_there():
                break

    def _is_there(self) -> bool:
        """Whether the target loss is reached."""
        target = self.scenario.target
        if not isinstance(target, LossReached) or not self.scenario.numerics:
            return False
        return target.is_reached([record.loss for record in self.numbers.records[-target.window :]])

    def _count(self, batches: StepBatches) -> None:
        """Advance the position in the data by one step."""
        epoch, dealt, num_steps = self._upcoming(self._dealt)
        if self._num_samples:
            dealt += int(batches.sizes.sum())
        self._dealt = self._upcoming(Start(epoch, dealt, num_steps + 1))

    def _upcoming(self, start: Start) -> Start:
        least = self.scenario.workload.least_left(self.world_size)
        return start.upcoming(self._num_samples, least)

    def state(self, clock: float) -> State:
        """Return the state to resume from, ``clock`` seconds after the start."""
        numbers = self.numbers
        return State(
            scenario=self.scenario.resolved(),
            num_steps=len(numbers.records),
            start=self._dealt,
            clock=clock,
            records=numbers.records,
            log=numbers.log,
            arrays=numbers.state_dict(),
            is_whole=self._segment.is_whole,
        )

    def setup(self) -> Iterator[ClockOp]:
        """Yield the operations before the first step."""
        yield from self._held(self.memory.model())
        segment = self._segment
        are_alive = segment.past is not None and segment.participants is not None
        for op in self.program.setup:
            if not (are_alive and op.called):  # models were synchronised in an earlier segment
                yield from self._read(op)
        yield from self._held(self.memory.buckets())
        if self.launcher.num_calls:  # collectives end at different times on the ranks
            yield ClockBarrier(SETUP)

    def step(self, step: int, batches: StepBatches) -> Iterator[ClockOp]:
        """Yield the clock operations of one step."""
        shown = self._step = step - self._segment.first
        past = self._segment.past
        if past is not None and step == past.num_steps:
            self.numbers = self._awake()
            self.numbers.load_state_dict(past)
        batches = self._begin(step, shown, batches)
        yield from self._left(self.costs.begin(step, shown, batches))
        for op in self.program.plan(step, batches):
            yield from self._read(op)
        self.numbers.end()

    def quick_step(self, step: int, batches: StepBatches) -> Iterator[ClockOp]:
        """Yield one step's operations for timing only: work in pieces, without memory."""
        batches = self._begin(step, step, batches)
        yield from self._left(self.costs.begin(step, step, batches))
        plan = self.program.plan(step, batches)
        for part in self.costs.rehearsed(plan):
            if isinstance(part, WorkPiece):
                yield from self._left([self.costs.charged(part)])
            else:
                yield from self._read(part)
        self.numbers.end()

    def _begin(self, step: int, shown: int, batches: StepBatches) -> StepBatches:
        """Pass a step's batches to the interpreters; return those of participating ranks."""
        who = self._segment.participants
        if self._backups is not None:
            who = self._backups.of(step, batches)
        self._participants, learned = who, batches
        if who is not None:
            learned = replace(batches.only(who.counted), participants=who)
            self.dropped += (batches.sizes - learned.sizes).sum(axis=0)
            batches = replace(batches.only(who.there), participants=who)
        self._shapes.begin(batches)
        self.numbers.begin(step, learned)
        self.memory.begin(shown, batches)
        return batches

    def _left(self, cost: Iterable[ClockOp]) -> Iterable[ClockOp]:
        """Restrict costs to the participating ranks."""
        who = self._participants
        return cost if who is None else (_of(who, op) for op in cost)

    def _read(self, op: ops.Op) -> Generator[ClockOp, None, None]:
        if isinstance(op, ops.Unless):
            for inner in op.ops if not self.numbers.is_skipped else ():
                yield from self._read(inner)
            return
        stepping = self.numbers.read(op)
        if not (
            self._mode.follows_memory and self.memory.is_observed
        ):  # skips two generators per operation in long runs
            yield from self._left(self.costs.read(op, stepping))
            return
        yield from self._held(self.memory.before(op))
        yield from self._left(self.costs.read(op, stepping))
        yield from self._held(self.memory.after(op))

    def _held(self, taken: Iterable[tuple[str, Amount]]) -> Iterator[ClockOp]:
        for part, nbytes in taken if self._mode.follows_memory else ():
            if self._mode.shows_memory:
                yield MemoryChange(self._step, part, nbytes)

    def follow_memory(
        self,
        watch: Callable[[ops.Op], None] | None = None,
        is_steady: bool = False,
        num_steps: int = OBSERVED_STEPS,
    ) -> None:
        """Follow memory only, through the setup and some steps.

        ``watch`` is called with every operation before its memory is followed. ``is_steady``:
        follow only the last of the steps, with optimizer state allocated before it.
        """
        memory, program = self.memory, self.program
        for _ in memory.model():
            pass
        self._follow(program.setup, watch)
        for _ in memory.buckets():
            pass
        if is_steady:
            memory.state()
        workload, seed = self.scenario.workload, self.scenario.seed
        has_indices = self.samples.has_indices
        base = self.scenario.base
        batches = workload.batches(self.world_size, seed, base, has_indices=has_indices)
        for step, step_batches in enumerate(islice(batches, num_steps)):
            self._shapes.begin(step_batches)
            memory.begin(step, step_batches)
            if not is_steady or step == num_steps - 1:
                self._follow(program.plan(step, step_batches), watch)

    def _follow(
        self, plan: Iterable[ops.Op], watch: Callable[[ops.Op], None] | None = None
    ) -> None:
        follow = self.memory.follow
        for op in flat(plan):
            if watch is not None:
                watch(op)
            follow(op)


def _of(who: Participants, op: ClockOp) -> ClockOp:
    """Restrict an operation's seconds to the participating ranks."""
    if isinstance(op, ComputeWork):
        return op._replace(seconds=who.seconds(op.seconds))
    return op._replace(seconds=who.seconds(op.seconds)) if isinstance(op, FusedWork) else op


class RunOutput(NamedTuple):
    """Results of a run before their summary; ``server`` as in `simdp.results.result.Result`."""

    run: Run
    clock: Clock
    traffic: Traffic
    server: dict[str, Any] | None = None
