"""Program of a run: plans of its setup and steps, and quantities derived from their operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from math import inf
from typing import NamedTuple, Protocol

import numpy as np

from simdp.arrays import Ints
from simdp.cluster.hardware import Overheads
from simdp.errors import OperationError, ScenarioError
from simdp.steps.facts import Facts, LayerDtypes, Nominal, Ops, StepContext, longest_period
from simdp.steps.ops import (
    AllGather,
    Batch,
    CollectiveCall,
    FillBucket,
    Free,
    GatherTogether,
    KeepSums,
    NewGroup,
    Op,
    Reduce,
    ReduceScatter,
    ReduceTogether,
    Reserve,
    Select,
    Shard,
    SplitBucket,
    StartOuter,
    Take,
    Unless,
)
from simdp.steps.partition import Group, Partition
from simdp.workload import Workload
from simdp.workload.optimizers.base import Optimizer
from simdp.workload.sampling import START, Participants, Start, StepBatches

Plan = tuple[Op, ...]

NO_OVERHEADS = Overheads()

MAX_PLANS = 64
"""Different steps that are kept; above it, the oldest is dropped."""

LATE = 10**12
"""Number of a step after all initial phases of a strategy."""


class TrainingLoop(Protocol):
    """A training loop; see `simdp.strategies.base.Strategy`."""

    @property
    def kind(self) -> str:
        """Its name in a scenario."""

    @property
    def dtypes(self) -> LayerDtypes:
        """Dtypes that layers get from it."""

    @property
    def num_late(self) -> int:
        """Number of gradients per step that come last and are dropped."""

    def setup(self, facts: Facts) -> Ops:
        """Prepare the ranks."""

    def step(self, facts: Facts, step: StepContext) -> Ops:
        """Yield the operations of one step."""


class ProcessGroups(NamedTuple):
    """Groups of ranks that call the same collectives at the same time, each separately.

    ``ranks`` has shape `(num_groups, group size)`; every participating rank is in one group.
    """

    name: str
    ranks: Ints
    stream: int
    collectives: tuple[str, ...]


def flat(ops: Iterable[Op]) -> Iterator[Op]:
    """Yield every operation, including those in `Unless`."""
    for op in ops:
        yield from flat(op.ops) if isinstance(op, Unless) else (op,)


def _checked(ops: Iterable[Op]) -> Plan:
    """Collect a plan of operations."""
    plan = tuple(ops)
    for kind in dict.fromkeys(map(type, flat(plan))):
        if not issubclass(kind, Op):
            raise OperationError(f"{__name__}.Program", kind)
    return plan


class Program:
    """Operations of a strategy with a workload on a number of ranks.

    ``kinds`` are steps with different numbers of samples on the ranks.
    """

    def __init__(
        self, loop: TrainingLoop, facts: Facts, kinds: Sequence[StepBatches], num_steps: int
    ) -> None:
        self.loop, self.facts = loop, facts
        self._kinds, self._num_steps = kinds, num_steps
        self._plans: list[tuple[StepContext, Plan]] = []

    @classmethod
    def of(
        cls,
        loop: TrainingLoop,
        workload: Workload,
        world_size: int,
        num_samples: int,
        local_size: int | None = None,
        overheads: Overheads = NO_OVERHEADS,
        node_bandwidth: Callable[[], float] = lambda: inf,
        nominal: Nominal | None = None,
        start: Start = START,
        participants: Participants | None = None,
    ) -> Program:
        """Create the program of a run.

        ``num_samples`` is the size of its data set; ``local_size`` defaults to all ranks; other
        arguments are those of `Facts`.
        """
        kinds, num_steps = workload.kinds_of_steps(world_size, num_samples, start)
        local_size = world_size if local_size is None else local_size
        facts = Facts(
            *(workload, world_size, local_size, overheads, node_bandwidth, nominal, loop.dtypes),
            *(participants, loop.num_late),
        )
        if participants is not None:
            kinds = [kind.only(participants.there) for kind in kinds]
        return cls(loop, facts, kinds, num_steps)

    @cached_property
    def setup(self) -> Plan:
        """Operations before the first step."""
        return _checked(self.loop.setup(self.facts))

    def plan(self, number: int, batches: StepBatches) -> Plan:
        """Operations of a step: the same object for steps that cannot differ."""
        step = StepContext(self.facts, number, batches)
        for known, plan in self._plans:
            if step.answers(known.asked):
                return plan
        plan = _checked(self.loop.step(self.facts, step))
        plan = next((known for _, known in self._plans if known == plan), plan)
        if len(self._plans) == MAX_PLANS:
            del self._plans[0]
        self._plans.append((step, plan))
        return plan

    @cached_property
    def plans(self) -> list[Plan]:
        """All different steps of the run."""
        plans: dict[int, Plan] = {}
        waiting, seen = [0, self._num_steps - 1], set[int]()
        while waiting:
            number = waiting.pop()
            if number in seen or not 0 <= number < self._num_steps:
                continue
            seen.add(number)
            for batches in self._kinds:
                plan = self.plan(number, batches)
                plans[id(plan)] = plan
            for step, _ in self._plans:
                waiting += (n for key in step.asked for n in _around(key) if n not in seen)
        return list(plans.values())

    @cached_property
    def steady(self) -> Plan:
        """A full step after all initial phases."""
        return self.plan(LATE, self._kinds[0])

    # Derived quantities -------------------------------------------------------------------------

    @cached_property
    def _ops(self) -> list[Op]:
        return [op for plan in (self.setup, *self.plans) for op in flat(plan)]

    @cached_property
    def called(self) -> list[CollectiveCall]:
        """All collectives of the run, with all sizes."""
        return list(dict.fromkeys(op.called for op in self._ops if op.called is not None))

    @cached_property
    def _announced(self) -> frozenset[tuple[str, int, Group]]:
        return frozenset((called.collective, called.root, called.group) for called in self.called)

    def require(self, called: CollectiveCall, stream: int) -> None:
        """Raise if a collective is in none of the run's `plans`.

        The clock is chosen for the plans; an additional collective might share a link unnoticed.

        Raises
        ------
        ScenarioError
            If it was not announced.
        """
        if (called.collective, called.root, called.group) not in self._announced:
            raise ScenarioError(
                [
                    f"strategy.kind: {self.loop.kind} starts {called.collective} "
                    f"of root {called.root} on stream {stream}, which is in none of its plans; its "
                    "operations may depend only on its facts and on the step's context."
                ]
            )

    @cached_property
    def calls(self) -> list[tuple[str, int]]:
        """Keys and roots of the collectives of all ranks, or of some, without process groups."""
        named = {several.name for several in self.groups}
        calls = [(c.collective, c.root) for c in self.called if c.group not in named]
        return list(dict.fromkeys(calls))

    @cached_property
    def groups(self) -> list[ProcessGroups]:
        """Process groups with collectives of their own."""
        made = [op for op in self.setup if isinstance(op, NewGroup)]
        return [
            ProcessGroups(
                op.name,
                np.array(op.ranks, dtype=np.int64),
                op.stream,
                tuple(dict.fromkeys(c.collective for c in self.called if c.group == op.name)),
            )
            for op in made
        ]

    @cached_property
    def partition(self) -> Partition | None:
        """Distribution of parameters and their states over ranks; None if there is none."""
        return next((op.partition for op in self.setup if isinstance(op, Shard)), None)

    @cached_property
    def outer_optimizer(self) -> Optimizer | None:
        """Optimizer that updates a copy of the weights from their averages, or None."""
        return next((op.optimizer for op in self.setup if isinstance(op, StartOuter)), None)

    @cached_property
    def scatters(self) -> bool:
        """Whether rank 0 scatters the batch of all ranks."""
        return any(isinstance(op, Batch) and op.root is not None for op in self._ops)

    @cached_property
    def bucket_room(self) -> float:
        """Permanent memory of buckets on a device, besides the gradients [bytes]."""
        reserved = sum(op.nbytes for op in self.setup if isinstance(op, Reserve))
        return reserved + max(_room(plan) for plan in (*self.plans, self.steady))

    @cached_property
    def gradients_stay(self) -> bool:
        """Whether gradients are views of buckets, and keep their memory from step to step."""
        return any(isinstance(op, FillBucket) and op.bucket.is_view for op in self._ops)

    @cached_property
    def keeps_errors(self) -> bool:
        """Whether a copy of all gradients' compression errors is kept from step to step."""
        return any(
            (isinstance(op, SplitBucket) and op.factoring.error_feedback)
            or (isinstance(op, Select) and op.selection.error_feedback)
            for op in flat(self.steady)
        )

    @cached_property
    def gathered_elements(self) -> int:
        """Maximum elements of gathered units on a rank at a time, besides its pieces."""
        now, most, dealt = 0, 0, self.partition
        if dealt is None or dealt.kept.weights:
            return 0
        for op in (*self.setup, *flat(self.steady)):
            if isinstance(op, AllGather) and op.unit is not None:
                now += dealt.unit_elements(op.unit)
            elif isinstance(op, GatherTogether):
                now += sum(map(dealt.unit_elements, op.units))
            elif isinstance(op, Free):
                now -= dealt.unit_elements(op.unit)
            most = max(most, now)
        return most

    @cached_property
    def bucket_nbytes(self) -> list[int]:
        """Bytes of each bucket of gradients in a steady micro-step, in the order of launch."""
        nbytes: list[int] = []
        for op in flat(self.steady):
            if isinstance(op, Batch):
                nbytes = []
            elif isinstance(op, Take | Reduce | ReduceScatter | ReduceTogether | KeepSums):
                nbytes.append(int(op.bucket.nbytes))
        return nbytes


