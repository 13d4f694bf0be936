"""Past: numbers that sleep, since a state knows what became of them."""

from __future__ import annotations

import numpy as np

from simdp.engine.readers.records import Records, Stepping
from simdp.engine.state import State
from simdp.scenario import Scenario
from simdp.steps.ops import Op, Update
from simdp.steps.program import Program


class Past(Records):
    """Tells of steps that were done before a run stopped.

    Parameters
    ----------
    scenario, program
        As of `Records`.
    state : State
        Where it stopped.
    """

    def __init__(self, scenario: Scenario, program: Program, state: State) -> None:
        super().__init__(scenario, program)
        self._state = state
        self._skipping = {int(step): list(ranks) for step, ranks in state.log}

    def read(self, op: Op) -> Stepping | None:
        if not isinstance(op, Update):
            return None
        self.records.append(self._state.records[self._step])
        active = self._there(op.active)
        taken = active.copy()
        taken[np.array(self._skipping.get(self._step, []), dtype=np.int64)] = 0.0
        return Stepping(active, taken)
