"""Learning: the numbers of workers and of their server. It is told when, and knows no clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from simdp.arrays import Array, Floats
from simdp.engine.by_rank import of_rank
from simdp.engine.readers.records import Records
from simdp.engine.replicas import Replicas
from simdp.engine.samples import Samples
from simdp.engine.state import State
from simdp.engine.trainer import Trainer
from simdp.scenario import Scenario
from simdp.steps.ops import Op
from simdp.steps.program import Program
from simdp.workload.precision.rounding import numpy_dtype
from simdp.workload.sampling import StepBatches
from simdp.workload.schedules.base import Progress


class Losses(NamedTuple):
    """What a worker lost in a step, one value per micro-step.

    Attributes
    ----------
    losses : ndarray, shape `(num_micro,)`
        nan without samples.
    counts : ndarray, shape `(num_micro,)`
        How many things each averages.
    """

    losses: Floats
    counts: Floats


class Learning(Records):
    """Weights and optimizer state of the server; weights, buffers and gradients of the workers.

    What it answers depends on the order in which it is asked, which the clock decides. So where a
    run goes on it answers from the state's log what it was asked before, and then wakes up.

    Parameters
    ----------
    scenario, program
        As of `Records`.
    past : State, optional
        Where the run stopped.
    """

    replicas: Replicas

    def __init__(self, scenario: Scenario, program: Program, past: State | None = None) -> None:
        super().__init__(scenario, program)
        self._past = past
        self._left: dict[int, dict[str, Array]] = {}
        self.replicas = Replicas(scenario, Samples(scenario))
        drawn = self._workload.initial_weights(scenario.seed, 0, scenario.base)
        mine = {name: drawn[name] for name in self.replicas.shapes}
        self._trainer = Trainer(scenario, [mine])
        gradient_dtype = self._workload.precision.gradient_dtype(self._workload.dtype)
        self._wire = numpy_dtype(gradient_dtype)

    def read(self, op: Op) -> None:
        """Do nothing: workers are told one by one when to compute."""

    def state_dict(self) -> dict[str, Array]:
        found = {f"server/{key}": kept for key, kept in self._trainer.state_dict(None).items()}
        for rank, own in enumerate(self.replicas.weights):
            weights = self._left.get(rank, own)
            found |= {f"{rank}/weights/{name}": value for name, value in weights.items()}
        for rank, own in enumerate(self.replicas.buffers):
            found |= {f"{rank}/buffers/{name}": value for name, value in own.items()}
        for rank, own in enumerate(self.replicas.gradients):
            found |= {f"{rank}/gradients/{name}": value for name, value in own.items()}
        return found

    def finish(self, rank: int) -> None:
        """Give a rank the newest weights, which are the result; the state has what it had."""
        self._left[rank] = self.replicas.weights[rank]
        self.replicas.weights[rank] = self._trainer.weights[0]

    def load_state_dict(self, state: State) -> None:
        arrays = state.arrays
        mine = {key[7:]: kept for key, kept in arrays.items() if key.startswith("server/")}
        self._trainer.load_state_dict(mine)
        for rank, weights in enumerate(self.replicas.weights):
            for part, own in (("weights", weights), ("buffers", self.replicas.buffers[rank])):
                for name, value in own.items():
                    value[...] = of_rank(arrays, rank, f"{part}/{name}", value.shape)
            self.replicas.gradients[rank] = {
                name: arrays[f"{rank}/gradients/{name}"].copy()
                for name in self.replicas.shapes
                if f"{rank}/gradients/{name}" in arrays
            }

    def _answered(self, work: Callable[[], Any]) -> Any:
        """Find an answer, or remember it, and note it."""
        past = self._past
        if past is not None and len(self.log) < len(past.log):
            self.log.append(past.log[len(self.log)])
            return self.log[-1]
        if past is not None:
            self._past = None
            self.load_state_dict(past)
        self.log.append(work())
        return self.log[-1]

    def pull(self, rank: int) -> None:
        """Replace a worker's weights by the server's."""
        self._answered(lambda: self._pull(rank))

    def _pull(self, rank: int) -> None:
        for name, newest in self._trainer.weights[0].items():
            self.replicas.weights[rank][name][...] = newest

    def compute(self, rank: int, step: int, batches: StepBatches) -> Losses:
        """Find a worker's gradient of a step, from the weights that it has pulled."""
        found = self._answered(lambda: self._compute(rank, step, batches))
        return Losses(*(np.array(each, dtype=float) for each in found))

    def _compute(self, rank: int, step: int, batches: StepBatches) -> list[list[float]]:
        replicas, losses, counts = self.replicas, [], []
        sizes = batches.sizes[:, rank].astype(float)
        adds = self._workload.loss.adds
        scales = np.ones(len(sizes)) if adds else sizes / max(sizes.sum(), 1.0)
        replicas.step = step
        for parts, scale in zip(batches.micro, scales.tolist(), strict=True):
            part = parts[rank]
            losses.append(replicas.run_one(rank, part, scale))
            counts.append(self._workload.loss.count(replicas.samples.target(part)))
            if len(losses) == 1:
                self._go_wrong(rank, step)
        return [list(map(float, losses)), list(map(float, counts))]

    def _go_wrong(self, rank: int, step: int) -> None:
        for fault in self._workload.inject:
            if fault.rank == rank and fault.happens(step + 1, self.replicas.world_size):
                self.replicas.inject(rank, fault.value)

    def update(self, ranks: Sequence[int], number: int) -> float:
        """Apply the mean of some workers' gradients, added in this order; forget these.

        Parameters
        ----------
        ranks : sequence of int
            Whose.
        number : int
            Of the update, from 1.

        Returns
        -------
        float
            Norm of the mean, before clipping.
        """
        return float(self._answered(lambda: self._update(ranks, number)))

    def _update(self, ranks: Sequence[int], number: int) -> float:
        total: dict[str, Array] = {}
        for rank in ranks:
            for name, gradient in self.replicas.gradients[rank].items():
                share = gradient * gradient.dtype.type(1.0 / len(ranks))
                if share.dtype != self._wire:  # it travels in 16 bit, and is added in 32
                    share = share.astype(self._wire).astype(gradient.dtype)
                total[name] = total[name] + share if name in total else share
            self.replicas.gradients[rank] = {}
        (done,) = self._trainer.update([total], Progress(number), [True])
        assert done is not None, "the only slot is active"
        return done.norm

    def forget(self, rank: int) -> None:
        """Forget a worker's gradient."""
        self._answered(lambda: self.replicas.gradients.__setitem__(rank, {}))
