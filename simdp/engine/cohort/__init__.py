"""Cohort, the runtime Rank: all ranks of a run, which compute the numbers and yield the time.

Its rooms share one base, `Ranks` (`base`), whose state they read, over `Keeping`, which tells the
ledger what is in memory: `computing`; `buckets`, that travel whole; `compressing`; `sharding`; and
`scattering`, whose `one_process` says what devices of one process keep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from simdp.engine.cohort.buckets import Buckets, FlatBucket
from simdp.engine.cohort.compressing import Compressing
from simdp.engine.cohort.computing import Computing
from simdp.engine.cohort.scattering import Scattering
from simdp.engine.cohort.sharding import Sharding
from simdp.engine.ops import Meet, Op
from simdp.results.trace import SETUP
from simdp.workload.sampling import StepBatches


class Cohort(Computing, Buckets, Sharding, Scattering, Compressing):
    """All ranks of a run, doing the same work in step; what a strategy calls its rank."""

    def run(self, progress: Callable[[int], None] | None = None) -> Iterator[Op]:
        """The whole run as one script: the setup, then every step."""
        strategy, workload = self.scenario.strategy, self.scenario.workload
        yield from self.keep_model()
        yield from strategy.setup(self)
        yield from self.keep_buckets()
        if self.launcher.num_calls:  # it left the ranks at different times
            yield Meet(SETUP)
        batches = workload.batches(self.world_size, self.scenario.seed, self.scenario.base)
        for step, step_batches in enumerate(batches):
            yield from self.one_step(step, step_batches)
            if progress is not None:
                progress(step + 1)

    def one_step(self, step: int, batches: StepBatches) -> Iterator[Op]:
        """One step as a script."""
        strategy = self.scenario.strategy
        self._begin(step, batches)
        if self.scenario.workload.host.step:
            yield self._host("step", self._per_step)
        if self.infers:
            yield from strategy.infer_step(self)
            self.note_inference()
        else:
            yield from strategy.train_step(self)


__all__ = ["Cohort", "FlatBucket"]
