"""FSDP1: torch's ``FullyShardedDataParallel``; every unit is one flat parameter, in pieces."""

from __future__ import annotations

from itertools import count
from typing import Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Ints
from simdp.spec import Bool, Int
from simdp.steps.bucket import Group
from simdp.steps.facts import Facts, Ops, Step
from simdp.steps.ops import NewGroup, Scale, Update
from simdp.steps.partition import Kept, Partition
from simdp.steps.passes import send_all, send_buffers
from simdp.steps.unit_ops import Shard
from simdp.strategies.base import Strategy, members, uneven
from simdp.strategies.flat_pieces import agree
from simdp.strategies.hsdp import REPLICATE, SHARD, unequal
from simdp.strategies.low import Low, low_problem
from simdp.strategies.unit_names import Units, chosen, unknown_unit
from simdp.strategies.units import Rules, Unit, UnitWalk, units_in_use
from simdp.workload import Workload


class FSDP1(Strategy):
    """Fully sharded as in torch's first version, with flat parameters.

    A unit is gathered before its module's forward, freed after it, gathered again before its
    backward, and its gradients are then summed piece by piece on their owners, after every
    micro-step: 3 (n - 1)/n of all parameters pass through a ring's every rank. A unit that is
    frozen is not summed; of one that is in parts the whole flat parameter is, as with
    ``use_orig_params``.

    Attributes
    ----------
    sharding_strategy : {"FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"}
        Whether units are freed after forward, all but the root, which backward needs first;
        ``SHARD_GRAD_OP`` keeps all. The hybrid ones share units in groups of neighbours: each
        rank's piece is then summed over the groups, on a stream of its own.
    shard_size : int or None
        Ranks of a group under a hybrid strategy; None is as many as a node has.
    units
        As of `FSDP`.
    backward_prefetch : {"backward_pre", "backward_post", "none"}
        When backward gathers the next unit: before the backward of the current one; after it, and
        before its gradients are sent; or when it is needed.
    forward_prefetch : bool
        Let the host ask for the next unit's gather before the forward of the current one.
    limit_all_gathers : bool
        Let the host wait until no more than two units are gathered or still in use; false lets
        forward gather all of them at once. In backward gathers and sums take turns on one stream,
        so that the limit changes nothing there.
    param_dtype, reduce_dtype : str or None
        Of ``MixedPrecision``; as of `FSDP`.
    weight_by_shard : bool
        As of `DDP`.

    References
    ----------
    Zhao et al., "PyTorch FSDP: experiences on scaling fully sharded data parallel", VLDB 2023;
    torch, distributed/fsdp/_runtime_utils.py.
    """

    kind: Literal["fsdp1"] = "fsdp1"
    sharding_strategy: Literal[
        "FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"
    ] = "FULL_SHARD"
    shard_size: Int | None = Field(None, ge=1)
    units: Units = "blocks"
    backward_prefetch: Literal["backward_pre", "backward_post", "none"] = "backward_pre"
    forward_prefetch: Bool = False
    limit_all_gathers: Bool = True
    param_dtype: Low | None = None
    reduce_dtype: Low | None = None
    weight_by_shard: Bool = False

    @property
    def _is_hybrid(self) -> bool:
        return "HYBRID" in self.sharding_strategy

    def problem_with(self, world_size: int, workload: Workload) -> str | None:
        if self.shard_size is not None and not self._is_hybrid:
            return (
                f"shard_size: {self.shard_size} is of groups, which {self.sharding_strategy} does "
                "not make; leave it out, or write sharding_strategy: HYBRID_SHARD."
            )
        return (
            unequal(self.shard_size, world_size)
            or unknown_unit(self.units, workload)
            or low_problem(self.param_dtype, workload)
            or uneven(workload)
        )

    def _ranks(self, facts: Facts) -> Ints:
        """Groups of ranks that have all pieces, shape `(num_groups, group size)`."""
        size = (self.shard_size or facts.local_size) if self._is_hybrid else facts.world_size
        return np.arange(facts.world_size).reshape(-1, size)

    def _groups(self) -> tuple[Group, ...]:
        """Process groups in which the model is made the same; pieces are those of the first."""
        return (SHARD, REPLICATE) if self._is_hybrid else (None,)

    def _dealt(self, facts: Facts) -> tuple[Partition, list[Unit]]:
        """Who owns what, and when each unit is needed."""
        modules = chosen(facts.graph, self.units)
        parameters = [module.parameters for module in modules]
        kept = Kept(weights=False, gradients=False)
        partition = Partition(facts.parameters, parameters, self._ranks(facts), kept)
        return partition, units_in_use(facts.graph, modules)

    def setup(self, facts: Facts) -> Ops:
        """Make every rank's model that of rank 0 (sync_module_states), and keep the pieces."""
        ranks, tags = self._ranks(facts), count()
        if self._is_hybrid:
            yield NewGroup(SHARD, members(ranks), 0)
            yield NewGroup(REPLICATE, members(ranks.T), 1)
        for group in self._groups():
            yield from send_all(facts, facts.parameters, "parameters", 0, tags, group)
            yield from send_buffers(facts, 0, tags, group)
        partition, _ = facts.once("units", lambda: self._dealt(facts))
        yield Shard(partition)

    def train_step(self, facts: Facts, step: Step) -> Ops:
        partition, units = facts.once("units", lambda: self._dealt(facts))
        inside, *across = self._groups()
        rules = Rules(
            self.sharding_strategy in ("FULL_SHARD", "HYBRID_SHARD"),
            self.backward_prefetch,
            self.forward_prefetch,
            self.limit_all_gathers,
            inside,
            across[0] if across and len(partition.ranks) > 1 else None,
            self.reduce_dtype,
        )
        tags = count()
        yield Scale(self.weight_by_shard)
        for micro in range(step.num_micro_steps):
            yield from UnitWalk(facts, partition, units, rules, tags).run(micro)
        yield from agree(facts, tags, inside)
        yield Update()
