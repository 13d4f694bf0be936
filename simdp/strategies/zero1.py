"""ZeRO-1: every rank keeps the optimizer's state of a part of the parameters, and updates these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self

import numpy as np
from pydantic import model_validator

from simdp.spec import Bool, Bytes, problem
from simdp.strategies.base import Pending, Rank, Script, Strategy, uneven
from simdp.strategies.ddp import DDP
from simdp.strategies.flat_pieces import PieceReducer, deal_buckets, hand_out
from simdp.strategies.partition import Kept, Partition, least_loaded
from simdp.workload import Workload
from simdp.workload.layers import Parameter

WHOLE = Kept(weights=True, gradients=True)


class Zero1(Strategy):
    """ZeRO stage 1, in the two ways in which it is done.

    ``all_reduce`` is torch's ``ZeroRedundancyOptimizer`` under `DDP`: all gradients are averaged on
    every rank, whole tensors are dealt to ranks, each updates its own and then broadcasts them, so
    that 3 (n - 1)/n of all parameters pass through a ring's every rank. ``reduce_scatter`` is what
    Megatron's distributed optimizer and DeepSpeed do: every bucket of gradients is summed piece by
    piece on the pieces' owners, and parameters are gathered after the update, 2 (n - 1)/n.

    Attributes
    ----------
    communication : {"all_reduce", "reduce_scatter"}
        Which.
    parameters_as_bucket_view : bool
        One broadcast per rank, of all its parameters, instead of one per parameter; for
        ``all_reduce``.
    bucket_cap, overlap, weight_by_shard
        As of `DDP`.
    find_unused_parameters : bool
        As of `DDP`, for ``all_reduce``; without that unused parameters are left alone.
    broadcast_buffers : bool or None
        As of `DDP`, for ``all_reduce``, where None is true; without that every rank keeps its own.

    References
    ----------
    Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models",
    arXiv 1910.02054; torch, zero_redundancy_optimizer.py.
    """

    kind: Literal["zero1"] = "zero1"
    communication: Literal["all_reduce", "reduce_scatter"] = "all_reduce"
    parameters_as_bucket_view: Bool = False
    bucket_cap: Bytes | None = None
    overlap: Bool = True
    find_unused_parameters: Bool = False
    broadcast_buffers: Bool | None = None
    weight_by_shard: Bool = False

    @model_validator(mode="after")
    def _options_fit(self) -> Self:
        given = {
            "parameters_as_bucket_view": self.parameters_as_bucket_view,
            "find_unused_parameters": self.find_unused_parameters,
            "broadcast_buffers": self.broadcast_buffers is not None,
        }
        for key, is_given in given.items():
            if is_given and self.communication == "reduce_scatter":
                raise problem(
                    f"{key} belongs to communication: all_reduce; leave it out, or write that."
                )
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

    def uses(self, world_size: int, workload: Workload, num_samples: int) -> list[tuple[str, int]]:
        if not self._averages:
            return piece_collectives(workload)
        owners = _owners(workload, world_size)
        roots = sorted(set(owners.values()))
        return [
            *self._ddp.uses(world_size, workload, num_samples),
            *(("broadcast", root) for root in roots),
        ]

    def partition(self, workload: Workload, local_size: int, world_size: int) -> Partition:
        if not self._averages:
            return deal_buckets(workload, world_size, self.bucket_cap, WHOLE)
        ranks = np.arange(world_size)[None, :]
        owners = _owners(workload, world_size)
        return Partition(workload.graph.parameters, [], ranks, WHOLE, owners)

    def sent_nbytes(self, rank: Rank) -> list[int]:
        return self._ddp.sent_nbytes(rank) if self._averages else unit_nbytes(rank)

    def bucket_memory(
        self, parameters: Sequence[Parameter], ready: Sequence[str], itemsize: int
    ) -> float:
        """Megatron's gradients live in their buckets."""
        return self._ddp.bucket_memory(parameters, ready, itemsize) if self._averages else 0.0

    def gradients_stay(self) -> bool:
        return not self._averages

    def setup(self, rank: Rank) -> Script:
        """Make every replica a copy of rank 0's, and deal the optimizer's state."""
        yield from self._ddp.setup(rank)
        yield from rank.shard()

    def train_step(self, rank: Rank) -> Script:
        if not self._averages:
            yield from step_in_pieces(rank, self.overlap, self.weight_by_shard, every=False)
            return
        yield from self._ddp.average_gradients(rank)
        yield from rank.update()
        if not rank.skipped:
            yield from self._broadcast(rank)

    def _broadcast(self, rank: Rank) -> Script:
        """Start every owner's broadcasts, one rank after the other; then wait for all."""
        pending: list[Pending] = []
        for root, owned in enumerate(rank.partition.pieces):
            names = [name for name in rank.partition.sizes if name in owned]
            each = [names] if self.parameters_as_bucket_view else [[name] for name in names]
            for number, together in enumerate(each):
                if together:
                    label = f"parameters {root}.{number}"
                    pending.append((yield from rank.send_owned(together, label, root)))
        yield from rank.wait(pending)


def _owners(workload: Workload, world_size: int) -> dict[str, int]:
    """Deal the parameters of each of the optimizer's groups, those of no group last."""
    groups = workload.optimizer.param_groups or ()
    sorted_out: list[list[Parameter]] = [[] for _ in range(len(groups) + 1)]
    for parameter in workload.graph.parameters:
        matching = (i for i, group in enumerate(groups) if group.matches(parameter.name))
        sorted_out[next(matching, len(groups))].append(parameter)
    return least_loaded(sorted_out, world_size)


def piece_collectives(workload: Workload) -> list[tuple[str, int]]:
    """Collectives of a strategy whose ranks own pieces."""
    found = [("broadcast", 0), ("reduce_scatter", 0), ("all_gather", 0)]
    if workload.clip_grad_norm is not None or workload.precision.scaler() is not None:
        found.append(("all_reduce", 0))
    return found


def unit_nbytes(rank: Rank) -> list[int]:
    """Bytes of each unit of gradients, in the order in which they are sent."""
    partition, learned = rank.partition, set(rank.ready_order)
    return [
        partition.unit_elements(unit) * rank.itemsize
        for unit, names in enumerate(partition.units)
        if learned.intersection(names)
    ]


def step_in_pieces(rank: Rank, overlap: bool, by_shard: bool, every: bool) -> Script:
    """One step in which gradients are summed on the owners of their pieces.

    Parameters
    ----------
    rank : Rank
        Who.
    overlap : bool
        Whether sums are sent while backward still runs.
    by_shard : bool
        As `Rank.scale_losses`.
    every : bool
        Whether gradients are summed after every micro-step, so that none is kept whole; else after
        the last one.
    """
    rank.scale_losses(by_shard=by_shard)
    for micro_step in range(rank.num_micro_steps):
        yield from rank.forward(micro_step)
        if every or micro_step == rank.num_micro_steps - 1:
            reducer = PieceReducer(rank, rank.partition.units)
            yield from reducer.backward(micro_step, overlap)
        else:
            yield from rank.backward(micro_step)
    yield from rank.agree()
    yield from rank.update()
    if not rank.skipped:
        yield from hand_out(rank, rank.partition)
