"""One device, no communication: what every other strategy is measured against."""

from __future__ import annotations

from typing import Literal

from simdp.steps.facts import Facts, Ops, Step
from simdp.steps.ops import Scale, Update
from simdp.steps.passes import backward, forward
from simdp.strategies.base import Strategy
from simdp.strategies.inference import infer_in_processes
from simdp.workload import Workload


class Single(Strategy):
    """Plain training on one device."""

    kind: Literal["single"] = "single"

    def problem_with(self, world_size: int, workload: Workload) -> str | None:
        if world_size == 1:
            return None
        return (
            f"kind: single trains on one device, but cluster.world_size is {world_size}; set it to "
            "1, or use strategy: ddp."
        )

    def setup(self, facts: Facts) -> Ops:
        """Nothing to prepare."""
        yield from ()

    def train_step(self, facts: Facts, step: Step) -> Ops:
        yield Scale(by_shard=False)
        for micro in range(step.num_micro_steps):
            yield from forward(facts, micro)
            yield from backward(facts, micro)
        yield Update()

    def infer_step(self, facts: Facts, step: Step) -> Ops:
        yield from infer_in_processes(facts, scatters=False)
