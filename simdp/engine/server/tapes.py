"""Tapes: what a worker does between a pull and a push, as operations that every worker plays.

A run without numbers makes the operations of a step, for all ranks at once; each worker plays its
own part of it when it comes to that step.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import numpy as np

from simdp.engine.ops import Hold, Op, Work
from simdp.engine.readers.units import Taken
from simdp.engine.run import Run
from simdp.results.trace import SETUP
from simdp.steps.ops import Update
from simdp.workload.sampling import StepBatches

T = TypeVar("T")

MAX_TAPES = 16
"""Steps whose operations are kept. Workers that are further apart have them made anew."""


class Tape(NamedTuple):
    """A step of every worker.

    Attributes
    ----------
    work : list of Op
        From the pull to the push.
    before, after : list of Hold
        What an update takes before it begins, and gives back at its end.
    """

    work: list[Op]
    before: list[Hold]
    after: list[Hold]


class Tapes:
    """The steps of a run.

    Parameters
    ----------
    run : Run
        All ranks, without numerics.
    """

    def __init__(self, run: Run) -> None:
        self._run, scenario = run, run.scenario
        workload, n = scenario.workload, run.world_size
        self.num_steps = workload.num_steps(n, scenario.base)
        self._batches = workload.batches(n, scenario.seed, scenario.base)
        self._dealt: dict[int, StepBatches] = {}
        self._num_dealt = 0
        self._kept: dict[int, Tape] = {}
        self.model = _holds(SETUP, run.memory.model())

    def batches(self, step: int) -> StepBatches:
        """Who trains on what in a step."""
        while step >= self._num_dealt:
            self._dealt[self._num_dealt] = next(self._batches)
            self._num_dealt += 1
        return self._dealt[step]

    def tape(self, step: int) -> Tape:
        """What everyone does in a step."""
        if step not in self._kept:
            if len(self._kept) == MAX_TAPES:
                del self._kept[next(iter(self._kept))]
            self._kept[step] = self._made(step)
        return self._kept[step]

    def _made(self, step: int) -> Tape:
        run = self._run
        work = list(run.step(step, self.batches(step)))
        launch = run.scenario.cluster.overheads.launch
        if launch:
            seconds = launch * run.slowdown.factors(step)
            work.append(Work(step, "host", "launch", seconds))
        before = _holds(step, run.memory.before(Update()))
        return Tape(work, before, _holds(step, run.memory.after(Update())))

    def forget(self, step: int) -> None:
        """Forget what no worker will come to any more: all before a step."""
        _drop(self._dealt, step)
        _drop(self._kept, step)


def _holds(step: int, taken: Taken) -> list[Hold]:
    return [Hold(step, part, nbytes) for part, nbytes in taken]


def _drop(kept: dict[int, T], step: int) -> None:
    for number in [number for number in kept if number < step]:
        del kept[number]


def of_rank(hold: Hold, rank: int) -> float:
    """What one rank takes [bytes]."""
    nbytes = hold.nbytes
    return float(nbytes[rank] if isinstance(nbytes, np.ndarray) else nbytes)
