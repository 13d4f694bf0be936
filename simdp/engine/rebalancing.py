"""Speeds of ranks, by which batches are rebalanced between them.

A rank's speed is measured by its own compute: samples over the seconds of its forward and backward
with its stragglers, without waiting for others. So the split depends on the step, the devices and
the seed, but not on a clock.
"""

from __future__ import annotations

import numpy as np

from simdp.arrays import Floats, Ints
from simdp.engine.compute.profile_times import Times, times_of
from simdp.engine.compute.roofline import roofline_of
from simdp.engine.slowdown import Slowdown
from simdp.scenario.root import Scenario
from simdp.workload.sampling import Rebalance

PASSES = ("forward", "backward")


def with_measured_speeds(scenario: Scenario, rule: Rebalance) -> Scenario:
    """The scenario with the speeds of its ranks, measured for a rule of rebalancing."""
    workload, cluster = scenario.workload, scenario.cluster
    num_steps = workload.num_steps(cluster.world_size, scenario.base)
    shares = _Measuring(scenario, rule).shares(num_steps)
    workload = workload.model_copy(update={"rebalance": rule.measured(shares)})
    return scenario.model_copy(update={"workload": workload})


class _Measuring:
    """Measures the speeds of ranks period by period, with full batches of full length."""

    def __init__(self, scenario: Scenario, rule: Rebalance) -> None:
        workload, cluster = scenario.workload, scenario.cluster
        self._n, self._rule = cluster.world_size, rule
        self._workload = workload
        self._times: Times = times_of(workload, scenario.strategy, roofline_of(cluster))
        self._slowdown = Slowdown(cluster, scenario.seed)
        self._shapes = [workload.model.known_shapes()]
        changing = (
            straggler.by_chance or straggler.comes_and_goes() for straggler in cluster.stragglers
        )
        self._is_steady = not any(changing)
        self._own: dict[bytes, Floats] = {}

    def shares(self, num_steps: int) -> list[tuple[float, ...]]:
        """Shares after each period of the run, until they are constant."""
        every, batch = self._rule.every, self._workload.global_batch
        assert every is not None
        assert batch is not None
        shares: list[tuple[float, ...]] = []
        speed = np.ones(self._n)
        for begin in range(0, max(num_steps - every, 1), every):
            sizes = self._rule.measured(shares).sizes(begin, batch, self._n)
            steps = range(begin, min(begin + every, num_steps))
            seconds = np.sum([self._seconds(step, sizes) for step in steps], axis=0)
            done = sizes * len(steps)
            # A rank without samples keeps its speed.
            with np.errstate(divide="ignore", invalid="ignore"):
                speed = np.where(done > 0, done / seconds, speed)
            share = tuple((speed / speed.sum()).tolist())
            if self._is_steady and shares and shares[-1] == share:
                break
            shares.append(share)
        return shares

    def _seconds(self, step: int, sizes: Ints) -> Floats:
        """Compute of each rank in a step [s]."""
        key = sizes.tobytes()
        if key not in self._own:
            self._own[key] = self._unslowed(sizes)
        return self._own[key] * self._slowdown.factors(step) + self._slowdown.lost(step)

    def _unslowed(self, sizes: Ints) -> Floats:
        accumulate, total = self._workload.grad_accum, np.zeros(self._n)
        assert isinstance(accumulate, int)
        piece, which = -(-sizes // accumulate), np.zeros(self._n, dtype=np.int64)
        for micro in range(accumulate):
            here = np.clip(sizes - micro * piece, 0, piece)
            if here.any():
                for activity in PASSES:
                    columns = self._times.seconds(activity, here, self._shapes, which)
                    total += columns.seconds.sum(axis=0)[columns.column]
        return total