def _around(key: tuple[object, ...]) -> list[int]:
    """Numbers of steps at which an answer may change."""
    match key:
        case ("earlier", int(number)):
            return [number - 1, number]
        case ("last_of_period", int(length), int(since)):
            return [since + length - 2, since + length - 1, since + length]
        case ("longest_of_periods", tuple(lengths), int(since), int(first)):
            return _one_of_each(lengths, since, first)
    return []


@lru_cache(maxsize=16)
def _one_of_each(lengths: tuple[int, ...], since: int, first: int) -> list[int]:
    """First step that ends each period as the longest one; and one that ends none."""
    numbers = [first]
    for length in (*lengths, None):
        by = length or 1
        number = first + (since - 1 - first) % by
        longer = length is not None or lengths[0] > 1
        while longer and longest_period(number, lengths, since) != length:
            number += by
        numbers.append(number)
    return numbers


def _room(plan: Plan) -> float:
    """Permanent memory of a step's buckets, in its fullest micro-step [bytes]."""
    most, here = 0.0, dict[tuple[str, ...], float]()
    latest = None
    for op in flat(plan):
        if isinstance(op, Batch):
            here, latest = {}, None
        elif isinstance(op, FillBucket) and op.bucket is not latest:  # its names are hashed once
            latest = op.bucket
            here[latest.names] = latest.room
            most = max(most, sum(here.values()))
    return most
