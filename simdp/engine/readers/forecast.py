"""Forecast: what is known of the numbers without computing any, under ``numerics: false``."""

from __future__ import annotations

import numpy as np

from simdp.arrays import Floats, Ints
from simdp.engine.readers.records import Records, Stepping
from simdp.scenario import Scenario
from simdp.steps.one_process import TakeSums
from simdp.steps.ops import AllReduce, Op, ReduceScatter, Take, Update
from simdp.steps.program import Program
from simdp.workload.sampling import StepBatches


class Forecast(Records):
    """Knows which updates injected faults will keep from changing anything."""

    def __init__(self, scenario: Scenario, program: Program) -> None:
        super().__init__(scenario, program)
        self._is_shared = False
        self._known = {several.name: several.ranks for several in program.groups}
        self._groups: Ints | None = None

    def begin(self, step: int, batches: StepBatches) -> None:
        super().begin(step, batches)
        self._is_shared, self._groups = False, None

    def read(self, op: Op) -> Stepping | None:
        if isinstance(op, AllReduce) and op.bucket is not None:
            self._groups = self._known.get(op.group) if isinstance(op.group, str) else None
        elif isinstance(op, Take | ReduceScatter | TakeSums):
            self._is_shared = True  # what is wrong with one rank's gradients now is with all
        elif isinstance(op, Update):
            active = self._there(op.active)
            fine = self._without_fault() if self._has_loss_scale else 1.0
            return self._stepped(active, active * fine)
        return None

    def _without_fault(self) -> Floats:
        """1 for ranks whose gradients are finite."""
        fine, faults = np.ones(self._world_size), self._faults()
        if faults:
            wrong = [fault.rank for fault in faults]
            if self._is_shared and self._groups is not None:  # of its process group
                wrong = self._groups[np.isin(self._groups, wrong).any(axis=1)].ravel().tolist()
            elif self._is_shared:
                wrong = [*range(self._world_size)]
            fine[wrong] = 0.0
        return fine
