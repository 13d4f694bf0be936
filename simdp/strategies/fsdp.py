"""FSDP: parameters, gradients and optimizer state in pieces; a unit is whole while it is used."""

from __future__ import annotations

from itertools import count
from typing import Annotated, Literal

import numpy as np
from pydantic import BeforeValidator

from simdp.arrays import Ints
from simdp.errors import shown
from simdp.spec import Bool, problem
from simdp.steps.bucket import Group
from simdp.steps.facts import Facts, Ops, Step
from simdp.steps.ops import Scale, Shard, Update
from simdp.steps.partition import Kept, Partition
from simdp.steps.passes import send_all, send_buffers
from simdp.strategies.base import Strategy, uneven
from simdp.strategies.flat_pieces import agree
from simdp.strategies.units import Rules, Unit, UnitWalk, units_in_use
from simdp.workload import Workload

SHOWN = 8
"""Modules that a message lists."""


def _true_false_or_except_root(value: object) -> object:
    if isinstance(value, bool) or value == "except_root":
        return value
    raise problem(f"{shown(value)} is not allowed; known: true, false or except_root.")


def _word_or_names(value: object) -> object:
    if value in ("blocks", "whole") or isinstance(value, list | tuple):
        return value
    raise problem(
        f"{shown(value)} is not allowed; write blocks, whole or a list of modules' names."
    )


Reshard = Annotated[bool | Literal["except_root"], BeforeValidator(_true_false_or_except_root)]


class FullySharded(Strategy):
    """What `FSDP` and `HSDP` have in common: torch's FullyShardedDataParallel, version 1.

    Every unit is one flat parameter. It is gathered before its module's forward, freed after it,
    gathered again before its backward, and its gradients are then summed piece by piece on their
    owners, after every micro-step: 3 (n - 1)/n of all parameters pass through a ring's every rank.

    Attributes
    ----------
    units : {"blocks", "whole"} or tuple of str
        Modules that are units: those that the model repeats (`Graph.blocks`), none but the model
        itself, or those of these names. What is in none of them is the root's.
    reshard_after_forward : bool or "except_root"
        Whether units are freed after forward. ``except_root`` keeps the root's parameters, which
        backward needs first, as torch does by default; false keeps all: SHARD_GRAD_OP.
    backward_prefetch : {"backward_pre", "backward_post", "none"}
        When backward gathers the next unit: before the backward of the current one; after it, and
        before its gradients are sent; or when it is needed.
    forward_prefetch : bool
        Let the host ask for the next unit's gather before the forward of the current one.
    limit_all_gathers : bool
        Let the host wait until no more than two units are gathered or still in use; false lets
        forward gather all of them at once. In backward gathers and sums take turns on one stream,
        so that the limit changes nothing there.
    weight_by_shard : bool
        As of `DDP`.

    References
    ----------
    Zhao et al., "PyTorch FSDP: experiences on scaling fully sharded data parallel", VLDB 2023;
    torch, distributed/fsdp/_runtime_utils.py.
    """

    units: Annotated[
        Literal["blocks", "whole"] | tuple[str, ...], BeforeValidator(_word_or_names)
    ] = "blocks"
    reshard_after_forward: Reshard = True
    backward_prefetch: Literal["backward_pre", "backward_post", "none"] = "backward_pre"
    forward_prefetch: Bool = False
    limit_all_gathers: Bool = True
    weight_by_shard: Bool = False

    def problem_with(self, world_size: int, workload: Workload) -> str | None:
        for prefix in self.units if isinstance(self.units, tuple) else ():
            blocks = {block.name: block for block in workload.graph.modules(self.units)}
            if not blocks[prefix].parameters:
                known = [block.name for block in workload.graph.blocks]
                names = ", ".join(known[:SHOWN]) + (" ..." if len(known) > SHOWN else "")
                return (
                    f"units: no module {prefix!r} has parameters of its own; "
                    + (f"the model's blocks: {names}. " if known else "the model has no blocks. ")
                    + "Name modules, or write units: blocks or units: whole."
                )
        return uneven(workload)

    def _ranks(self, facts: Facts) -> Ints:
        """Groups of ranks that have all pieces, shape `(num_groups, group size)`."""
        return np.arange(facts.world_size)[None, :]

    def _groups(self) -> tuple[Group, ...]:
        """Process groups in which the model is made the same; pieces are those of the first."""
        return (None,)

    def _names(self, facts: Facts) -> tuple[str, ...]:
        if isinstance(self.units, tuple):
            return self.units
        return tuple(b.name for b in facts.graph.blocks) if self.units == "blocks" else ()

    def _dealt(self, facts: Facts) -> tuple[Partition, list[Unit]]:
        """Who owns what, and when each unit is needed."""
        names = self._names(facts)
        parameters = [block.parameters for block in facts.graph.modules(names)]
        kept = Kept(weights=False, gradients=False)
        partition = Partition(facts.parameters, parameters, self._ranks(facts), kept)
        return partition, units_in_use(facts.graph, partition.units, names)

    def setup(self, facts: Facts) -> Ops:
        """Make every rank's model that of rank 0 (sync_module_states), and keep the pieces."""
        tags = count()
        for group in self._groups():
            yield from send_all(facts, facts.parameters, "parameters", 0, tags, group)
            yield from send_buffers(facts, 0, tags, group)
        partition, _ = facts.once("units", lambda: self._dealt(facts))
        yield Shard(partition)

    def train_step(self, facts: Facts, step: Step) -> Ops:
        partition, units = facts.once("units", lambda: self._dealt(facts))
        inside, *across = self._groups()
        rules = Rules(
            self.reshard_after_forward,
            self.backward_prefetch,
            self.forward_prefetch,
            self.limit_all_gathers,
            inside,
            across[0] if across and len(partition.ranks) > 1 else None,
        )
        tags = count()
        yield Scale(self.weight_by_shard)
        for micro in range(step.num_micro_steps):
            yield from UnitWalk(facts, partition, units, rules, tags).run(micro)
        yield from agree(facts, tags, inside)
        yield Update()


class FSDP(FullySharded):
    """Fully sharded over all ranks."""

    kind: Literal["fsdp"] = "fsdp"
