"""Local SGD: every rank trains by itself, and now and then all weights are averaged."""

from __future__ import annotations

from itertools import count
from typing import Annotated, Literal, Self

from pydantic import Field

from simdp.spec import Bool, Bytes, Int
from simdp.steps.facts import Facts, Ops, Step, num_trainable
from simdp.steps.ops import Average, Copy, Hold, Scale, Update, Wait
from simdp.steps.passes import Tags, backward, forward
from simdp.strategies.base import Strategy, copies_charged, uneven
from simdp.strategies.ddp import DDP
from simdp.strategies.left_out import asks_others, unequal_groups
from simdp.workload import Workload

AFTER_WARMUP = 10**6
"""Numbers for the average's collectives, beyond those of a step's gradients."""


class LocalSGD(Strategy):
    """Steps of every rank's own optimizer, then an average of the weights (post-local SGD).

    As torch's ``DistributedDataParallel`` with ``post_localSGD_hook``, without a subgroup, and
    ``PeriodicModelAverager``: all parameters travel as one buffer after the optimizer's step.
    Optimizer state and buffers stay what each rank's own steps have made of them. A period ends
    with its average, after ``local_steps`` steps; torch's begins with it. Nothing is averaged at
    the end of a run that ends within a period, as in torch: its replicas differ.

    Attributes
    ----------
    local_steps : int
        Steps from one average to the next, H (torch: period).
    warmup_steps : int
        Steps before the first local one; in these gradients are averaged, as under `DDP`.
    average_at : {"end", "begin"}
        Whether weights are averaged after the last step of a period, or, as torch does, after its
        first one.
    averager_warmup_steps : int or None
        Steps before the first period (torch: warmup_steps of the averager, where ``warmup_steps``
        is start_localSGD_iter of the hook); None is ``warmup_steps``.
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
    average_at: Literal["end", "begin"] = "end"
    averager_warmup_steps: Annotated[Int, Field(ge=0)] | None = None
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

    def problem_with_groups(
        self, num_groups: int, world_size: int, workload: Workload
    ) -> str | None:
        given = {
            "warmup_steps": self.warmup_steps or self.averager_warmup_steps,
            "average_at": self.average_at == "begin",
        }
        wrong = [key for key, there in given.items() if there]
        if wrong:
            return (
                f"{wrong[0]}: replica groups take part in whole periods, each with its average at "
                "its end; leave this out."
            )
        return unequal_groups(num_groups, world_size) or asks_others(workload)

    @property
    def steps_together(self) -> int:
        return self.local_steps

    def after_warmup(self) -> Self:
        return self.model_copy(update={"warmup_steps": 0, "averager_warmup_steps": None})

    def setup(self, facts: Facts) -> Ops:
        """Make every replica a copy of rank 0's."""
        yield from self._ddp.setup(facts)

    def train_step(self, facts: Facts, step: Step) -> Ops:
        if step.before(self.warmup_steps):
            yield from self._ddp.train_step(facts, step)
            yield from self._averaged(facts, step)
            return
        yield Scale(self.weight_by_shard)
        for micro in range(step.num_micro_steps):
            yield from forward(facts, micro)
            yield from backward(facts, micro)
        yield Update(self._learning(facts, step))
        yield from self._averaged(facts, step)

    def _learning(self, facts: Facts, step: Step) -> tuple[bool, ...]:
        """Who has samples, and does not just wait for the weights of the others."""
        active, who = step.active(), facts.quorum.participants
        if who is None:
            return active
        return tuple(
            one and counts for one, counts in zip(active, who.counted.tolist(), strict=True)
        )

    def _averaged(self, facts: Facts, step: Step) -> Ops:
        """Average the weights, if this is the step of a period that does."""
        given = self.averager_warmup_steps
        warmup = self.warmup_steps if given is None else given
        if step.before(warmup):
            return
        if step.ends_period(self.local_steps, since=warmup + (self.average_at == "begin")):
            # Collectives of a warm-up step come before it.
            yield from self._average(facts, count(AFTER_WARMUP))

    def _average(self, facts: Facts, tags: Tags) -> Ops:
        """All weights that are not frozen travel as one buffer, divided before the sum.

        With master weights these are averaged, or the next update would undo it.
        """
        nbytes, tag = float(num_trainable(facts) * facts.workload.itemsize), next(tags)
        copies = copies_charged(self.charge_copies, facts)
        yield Hold("temporary", nbytes)
        if copies:
            yield Copy("weights", nbytes)
        yield Average(tag, "weights", nbytes, facts.quorum.group)
        yield Wait((tag,))
        if copies:
            yield Copy("weights", nbytes)
        yield Hold("temporary", -nbytes)
