"""Records: what every reader of numbers tells of a step, and what it must know for that."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from simdp.arrays import Array, Floats
from simdp.engine.record import StepRecord
from simdp.engine.replicas import Replicas
from simdp.engine.state import State
from simdp.results.trace import SETUP
from simdp.scenario import Scenario
from simdp.steps.ops import Op
from simdp.steps.program import Program
from simdp.workload.faults import Fault
from simdp.workload.sampling import StepBatches
from simdp.workload.schedules.base import Progress


class Stepping(NamedTuple):
    """What an update came to.

    Attributes
    ----------
    active, taken : ndarray, shape `(world_size,)`
        1 for ranks whose optimizer had a turn, and for those whose weights it changed.
    """

    active: Floats
    taken: Floats


class Records(ABC):
    """A reader that says what became of the numbers.

    Parameters
    ----------
    scenario : Scenario
        One point.
    program : Program
        What it reads.

    Attributes
    ----------
    records : list of StepRecord
        One per finished step.
    replicas : Replicas or None
        Every rank's weights, gradients and optimizer state, if there are any.
    outputs : list of list of ndarray
        Of each step of inference: of each rank, or of all together.
    log : list
        Updates that did not reach every rank that took part, as the step and these ranks.
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
        """Begin a step, with who trains on what."""
        self._step, self._batches = step, batches

    @abstractmethod
    def read(self, op: Op) -> Stepping | None:
        """Do what an operation says; tell what an update came to."""

    def end(self) -> None:
        """End a step; one in which nothing was learned is taken down here."""
        if self._infers:
            samples = int(self._batches.sizes.sum())
            self.records.append(StepRecord(samples, None, None, None, None, None, None))

    def state_dict(self) -> dict[str, Array]:
        """What is kept from step to step, by rank and name."""
        return {
            f"outputs/{step}/{place}": output
            for step, several in enumerate(self.outputs)
            for place, output in enumerate(several)
        }

    def load_state_dict(self, state: State) -> None:
        """Go on from where a run stopped.

        Raises
        ------
        ScenarioError
            If the state has not what this keeps, with the first difference.
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
        """Whether an inf or nan kept the last update from changing anything."""
        return bool(self.records and self.records[-1].skipped)

    def _progress(self) -> Progress:
        """Where the run is, for the schedule of the learning rate."""
        return Progress(self._step + 1, self._batches.epoch)

    def _faults(self) -> list[Fault]:
        """What goes wrong in the step."""
        inject = self._workload.inject
        found = [fault for fault in inject if fault.happens(self._step + 1, self._world_size)]
        if (who := self._batches.participants) is not None:
            return [fault for fault in found if who.counted[fault.rank]]
        if not self._scenario.strategy.one_process:
            return found
        there = self._batches.sizes[0] > 0  # a device that gets nothing has no gradients
        return [fault for fault in found if there[fault.rank]]

    def _there(self, active: Sequence[bool] | None) -> Floats:
        return np.ones(self._world_size) if active is None else np.array(active, dtype=float)

    def _stepped(self, active: Floats, taken: Floats, **told: Any) -> Stepping:
        """Take a step down."""
        workload, samples = self._workload, int(self._batches.sizes.sum())
        lr = workload.learning_rate(workload.optimizer.lr, self._progress(), self._world_size)
        skipped = bool((taken < active).any()) if self._has_loss_scale else None
        found = {"loss": None, "loss_per_rank": None, "grad_norm": None, "loss_scale": None} | told
        self.records.append(StepRecord(samples=samples, lr=lr, skipped=skipped, **found))
        if skipped:
            self.log.append([self._step, np.flatnonzero(taken < active).tolist()])
        return Stepping(active, taken)
