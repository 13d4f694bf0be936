"""Interprets operations as records of steps, restored or predicted; shapes of micro-batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from simdp.arrays import Array, Floats, Ints
from simdp.engine.replicas import Replicas
from simdp.engine.samples import BatchSamples
from simdp.engine.state import State
from simdp.results.metrics import Squares, StepRecord
from simdp.results.trace import SETUP
from simdp.scenario.root import Scenario
from simdp.steps.ops import (
    AllReduce,
    Concern,
    Handlers,
    Op,
    ReduceScatter,
    Take,
    TakeSums,
    Update,
)
from simdp.steps.program import Program
from simdp.strategies.memory import INTEGER_ITEMSIZE
from simdp.workload.execution import call_dtypes
from simdp.workload.faults import Fault
from simdp.workload.layers.base import Shape
from simdp.workload.precision import numpy_dtype
from simdp.workload.sampling import StepBatches
from simdp.workload.schedules.base import Progress


class Stepping(NamedTuple):
    """Ranks that ran their optimizer, and ranks with changed weights: 1 each, else 0."""

    active: Floats
    taken: Floats


class RecordsInterpreter(ABC):
    """Interprets operations as records of steps.

    Attributes
    ----------
    records : list of StepRecord
        One per finished step.
    replicas : Replicas or None
        Every rank's weights, gradients and optimizer state, if numbers are computed.
    outputs : list of list of ndarray
        Outputs of each step of inference, per rank or of all together.
    log : list
        Skipped updates: the step, and the participating ranks that skipped it.
    """

    def __init__(self, scenario: Scenario, program: Program) -> None:
        self._scenario, self._workload = scenario, scenario.workload
        self._world_size = scenario.cluster.world_size
        self._infers = program.facts.is_inference
        self._has_loss_scale = self._workload.precision.scaler() is not None
        self.records: list[StepRecord] = []
        self.replicas: Replicas | None = None
        self.outputs: list[list[Array]] = []
        self.log: list[Any] = []
        self._step = SETUP
        self._batches = StepBatches([], np.zeros((0, self._world_size), dtype=np.int64))

    def begin(self, step: int, batches: StepBatches) -> None:
        """Begin a step with its batches."""
        self._step, self._batches = step, batches

    @abstractmethod
    def read(self, op: Op) -> Stepping | None:
        """Execute an operation; return the effect of an update."""

    def end(self) -> None:
        """End a step, and record it if it was inference."""
        if self._infers:
            samples = int(self._batches.sizes.sum())
            self.records.append(StepRecord(samples, None, None, None, None, None, None))

    def state_dict(self) -> dict[str, Array]:
        """Arrays that are kept from step to step, by rank and name."""
        return {
            f"outputs/{step}/{place}": output
            for step, several in enumerate(self.outputs)
            for place, output in enumerate(several)
        }

    def load_state_dict(self, state: State) -> None:
        """Continue from the state of a stopped run.

        Raises
        ------
        ScenarioError
            If the state does not match this run, with the first difference.
        """
        self.records, self.log = list(state.records), list(state.log)
        self.outputs = []
        for name, output in state.arrays.items():
            where, *place = name.split("/")
            if where == "outputs":
                step = int(place[0])
                self.outputs += [[] for _ in range(step + 1 - len(self.outputs))]
                self.outputs[step].append(output)

    @property
    def is_skipped(self) -> bool:
        """Whether an inf or nan prevented the last update."""
        return bool(self.records and self.records[-1].skipped)

    def _progress(self) -> Progress:
        """Progress of the run, for the learning rate schedule."""
        return Progress(self._step + 1, self._batches.epoch)

    def _faults(self) -> list[Fault]:
        """Injected faults of the step."""
        inject = self._workload.inject
        faults = [fault for fault in inject if fault.happens(self._step + 1, self._world_size)]
        if (who := self._batches.participants) is not None:
            return [fault for fault in faults if who.counted[fault.rank]]
        if not self._scenario.strategy.in_one_process:
            return faults
        there = self._batches.sizes[0] > 0  # a device that gets nothing has no gradients
        return [fault for fault in faults if there[fault.rank]]

    def _there(self, active: Sequence[bool] | None) -> Floats:
        return np.ones(self._world_size) if active is None else np.array(active, dtype=float)

    def _stepped(
        self,
        active: Floats,
        taken: Floats,
        loss: float | None = None,
        loss_per_rank: list[float | None] | None = None,
        grad_norm: float | None = None,
        loss_scale: float | None = None,
        squares: Squares | None = None,
    ) -> Stepping:
        """Record a step."""
        workload, samples = self._workload, int(self._batches.sizes.sum())
        lr = workload.learning_rate(workload.optimizer.lr, self._progress(), self._world_size)
        skipped = bool((taken < active).any()) if self._has_loss_scale else None
        record = (loss, loss_per_rank, lr, grad_norm, loss_scale, skipped, squares)
        self.records.append(StepRecord(samples, *record))
        if skipped:
            self.log.append([self._step, np.flatnonzero(taken < active).tolist()])
        return Stepping(active, taken)


class Past(RecordsInterpreter):
    """Replays records of steps before a run stopped."""

    def __init__(self, scenario: Scenario, program: Program, state: State) -> None:
        super().__init__(scenario, program)
        self._state = state
        self._skipping = {int(step): list(ranks) for step, ranks in state.log}

    def read(self, op: Op) -> Stepping | None:
        return self._update(op) if isinstance(op, Update) else None

    def _update(self, op: Update) -> Stepping:
        self.records.append(self._state.records[self._step])
        active = self._there(op.active)
        taken = active.copy()
        taken[np.array(self._skipping.get(self._step, []), dtype=np.int64)] = 0.0
        return Stepping(active, taken)


class Shapes:
    """Sizes of inputs, targets and outputs of a micro-batch, padded to its longest sample."""

    def __init__(self, scenario: Scenario, samples: BatchSamples, has_loss: bool) -> None:
        self._workload, self._samples, self.has_loss = scenario.workload, samples, has_loss
        self._batches: StepBatches | None = None

    def begin(self, batches: StepBatches) -> None:
        """Begin a step with its batches."""
        self._batches = batches

    def _of_values(self, micro: int) -> list[Shape]:
        """Shape of every value of the model, per sample; the same on all ranks."""
        assert self._batches is not None, "a step begins with its batches"
        parts = self._batches.micro[micro]
        shapes, which = self._samples.shapes(parts)
        return self._workload.graph.shapes(shapes[which[int(np.argmax(parts.sizes))]])

    def nbytes_of(self, name: str, micro: int) -> float:
        """Bytes of a sample of an input; or of its target, under the name ``y``."""
        workload, graph = self._workload, self._workload.graph
        shapes = self._of_values(micro)
        if name in graph.inputs:
            is_tokens = workload.model.num_tokens(name) is not None
            itemsize = INTEGER_ITEMSIZE if is_tokens else workload.itemsize
            return float(prod(shapes[graph.inputs.index(name)]) * itemsize)
        shape = workload.loss.target_shape(shapes[graph.outputs[0][0]])
        itemsize = INTEGER_ITEMSIZE if workload.loss.of_classes else workload.itemsize
        return float(prod(shape) * itemsize)

    def gathered(self, micro: int, losses: bool) -> tuple[tuple[int, ...], float]:
        """Number of gathered outputs or losses of each rank, and bytes of all."""
        assert self._batches is not None, "a step begins with its batches"
        sizes = self._batches.sizes[micro]
        if losses:
            there = sizes > 0
            return tuple(there.astype(int).tolist()), float(there.sum() * self._workload.itemsize)
        return tuple(sizes.tolist()), float(sizes.sum() * self.output_nbytes(micro))

    def output_nbytes(self, micro: int) -> float:
        """Bytes of the model's outputs per sample; 0 if unknown."""
        workload, graph = self._workload, self._workload.graph
        if workload.model.timed:
            return 0.0
        shapes, first = self._of_values(micro), len(graph.inputs)
        ran = call_dtypes(graph, workload.precision, workload.dtype)
        return float(
            sum(
                prod(shapes[value]) * numpy_dtype(ran[value - first]).itemsize
                for value, _ in graph.outputs
            )
        )


