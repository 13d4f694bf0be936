"""Backups: which ranks come too late in a step, by the times of their compute."""

from __future__ import annotations

import numpy as np

from simdp.arrays import Floats
from simdp.engine.compute import Times
from simdp.engine.samples import Samples
from simdp.engine.slowdown import Slowdown
from simdp.steps.facts import Facts
from simdp.workload.participants import Participants
from simdp.workload.sampling import StepBatches


class Backups:
    """Drops the ranks whose forward and backward would be the last to end.

    Times are those of compute with its stragglers, as if all ranks began the step at once; waiting
    for input and for others is not part of them. So who is dropped is known before a step, and is
    the same for every clock.

    Parameters
    ----------
    num_late : int
        Ranks that are dropped in every step.
    times : Times
        How long compute takes.
    samples : Samples
        The data.
    facts : Facts
        Of the run.
    slowdown : Slowdown
        The cluster's stragglers.
    """

    def __init__(
        self, num_late: int, times: Times, samples: Samples, facts: Facts, slowdown: Slowdown
    ) -> None:
        self._num_late, self._times, self._samples = num_late, times, samples
        self._facts, self._slowdown = facts, slowdown

    def of(self, step: int, batches: StepBatches) -> Participants:
        """Who takes part in a step, the first to have their gradients; ties: the lower ranks.

        A rank without samples has nothing to send, and takes nobody's place.
        """
        n = self._facts.world_size
        there = batches.sizes.sum(axis=0) > 0
        seconds = self._seconds(batches) * self._slowdown.factors(step) + self._slowdown.lost(step)
        order = np.lexsort((np.arange(n), seconds, ~there))
        first = order[: min(n - self._num_late, max(int(there.sum()), 1))]
        dropped = np.setdiff1d(np.flatnonzero(there), first)
        return Participants.without(n, "late", dropped.tolist())

    def _seconds(self, batches: StepBatches) -> Floats:
        """Forward and backward of a step on each rank, which nothing slows down [s]."""
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
