"""Cohort, the runtime Rank: all ranks of a run, which compute the numbers and yield the time.

Its rooms share one base, `Ranks`: what ranks compute (`computing`), and what they send each other
(`buckets`, and the files beside it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from simdp.engine.cohort.buckets import Buckets, FlatBucket
from simdp.engine.cohort.computing import Computing
from simdp.engine.ops import Meet, Op
from simdp.results.trace import SETUP


class Cohort(Computing, Buckets):
    """All ranks of a run, doing the same work in step; what a strategy calls its rank."""

    def run(self, progress: Callable[[int], None] | None = None) -> Iterator[Op]:
        """The whole run as one script: the setup, then every step."""
        strategy, workload = self.scenario.strategy, self.scenario.workload
        yield from strategy.setup(self)
        if self.launcher.num_calls:  # it left the ranks at different times
            yield Meet(SETUP)
        batches = workload.batches(self.world_size, self.scenario.seed, self.scenario.base)
        for step, step_batches in enumerate(batches):
            self._begin(step, step_batches)
            if workload.host.step:
                yield self._host("step", self._per_step)
            yield from strategy.train_step(self)
            if progress is not None:
                progress(step + 1)


__all__ = ["Cohort", "FlatBucket"]