class Forecast(RecordsInterpreter):
    """Predicts the updates that injected faults skip."""

    handlers = Handlers[Callable[[Any, Any], Stepping | None]](Concern.FAULTS)

    def __init__(self, scenario: Scenario, program: Program) -> None:
        super().__init__(scenario, program)
        self._is_shared = False
        self._known = {several.name: several.ranks for several in program.groups}
        self._groups: Ints | None = None

    def begin(self, step: int, batches: StepBatches) -> None:
        super().begin(step, batches)
        self._is_shared, self._groups = False, None

    def read(self, op: Op) -> Stepping | None:
        handler = self.handlers[type(op)]
        return None if handler is None else handler(self, op)

    @handlers(AllReduce)
    def _all_reduce(self, op: AllReduce) -> None:
        if op.bucket is not None:
            self._groups = self._known.get(op.group) if isinstance(op.group, str) else None

    @handlers(Take, ReduceScatter, TakeSums)
    def _share(self, op: Take | ReduceScatter | TakeSums) -> None:
        self._is_shared = True  # a fault of one rank's gradients now affects all

    @handlers(Update)
    def _update(self, op: Update) -> Stepping:
        active = self._there(op.active)
        fine = self._without_fault() if self._has_loss_scale else 1.0
        return self._stepped(active, active * fine)

    def _without_fault(self) -> Floats:
        """1 for ranks with finite gradients."""
        fine, faults = np.ones(self._world_size), self._faults()
        if faults:
            wrong = [fault.rank for fault in faults]
            if self._is_shared and self._groups is not None:  # of its process group
                wrong = self._groups[np.isin(self._groups, wrong).any(axis=1)].ravel().tolist()
            elif self._is_shared:
                wrong = [*range(self._world_size)]
            fine[wrong] = 0.0
        return fine
