"""ZeRO-1: every rank keeps the optimizer's state of a part of the parameters, and updates these."""

from __future__ import annotations

from itertools import count
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from simdp.spec import Bool, Bytes, Int
from simdp.steps.facts import Facts, Ops, Step, trainable
from simdp.steps.ops import Broadcast, Unless, Update, Wait
from simdp.steps.partition import Kept, Partition, least_loaded
from simdp.steps.passes import Tags
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
from simdp.workload.layers import Parameter

WHOLE = Kept(weights=True, gradients=True)


class Zero1(Strategy):
    """ZeRO stage 1, in the three ways in which it is done.

    ``all_reduce`` is torch's ``ZeroRedundancyOptimizer`` under `DDP`: all gradients are averaged on
    every rank, whole tensors are dealt to ranks, each updates its own and then broadcasts them, so
    that 3 (n - 1)/n of all parameters pass through a ring's every rank. ``reduce_scatter`` is what
    Megatron's distributed optimizer does: every bucket of gradients is summed piece by piece on the
    pieces' owners, and parameters are gathered after the update, 2 (n - 1)/n. ``deepspeed`` deals
    all parameters as one flat buffer, all_reduces buckets of gradients, of which each rank keeps
    its own, and gathers parameters after the update, 3 (n - 1)/n.

    Attributes
    ----------
    communication : {"all_reduce", "reduce_scatter", "deepspeed"}
        Which.
    parameters_as_bucket_view : bool
        One broadcast per rank, of all its parameters, instead of one per parameter; for
        ``all_reduce``.
    bucket_cap, overlap
        As of `DDP`; not for ``deepspeed``.
    weight_by_shard : bool
        As of `DDP`.
    find_unused_parameters : bool
        As of `DDP`, for ``all_reduce``; without that unused parameters are left alone.
    broadcast_buffers : bool or None
        As of `DDP`, for ``all_reduce``, where None is true; without that every rank keeps its own.
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
    Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models",
    arXiv 1910.02054; torch, zero_redundancy_optimizer.py; DeepSpeed,
    runtime/zero/stage_1_and_2.py.
    """

    kind: Literal["zero1"] = "zero1"
    communication: Literal["all_reduce", "reduce_scatter", "deepspeed"] = "all_reduce"
    parameters_as_bucket_view: Bool = False
    bucket_cap: Bytes | None = None
    overlap: Bool = True
    find_unused_parameters: Bool = False
    broadcast_buffers: Bool | None = None
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
        given = {
            "parameters_as_bucket_view": self.parameters_as_bucket_view,
            "find_unused_parameters": self.find_unused_parameters,
            "broadcast_buffers": self.broadcast_buffers is not None,
        }
        refuse_others(given, self.communication, "all_reduce")
        for_deepspeed = {key: getattr(self, key) is not None for key in KEYS}
        for_deepspeed["offload_optimizer"] = self.updates_on_host
        refuse_others(for_deepspeed, self.communication, "deepspeed")
        if self.communication == "deepspeed":
            refuse_torchs(self.bucket_cap is not None, self.overlap)
        return self

    @property
    def _ddp(self) -> DDP:
        keys = ("bucket_cap", "overlap", "find_unused_parameters", "weight_by_shard")
        options = {key: getattr(self, key) for key in keys}
        # Once, in the setup, buffers are made alike in any case.
        options["broadcast_buffers"] = self.broadcast_buffers is not False
        return DDP().model_copy(update=options)  # all of it has been validated here

    @property
    def _averages(self) -> bool:
        return self.communication == "all_reduce"

    def problem_with(self, world_size: int, workload: Workload) -> str | None:
        return uneven(workload) or (
            self._ddp.problem_with(world_size, workload) if self._averages else None
        )

    def _dealt(self, facts: Facts) -> Partition:
        if self.communication == "deepspeed":
            return deal_flat(facts, WHOLE)
        if not self._averages:
            return deal_buckets(facts, self.bucket_cap, WHOLE)
        ranks, owners = np.arange(facts.world_size)[None, :], _owners(facts)
        return Partition(trainable(facts), [], ranks, WHOLE, owners)

    def setup(self, facts: Facts) -> Ops:
        """Make every replica a copy of rank 0's, and deal the optimizer's state."""
        yield from self._ddp.setup(facts)
        yield Shard(facts.once("partition", lambda: self._dealt(facts)))

    def train_step(self, facts: Facts, step: Step) -> Ops:
        partition, tags = facts.once("partition", lambda: self._dealt(facts)), count()
        if self.communication == "deepspeed":
            yield from step_of_deepspeed(facts, step, partition, DeepSpeed.of(self))
            return
        if not self._averages:
            # Megatron's gradients live in their buckets.
            yield from step_in_pieces(
                facts, step, partition, self.overlap, self.weight_by_shard, every=False
            )
            return
        yield from self._ddp.average_gradients(facts, step, tags)
        yield Update()
        yield Unless(tuple(self._broadcast(facts, partition, tags)))

    def _broadcast(self, facts: Facts, partition: Partition, tags: Tags) -> Ops:
        """Start every owner's broadcasts, one rank after the other; then wait for all."""
        sent: list[int] = []
        for root, owned in enumerate(partition.owned):
            names = [name for name in partition.sizes if name in owned] if owned else []
            each = [names] if self.parameters_as_bucket_view else [[name] for name in names]
            for number, together in enumerate(each):
                if together:
                    sent.append(next(tags))
                    nbytes = float(facts.num_elements(together) * facts.weight_itemsize)
                    label = f"parameters {root}.{number}"
                    yield Broadcast(sent[-1], label, nbytes, tuple(together), root)
        yield Wait(tuple(sent))


def _owners(facts: Facts) -> dict[str, int]:
    """Deal the parameters of each of the optimizer's groups, those of no group last."""
    groups = facts.workload.optimizer.param_groups or ()
    sorted_out: list[list[Parameter]] = [[] for _ in range(len(groups) + 1)]
    for parameter in trainable(facts):
        matching = (i for i, group in enumerate(groups) if group.matches(parameter.name))
        sorted_out[next(matching, len(groups))].append(parameter)
    return least_loaded(sorted_out, facts.world_size)
