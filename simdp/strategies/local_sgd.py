"""Local SGD: every rank trains by itself, and now and then all weights are averaged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from simdp.spec import Bool, Bytes, Int
from simdp.strategies.base import Rank, Script, Strategy, uneven
from simdp.strategies.ddp import DDP
from simdp.strategies.reducer import copies_charged
from simdp.workload import Workload
from simdp.workload.layers import Parameter


class LocalSGD(Strategy):
    """Steps of every rank's own optimizer, then an average of the weights (post-local SGD).

    As torch's ``DistributedDataParallel`` with ``post_localSGD_hook``, without a subgroup, and
    ``PeriodicModelAverager``: all parameters travel as one buffer after the optimizer's step.
    Optimizer state and buffers stay what each rank's own steps have made of them. Here a period
    ends with its average, after ``local_steps`` steps; torch's begins with it. Nothing is averaged
    at the end of a run that ends within a period, as in torch: its replicas differ.

    Attributes
    ----------
    local_steps : int
        Steps from one average to the next, H (torch: period).
    warmup_steps : int
        Steps before the first local one; in these gradients are averaged, as under `DDP`.
    bucket_cap, overlap
        As of `DDP`, for the warm-up.
    charge_copies : bool or None
        Charge the copies of weights and of gradients into the buffers that travel, and back. None
        does as the cluster's overheads say.
    weight_by_shard : bool
        As of `DDP`.

    References
    ----------
    Lin, Stich, Patel and Jaggi, "Don't use large mini-batches, use local SGD", ICLR 2020.
    """

    kind: Literal["local_sgd"] = "local_sgd"
    local_steps: Annotated[Int, Field(ge=1)] = 8
    warmup_steps: Annotated[Int, Field(ge=0)] = 0
    bucket_cap: Bytes | None = None
    overlap: Bool = True
    charge_copies: Bool | None = None
    weight_by_shard: Bool = False

    @property
    def _ddp(self) -> DDP:
        keys = ("bucket_cap", "overlap", "charge_copies", "weight_by_shard")
        options = {key: getattr(self, key) for key in keys}
        return DDP().model_copy(update={**options, "broadcast_buffers": False})

    def problem_with(self, world_size: int, workload: Workload) -> str | None:
        if self.warmup_steps and workload.graph.unused:
            return (
                f"warmup_steps: {workload.graph.unused[0]} gets no gradient, so that its bucket "
                "would never be complete; set warmup_steps: 0."
            )
        return uneven(workload)

    def uses(self, world_size: int, workload: Workload, num_samples: int) -> list[tuple[str, int]]:
        return [("all_reduce", 0), ("broadcast", 0)]

    def steps_alone(self, step: int) -> bool:
        return step >= self.warmup_steps

    def bucket_memory(
        self, parameters: Sequence[Parameter], ready: Sequence[str], itemsize: int
    ) -> float:
        if not self.warmup_steps:
            return 0.0
        return self._ddp.bucket_memory(parameters, ready, itemsize)

    def setup(self, rank: Rank) -> Script:
        """Make every replica a copy of rank 0's."""
        yield from self._ddp.setup(rank)

    def train_step(self, rank: Rank) -> Script:
        if rank.step < self.warmup_steps:
            yield from self._ddp.train_step(rank)
            return
        rank.scale_losses(by_shard=self.weight_by_shard)
        for micro_step in range(rank.num_micro_steps):
            yield from rank.forward(micro_step)
            yield from rank.backward(micro_step)
        yield from rank.update(rank.active())  # who has no samples has nothing to learn from
        if (rank.step - self.warmup_steps + 1) % self.local_steps == 0:
            yield from rank.average_weights(copies_charged(self.charge_copies, rank))
