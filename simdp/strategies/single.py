"""One device, no communication: what every other strategy is measured against."""

from __future__ import annotations

from typing import ClassVar, Literal

from simdp.strategies.base import Rank, Script, Strategy
from simdp.strategies.inference import infer_in_processes
from simdp.workload import Workload


class Single(Strategy):
    """Plain training on one device."""

    infers: ClassVar[bool] = True

    kind: Literal["single"] = "single"

    def problem_with(self, world_size: int, workload: Workload) -> str | None:
        if world_size == 1:
            return None
        return (
            f"kind: single trains on one device, but cluster.world_size is {world_size}; set it to "
            "1, or use strategy: ddp."
        )

    def setup(self, rank: Rank) -> Script:
        """Nothing to prepare."""
        yield from ()

    def train_step(self, rank: Rank) -> Script:
        rank.scale_losses(by_shard=False)
        for micro_step in range(rank.num_micro_steps):
            yield from rank.forward(micro_step)
            yield from rank.backward(micro_step)
        yield from rank.update()

    def infer_step(self, rank: Rank) -> Script:
        yield from infer_in_processes(rank, scatters=False)
