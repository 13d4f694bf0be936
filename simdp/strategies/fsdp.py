"""FSDP: torch's ``fully_shard``; every parameter in pieces of rows, whole while it is used."""

from __future__ import annotations

from itertools import count
from typing import Annotated, Literal

import numpy as np
from pydantic import BeforeValidator, Field

from simdp.arrays import Ints
from simdp.errors import shown
from simdp.spec import Bool, Int, problem
from simdp.steps.bucket import Group
from simdp.steps.facts import Facts, Ops, Step
from simdp.steps.ops import NewGroup, Scale, Update
from simdp.steps.passes import send_all, send_buffers
from simdp.steps.rows import Rows, by_rows
from simdp.steps.unit_ops import Shard
from simdp.strategies.base import Strategy, members, uneven
from simdp.strategies.flat_pieces import agree
from simdp.strategies.low import Low, low_problem, output_problem
from simdp.strategies.row_units import RowRules, RowUnit, RowWalk, row_units
from simdp.strategies.unit_names import Units, chosen, unknown_unit
from simdp.workload import Workload
from simdp.workload.execution import widened

PART = "part"
"""Name of the process groups that keep units between forward and backward."""


def _true_false_or_ranks(value: object) -> object:
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int) and value > 0:
        return value if value > 1 else False  # True equals 1, but a rank alone keeps all
    raise problem(f"{shown(value)} is not allowed; write true, false or a number of ranks.")


def _no_word(value: object) -> object:
    if isinstance(value, str):
        raise problem(
            f"{shown(value)} is not allowed; write a number of units, or strategy: "
            "{kind: fsdp1}, which takes backward_pre, backward_post and none."
        )
    return value


Reshard = Annotated[bool | int | None, BeforeValidator(_true_false_or_ranks)]


