"""Pipeline: when each rank's next batch is there, from the instants at which it asks."""

from __future__ import annotations

import numpy as np

from simdp.arrays import Floats, Ints
from simdp.workload.input import Input


class Pipeline:
    """The input pipelines of all ranks. It starts when a rank asks for its first batch.

    Batch k is made by worker ``k mod w``, once that is done with batch ``k - w`` and the training
    process has taken batch ``k - w p``, as torch's DataLoader hands out its next order whenever a
    batch is taken::

        made(k)   = max(made(k - w), taken(k - w p)) + per_sample * samples
        taken(k)  = max(asked(k), made(k))

    A batch is asked for when the compute stream comes to it. With a pinned copy it is asked for
    as soon as the batch before it is handed over, and copied while that is computed with::

        handed(k) = max(clock, taken(k) + copy)

    Else the compute stream copies: ``handed(k) = taken(k) + copy``.

    Parameters
    ----------
    spec : Input
        The workload's.
    world_size, local_size : int
        Ranks, and ranks of one node.
    """

    def __init__(self, spec: Input, world_size: int, local_size: int) -> None:
        self.spec, self._sharers = spec, min(spec.shared_link, local_size)
        # Without workers nothing can be fetched before it is needed.
        self._fetches = spec.pinned and spec.sample_size > 0 and spec.workers > 0
        self._ahead = spec.workers * spec.prefetch
        self._begin = np.zeros(world_size)
        self._made = np.zeros((max(spec.workers, 1), world_size))
        self._taken = np.zeros((max(self._ahead, 1), world_size))
        self._handed = np.zeros(world_size)

    def hand_over(
        self, number: int, samples: Floats, clock: Floats, ranks: Ints
    ) -> tuple[Floats, Floats]:
        """Hand a batch to each of some ranks, which must take their batches in turn.

        Parameters
        ----------
        number : int
            The batch, from 0.
        samples : ndarray, shape `(num_ranks,)`
            Its samples; 0 where a rank has none.
        clock : ndarray, shape `(num_ranks,)`
            When the compute streams come to it [s].
        ranks : ndarray, shape `(num_ranks,)`, int64
            Who.

        Returns
        -------
        (ndarray, ndarray)
            Until when each compute stream waits, and when it is done with copying [s].
        """
        if number == 0:
            self._begin[ranks] = clock
        asked = self._handed[ranks] if self._fetches and number else clock
        taken = np.maximum(asked, self._batch_made(number, samples, asked, ranks))
        if self._ahead:
            self._taken[number % self._ahead, ranks] = taken
        copy = self._copy_time(samples)
        there, end = taken, taken + copy
        if self._fetches or (self.spec.pinned and not self.spec.workers):
            there = end = np.maximum(clock, end)
        self._handed[ranks] = end
        return there, end

    def _batch_made(self, number: int, samples: Floats, asked: Floats, ranks: Ints) -> Floats:
        workers, load = self.spec.workers, self.spec.per_sample * samples
        if not workers:
            made: Floats = asked + load
            return made
        free = self._begin[ranks]
        if number >= workers:
            free = self._made[number % workers, ranks]
        if number >= self._ahead:
            free = np.maximum(free, self._taken[number % self._ahead, ranks])
        self._made[number % workers, ranks] = free + load
        return free + load

    def _copy_time(self, samples: Floats) -> Floats:
        sizes, which = np.unique(samples, return_inverse=True)
        each = [self.spec.copy_time(float(size), self._sharers) for size in sizes]
        return np.array(each)[which]
