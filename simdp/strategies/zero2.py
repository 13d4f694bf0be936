"""ZeRO-2: as ZeRO-1, and gradients are kept by their owners alone."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from simdp.spec import Bool, Bytes, Int
from simdp.steps.buckets import BUCKET_CAP_NBYTES
from simdp.steps.facts import Facts, Ops, Step
from simdp.steps.partition import Kept, Partition
from simdp.steps.unit_ops import Shard
from simdp.strategies.base import Strategy, uneven
from simdp.strategies.ddp import DDP
from simdp.strategies.deepspeed import (
    KEYS,
    DeepSpeed,
    deal_flat,
    refuse_others,
    refuse_torchs,
    step_of_deepspeed,
)
from simdp.strategies.flat_pieces import deal_buckets, step_in_pieces
from simdp.workload import Workload

KEPT = Kept(weights=True, gradients=False)


class Zero2(Strategy):
    """ZeRO stage 2: gradients and optimizer state in pieces, parameters whole.

    With several micro-steps gradients are summed after each, so that a rank never has more of them
    than its pieces and the buckets that are on their way.

    Attributes
    ----------
    communication : {"reduce_scatter", "deepspeed"}
        Sum every bucket piece by piece on the pieces' owners; or do as DeepSpeed, which deals all
        parameters as one flat buffer and all_reduces buckets, of which each rank keeps its own.
    bucket_cap : float or None
        As of `DDP` [bytes], for ``reduce_scatter``, where None is 25 MiB for every bucket.
    overlap : bool
        As of `DDP`, for ``reduce_scatter``.
    weight_by_shard : bool
        As of `DDP`.
    reduce_bucket_size, allgather_bucket_size : int or None
        For ``deepspeed``: elements of gradients reduced, and of parameters gathered, at a time.
        None is 500,000,000.
    overlap_comm : bool or None
        For ``deepspeed``: reduce a bucket while backward goes on; None is false, as there.
    contiguous_gradients : bool or None
        For ``deepspeed``: copy gradients into a buffer of ``reduce_bucket_size`` elements, two with
        ``overlap_comm``; None is true. False flattens every bucket for the way.
    offload_optimizer : {"none", "cpu"}
        For ``deepspeed``: keep master weights and the optimizer's state in the memory of the host
        (``cluster.host``), which updates them. Gradients are copied there behind their sums, and
        parameters back after the update.

    References
    ----------
    Rajbhandari et al., arXiv 1910.02054; DeepSpeed, runtime/zero/stage_1_and_2.py.
    """

    kind: Literal["zero2"] = "zero2"
    communication: Literal["reduce_scatter", "deepspeed"] = "reduce_scatter"
    bucket_cap: Bytes | None = None
    overlap: Bool = True
    weight_by_shard: Bool = False
    reduce_bucket_size: Annotated[Int, Field(ge=1)] | None = None
    allgather_bucket_size: Annotated[Int, Field(ge=1)] | None = None
    overlap_comm: Bool | None = None
    contiguous_gradients: Bool | None = None
    offload_optimizer: Literal["none", "cpu"] = "none"

    @property
    def updates_on_host(self) -> bool:
        return self.offload_optimizer == "cpu"

    @model_validator(mode="after")
    def _options_fit(self) -> Self:
        given = {key: getattr(self, key) is not None for key in KEYS}
        given["offload_optimizer"] = self.updates_on_host
        refuse_others(given, self.communication, "deepspeed")
        if self.communication == "deepspeed":
            refuse_torchs(self.bucket_cap is not None, self.overlap)
        return self

    def problem_with(self, world_size: int, workload: Workload) -> str | None:
        return uneven(workload)

    def _dealt(self, facts: Facts) -> Partition:
        if self.communication == "deepspeed":
            return facts.once("partition", lambda: deal_flat(facts, KEPT))
        cap = float(BUCKET_CAP_NBYTES) if self.bucket_cap is None else self.bucket_cap
        return facts.once("partition", lambda: deal_buckets(facts, cap, KEPT))

    def setup(self, facts: Facts) -> Ops:
        """Make every replica a copy of rank 0's, and deal gradients and optimizer state."""
        yield from DDP().setup(facts)
        yield Shard(self._dealt(facts))

    def train_step(self, facts: Facts, step: Step) -> Ops:
        partition = self._dealt(facts)
        if self.communication == "deepspeed":
            yield from step_of_deepspeed(facts, step, partition, DeepSpeed.of(self))
            return
        yield from step_in_pieces(
            facts, step, partition, self.overlap, self.weight_by_shard, every=True
        )
