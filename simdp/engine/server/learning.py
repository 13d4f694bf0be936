"""Learning: the numbers of workers and of their server. It is told when, and knows no clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simdp.arrays import Array, Floats
from simdp.engine.replicas import Replicas
from simdp.engine.samples import Samples
from simdp.engine.trainer import Trainer
from simdp.scenario import Scenario
from simdp.workload.precision.rounding import numpy_dtype
from simdp.workload.sampling import StepBatches


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


class Learning:
    """Weights and optimizer state of the server; weights, buffers and gradients of the workers.

    Parameters
    ----------
    scenario : Scenario
        One point, with numerics.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._scenario, self._workload = scenario, scenario.workload
        self.replicas = Replicas(scenario, Samples(scenario))
        drawn = self._workload.initial_weights(scenario.seed, 0, scenario.base)
        mine = {name: drawn[name] for name in self.replicas.shapes}
        self._trainer = Trainer(scenario, [mine])
        gradient_dtype = self._workload.precision.gradient_dtype(self._workload.dtype)
        self._wire = numpy_dtype(gradient_dtype)

    def pull(self, rank: int) -> None:
        """Replace a worker's weights by the server's."""
        for name, newest in self._trainer.weights[0].items():
            self.replicas.weights[rank][name][...] = newest

    def compute(self, rank: int, step: int, batches: StepBatches) -> Losses:
        """Find a worker's gradient of a step, from the weights that it has pulled."""
        replicas, losses, counts = self.replicas, [], []
        sizes = batches.sizes[:, rank].astype(float)
        scales = sizes / max(sizes.sum(), 1.0)
        replicas.step = step
        for parts, scale in zip(batches.micro, scales.tolist(), strict=True):
            part = parts[rank]
            losses.append(replicas.run_one(rank, part, scale))
            counts.append(replicas.loss.count(replicas.samples.target(part)))
            if len(losses) == 1:
                self._go_wrong(rank, step)
        return Losses(np.array(losses), np.array(counts, dtype=float))

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
        total: dict[str, Array] = {}
        for rank in ranks:
            for name, gradient in self.replicas.gradients[rank].items():
                share = gradient * gradient.dtype.type(1.0 / len(ranks))
                if share.dtype != self._wire:  # it travels in 16 bit, and is added in 32
                    share = share.astype(self._wire).astype(gradient.dtype)
                total[name] = total[name] + share if name in total else share
            self.forget(rank)
        (done,) = self._trainer.update([total], number, [True])
        assert done is not None, "the only slot is active"
        return done.norm

    def forget(self, rank: int) -> None:
        """Forget a worker's gradient."""
        self.replicas.gradients[rank] = {}