class PerParameter(Strategy):
    """What `FSDP` and `HSDP` have in common: torch's ``fully_shard``, FSDP2.

    Every parameter is cut along its first dimension. A unit is gathered before its modules'
    forward, copied out into parameters and freed after it; the same for its backward, after which
    its gradients are summed, each rank's rows on that rank; frozen parameters have none. Nothing
    but streams holds the host back.

    Attributes
    ----------
    units : {"blocks", "torchtitan", "whole"} or tuple of str
        Modules that are units: those that the model repeats (`Graph.blocks`); these, what comes
        before them, and what comes behind, as torchtitan wraps models; none but the model itself;
        or those of these names, in which ``*`` stands for any text between dots. Units may lie
        within each other; what is in none of them is the root's.
    reshard_after_forward : bool, int or None
        Whether units are freed after forward. None frees all but the root, and torchtitan's last
        unit, which backward needs first; a number lets so many neighbours keep a unit together
        until its backward: it divides the ranks that share one; 1 is false, all of them true.
    reshard_after_backward : bool
        Whether units are freed after the backward of each micro-step; after the last one they are.
    forward_prefetch, backward_prefetch : int or None
        Units that are gathered ahead, as by ``set_modules_to_forward_prefetch``, and by
        ``set_modules_to_backward_prefetch`` on all units but the root. None is what follows from
        streams: two in forward, one in backward.
    param_dtype, reduce_dtype, output_dtype : str or None
        Of ``MixedPrecisionPolicy``: in which layers compute and weights are gathered, as under
        ``precision: mixed``; in which gradients travel, that of the layers if it is left out; in
        which units hand on what they make, as layers do if it is left out.
    output_dtype_at : {"units", "root"} or None
        Whose policy has the ``output_dtype``: that of all units, or of the root alone, which hands
        on what the model makes. None is all units, unless layers of the root would take 32-bit
        values beside their 16-bit weights: there torch fails, and it is the root's alone.
    sync : {"every", "last"}
        After which micro-steps gradients are summed; those that are not stay whole until then.
    offload : {"none", "cpu"}
        ``CPUOffloadPolicy``: pieces, their gradients and the optimizer are the host's
        (`cluster.host`). Rows are copied to the device before they are gathered, and sums back.
    weight_by_shard : bool
        As of `DDP`.

    References
    ----------
    torch, distributed/fsdp/_fully_shard.
    """

    units: Units = "blocks"
    reshard_after_forward: Reshard = None
    reshard_after_backward: Bool = True
    forward_prefetch: Int | None = Field(None, ge=1)
    backward_prefetch: Annotated[Int | None, BeforeValidator(_no_word)] = Field(None, ge=1)
    param_dtype: Low | None = None
    reduce_dtype: Low | None = None
    output_dtype: Low | None = None
    output_dtype_at: Literal["units", "root"] | None = None
    sync: Literal["every", "last"] = "every"
    offload: Literal["none", "cpu"] = "none"
    weight_by_shard: Bool = False

    @property
    def updates_on_host(self) -> bool:
        return self.offload == "cpu"

    @property
    def keeps_parameters_on_host(self) -> bool:
        return self.offload == "cpu"

    def problem_with(self, world_size: int, workload: Workload) -> str | None:
        size, asked = self._shard_size(world_size), self.reshard_after_forward
        if size is not None and asked and size % asked:
            return (
                f"reshard_after_forward: {asked} does not divide the {size} ranks that share a "
                f"unit; use true, false or one of {_divisors(size)}."
            )
        found = unknown_unit(self.units, workload) or low_problem(self.param_dtype, workload)
        found = found or output_problem(self.output_dtype, self.param_dtype)
        return found or self._mixed_outputs(workload) or uneven(workload)

    def _mixed_outputs(self, workload: Workload) -> str | None:
        """Say that ``output_dtype_at`` has no sense, or torch would fail with it; or None."""
        if self.output_dtype_at is not None and self.output_dtype is None:
            return "output_dtype_at: needs output_dtype; write both, or none."
        if self.output_dtype_at != "units" or workload.model.timed:
            return None
        mixes = self.wide_outputs(workload)[1]
        if mixes is None:
            return None
        layer = workload.graph.calls[mixes].layer
        return (
            f"output_dtype_at: units, but {layer.name or layer.kind} is the root's: torch fails "
            f"where its {self.param_dtype} weights or inputs meet {self.output_dtype} ones; name "
            "its module in units, or write root."
        )

    def wide_outputs(self, workload: Workload) -> tuple[tuple[str, ...], int | None]:
        """Units within the root that hand on 32 bits; and the call on which torch fails then."""
        low = self.param_dtype
        if self.output_dtype != "float32" or low is None or low == "float32":
            return (), None
        modules = chosen(workload.graph, self.units)[1:]
        names = tuple(module.label for module in modules if module.last >= 0)
        return names, widened(workload.graph, names, low, workload.dtype).mixes

    def cast_units(self, workload: Workload) -> tuple[str, ...]:
        """Units whose outputs are cast; see `Strategy.cast_units`."""
        if workload.model.timed or self.output_dtype_at == "root":
            return ()
        if unknown_unit(self.units, workload) is not None:
            return ()
        names, mixes = self.wide_outputs(workload)
        return names if mixes is None else ()

    def _shard_size(self, world_size: int) -> int | None:
        """Ranks that share a unit; None where that is a node's size."""
        return world_size

    def _ranks(self, facts: Facts) -> Ints:
        """Groups of ranks that have all pieces, shape `(num_groups, group size)`."""
        return np.arange(facts.world_size)[None, :]

    def _groups(self) -> tuple[Group, ...]:
        """Process groups in which the model is made the same; pieces are those of the first."""
        return (None,)

    def _kept_by(self, facts: Facts) -> bool | int | None:
        """As ``reshard_after_forward``, a number only where some of those that share keep units."""
        asked, size = self.reshard_after_forward, int(self._ranks(facts).shape[1])
        if asked is None or isinstance(asked, bool):
            return asked
        return True if asked == size else asked

    def _dealt(self, facts: Facts) -> tuple[Rows, list[RowUnit]]:
        """Who owns what, and when each unit is needed."""
        modules = chosen(facts.graph, self.units)
        parameters = [module.parameters for module in modules]
        asked = self._kept_by(facts)
        few = 0 if asked is None or isinstance(asked, bool) else asked
        partition = by_rows(facts.parameters, parameters, self._ranks(facts), few)
        return partition, row_units(facts.graph, modules)

    def setup(self, facts: Facts) -> Ops:
        """Make every rank's model that of rank 0, and keep the pieces."""
        partition, _ = facts.once("units", lambda: self._dealt(facts))
        if partition.after_forward is not None:
            yield NewGroup(PART, members(facts.quorum.among(partition.after_forward.ranks)), 2)
        tags = count()
        for group in self._groups() if facts.quorum.group is None else ():
            yield from send_all(facts, facts.parameters, "parameters", 0, tags, group)
            yield from send_buffers(facts, 0, tags, group)
        yield Shard(partition)

    def _rules(self, facts: Facts, partition: Rows) -> RowRules:
        inside, *across = self._groups()
        own = facts.workload.precision.gradient_dtype(facts.workload.dtype)
        return RowRules(
            self._kept_by(facts),
            self.reshard_after_backward,
            self.sync == "last",
            self.forward_prefetch,
            self.backward_prefetch,
            self.reduce_dtype or own,
            inside,
            across[0] if across and len(partition.ranks) > 1 else None,
            PART,
            self.offload == "cpu",
        )

    def train_step(self, facts: Facts, step: Step) -> Ops:
        partition, units = facts.once("units", lambda: self._dealt(facts))
        rules, tags = self._rules(facts, partition), count()
        yield Scale(self.weight_by_shard)
        walk = RowWalk(facts, partition, units, rules, tags)
        for micro in range(step.num_micro_steps):
            yield from walk.run(micro, micro == step.num_micro_steps - 1)
        yield from agree(facts, tags, rules.inside)
        yield Update(facts.quorum.there)


class FSDP(PerParameter):
    """Fully sharded over all ranks."""

    kind: Literal["fsdp"] = "fsdp"


def _divisors(number: int) -> str:
    return ", ".join(str(n) for n in range(1, number + 1) if number % n == 0)
