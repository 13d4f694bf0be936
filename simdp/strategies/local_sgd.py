"""Local SGD and DiLoCo: ranks train separate weights, averaged every few steps."""

from __future__ import annotations

from itertools import count
from math import lcm
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from simdp.arrays import Ints
from simdp.errors import shown
from simdp.keys import written
from simdp.spec import MAX_INT, Bool, Bytes, Int, problem
from simdp.steps.facts import Facts, Ops, StepContext, Tags, num_trainable
from simdp.steps.ops import (
    Average,
    Copy,
    Hold,
    NewGroup,
    OuterUpdate,
    StartOuter,
    Update,
    Wait,
)
from simdp.steps.partition import Bucket, Group
from simdp.strategies.base import (
    Departure,
    Strategy,
    copies_charged,
    divisors_of,
    members,
    own_gradients,
    synchronised_norms,
    unequal_groups,
    uneven,
)
from simdp.strategies.comm_hooks import CommHook, Sending, plain
from simdp.strategies.ddp import DDP
from simdp.workload import Workload
from simdp.workload.optimizers import AnyOptimizer
from simdp.workload.optimizers.sgd import SGD

AFTER_WARMUP = 10**6
"""First number of the average's collectives, beyond those of a step's gradients."""


SUBGROUP = "subgroup"
"""Name of the process groups that average gradients after the warm-up."""

WORDS = ("node", "world")


def _a_size(value: object, key: str, words: tuple[str, ...]) -> object:
    if value in words or (isinstance(value, int) and 1 <= value <= MAX_INT and value is not True):
        return value
    raise problem(
        f"{key}{shown(value)} is not a size of process groups; write one of {', '.join(words)}, or "
        "a number of ranks."
    )


def _a_subgroup(value: object) -> object:
    return _a_size(value, "", ("none", *WORDS))


def _periods(value: object) -> object:
    """Validate and sort periods, which are strings in result.json."""
    if value is None:
        return None
    if not isinstance(value, dict) or not value:
        raise problem(
            f"{shown(value)} has no periods; write the ranks that average for each, such as "
            "{2: node, 8: world}."
        )
    sizes: dict[int, object] = {}
    for key, size in value.items():
        period = int(key) if isinstance(key, str) and key.isdecimal() else key
        if not isinstance(period, int) or period is True or not 1 <= period <= MAX_INT:
            raise problem(f"{shown(key)} is not a period; write a whole number of steps from 1.")
        sizes[period] = _a_size(size, f"{period}: ", WORDS)
    return dict(sorted(sizes.items()))


AnySize = Literal["node", "world"] | Int
Subgroup = Annotated[Literal["none", "node", "world"] | Int, BeforeValidator(_a_subgroup)]
PeriodGroupSizes = Annotated[dict[int, AnySize] | None, BeforeValidator(_periods)]


class _InSubgroup(CommHook):
    """Averages a bucket in a process group of ``size`` ranks (torch: post_localSGD_hook)."""

    kind: str = "post_local_sgd"
    group: str | None = None
    size: int = 1

    def divided(self, divisor: float) -> float:
        return float(self.size)

    def send(
        self, facts: Facts, bucket: Bucket, label: str, wait: float, divisor: float, tags: Tags
    ) -> Sending:
        return plain(facts, bucket, label, wait, tags, self.group)


class LocalSGD(Strategy):
    """Local optimizer steps, then an average of the weights (post-local SGD).

    As torch's ``DistributedDataParallel`` with ``post_localSGD_hook`` and ``PeriodicModelAverager``
    or, with ``period_group_size_dict``, ``HierarchicalModelAverager``: all parameters are averaged
    in one buffer after the optimizer's step. Optimizer state and buffers stay local. A period ends
    with its average, after ``local_steps`` steps; torch's begins with it. As in torch, a run that
    ends within a period averages nothing more: its replicas differ.

    References
    ----------
    Lin, Stich, Patel and Jaggi, "Don't use large mini-batches, use local SGD", ICLR 2020.
    """

    averages_parameters: ClassVar[bool] = True
    wrapper: ClassVar[str] = "DistributedDataParallel"

    kind: Literal["local_sgd"] = "local_sgd"
    local_steps: Annotated[Int, Field(ge=1)] = 8
    """Steps from one average to the next, H (torch: period). With ``period_group_size_dict`` it is
    left out: the steps after which its averages repeat."""
    warmup_steps: Annotated[Int, Field(ge=0)] = 0
    """Steps before the first local one; in these gradients are averaged, as under `DDP` (torch:
    start_localSGD_iter)."""
    subgroup: Subgroup = "none"
    """Ranks that average gradients in every step after the warm-up: those of a node, torch's
    default, or this many neighbours. "none" averages no gradients then, as
    ``post_local_gradient_allreduce=False``."""
    period_group_size_dict: PeriodGroupSizes = None
    """Group size of neighbours for each period in steps; where several periods end, the longest one
    applies, and it has all ranks. Periods are counted from the first step of the run, also with a
    warm-up. None averages among all ranks every ``local_steps``."""
    average_at: Literal["end", "begin"] = "end"
    """Whether weights are averaged after the last step of a period, or, as in torch, after its
    first one."""
    averager_warmup_steps: Annotated[Int, Field(ge=0)] | None = None
    """Steps before the first period (torch: warmup_steps of the averager, where ``warmup_steps`` is
    start_localSGD_iter of the hook); None is ``warmup_steps``."""
    bucket_cap: Bytes | None = None
    """As of `DDP`, for the warm-up."""
    overlap: Bool = True
    """As of `DDP`, for the warm-up."""
    charge_copies: Bool | None = None
    """Charge the copies of weights and gradients into the buffers and back. None follows the
    cluster's overheads."""
    weight_by_shard: Bool = False
    """As of `DDP`."""

    @model_validator(mode="before")
    @classmethod
    def _repeats_after(cls, data: object) -> Any:
        """Set ``local_steps`` to the steps after which the averages of several periods repeat."""
        if not isinstance(data, dict) or not isinstance(data.get("period_group_size_dict"), dict):
            return data
        try:
            whole = lcm(*map(int, _periods(data["period_group_size_dict"])))  # type: ignore[call-overload]
        except ValueError:  # which is refused with the field
            return data
        return {"local_steps": whole, **data}

    @model_validator(mode="after")
    def _averagers_fit(self) -> Self:
        whole = lcm(*self.period_group_size_dict or [self.local_steps])
        if self.local_steps != whole:
            raise problem(
                f"local_steps: {self.local_steps}, but the averages of period_group_size_dict "
                f"repeat after {whole} steps; leave local_steps out."
            )
        if self.weight_by_shard and self.subgroup not in ("none", "world"):
            raise problem(
                "weight_by_shard: a rank's share is that of the global batch, which a subgroup "
                "does not have; leave it out, or write subgroup: none."
            )
        return self

    def _ddp(self, hook: CommHook | None = None) -> DDP:
        keys = ("bucket_cap", "overlap", "charge_copies", "weight_by_shard")
        options = {key: getattr(self, key) for key in keys} | {"broadcast_buffers": False}
        return DDP().model_copy(update=options | ({} if hook is None else {"comm_hook": hook}))

    def problem_with(self, world_size: int, workload: Workload) -> str | None:
        reduces = "warmup_steps: " if self.warmup_steps else "subgroup: "
        if (self.warmup_steps or self.subgroup != "none") and workload.graph.unused:
            instead = "set warmup_steps: 0" if self.subgroup == "none" else "set subgroup: none"
            return (
                f"{reduces}{workload.graph.unused[0]} gets no gradient, so that its bucket "
                f"would never be complete; {instead}."
            )
        return self._wrong_sizes(world_size) or uneven(workload)

    def _wrong_sizes(self, world_size: int) -> str | None:
        """Refuse group sizes that do not fit the ranks; or None."""
        periods = self.period_group_size_dict or {}
        given = {"subgroup": self.subgroup}
        given |= {f"period_group_size_dict.{period}": size for period, size in periods.items()}
        for key, size in given.items():
            if isinstance(size, int) and world_size % size:
                return (
                    f"{key}: {size} does not divide the {world_size} ranks; use one of "
                    f"{divisors_of(world_size)}."
                )
        longest = max(periods, default=0)
        if periods and periods[longest] not in ("world", world_size):
            return (
                f"period_group_size_dict.{longest}: {periods[longest]} ranks, but the longest "
                f"period averages among all {world_size}; write world."
            )
        return None

    def _size_of(self, size: str | int, facts: Facts) -> int:
        if isinstance(size, int):
            return size
        return facts.local_size if size == "node" else facts.world_size

    def _group_of(self, name: str, size: str | int, facts: Facts) -> str | None:
        """Return the name of process groups of a size; None for all ranks."""
        return None if self._size_of(size, facts) == facts.world_size else name

    def _groups(self, facts: Facts) -> Ops:
        """Make process groups of neighbours."""
        sizes = {} if self.subgroup == "none" else {SUBGROUP: self.subgroup}
        for period, size in (self.period_group_size_dict or {}).items():
            sizes[f"period {period}"] = size
        for name, size in sizes.items():
            if self._group_of(name, size, facts) is not None:
                ranks: Ints = np.arange(facts.world_size).reshape(-1, self._size_of(size, facts))
                yield NewGroup(name, members(ranks), 0)

    def problem_with_groups(
        self, num_groups: int, world_size: int, workload: Workload
    ) -> str | None:
        given = {
            "warmup_steps": self.warmup_steps or self.averager_warmup_steps,
            "average_at": self.average_at == "begin",
            "subgroup": self.subgroup != "none",
            "period_group_size_dict": self.period_group_size_dict is not None,
        }
        wrong = [key for key, there in given.items() if there]
        if wrong:
            return (
                f"{wrong[0]}: replica groups take part in whole periods, each with its average at "
                "its end; leave this out."
            )
        return unequal_groups(num_groups, world_size) or synchronised_norms(workload)

    @property
    def steps_together(self) -> int:
        return self.local_steps

    @property
    def first_alike(self) -> int:
        return self.warmup_steps

    @property
    def has_several_periods(self) -> bool:
        return self.period_group_size_dict is not None

    def with_period(self, steps: int) -> Self:
        return self.model_copy(update={"local_steps": steps})

    def departures(self, workload: Workload) -> list[Departure]:
        text = f"ranks update their own weights before the average: {self.averaging()}"
        weighs = {"kind": "ddp", "weight_by_shard": self.weight_by_shard}
        local = Departure("local_updates", "strategy.local_steps", text, {"strategy": weighs})
        return [local, *super().departures(workload)]

    def averaging(self) -> str:
        periods = self.period_group_size_dict or {self.local_steps: "world"}
        words = {"node": " within a node", "world": ""}
        phrases = [
            f"every {period} steps{words.get(str(size), f' among {size} ranks')}"
            for period, size in periods.items()
        ]
        inside = self.subgroup
        among = words.get(str(inside), f" among {inside} ranks")
        gradients = "" if inside == "none" else f", gradients{among} in every step"
        return f"weights {', '.join(phrases)}{gradients}"

    def after_warmup(self) -> Self:
        return self.model_copy(update={"warmup_steps": 0, "averager_warmup_steps": None})

    def setup(self, facts: Facts) -> Ops:
        """Broadcast rank 0's model, and make the process groups."""
        yield from self._ddp().setup(facts)
        yield from self._groups(facts)

    def train_step(self, facts: Facts, step: StepContext) -> Ops:
        if step.before(self.warmup_steps) or self.subgroup != "none":
            hook = None
            if not step.before(self.warmup_steps):
                group = self._group_of(SUBGROUP, self.subgroup, facts)
                hook = _InSubgroup(group=group, size=self._size_of(self.subgroup, facts))
            yield from self._ddp(hook).train_step(facts, step)
            yield from self._averaged(facts, step)
            return
        yield from own_gradients(facts, step, self.weight_by_shard)
        yield Update(self._learning(facts, step))
        yield from self._averaged(facts, step)

    def _learning(self, facts: Facts, step: StepContext) -> tuple[bool, ...]:
        """Return the ranks with samples that are not just rejoining."""
        active, present = step.active(), facts.quorum.participants
        if present is None:
            return active
        return tuple(
            is_active and counts
            for is_active, counts in zip(active, present.counted.tolist(), strict=True)
        )

    def _averaged(self, facts: Facts, step: StepContext) -> Ops:
        """Average the weights, if a period is due in this step."""
        given = self.averager_warmup_steps
        warmup = self.warmup_steps if given is None else given
        if step.before(warmup):
            return
        late = self.average_at == "begin"
        if (periods := self.period_group_size_dict) is not None:
            ended = step.longest_period(tuple(periods), int(late), warmup)
            if ended is not None:
                name, among = f"period {ended}", periods[ended]
                yield from self._average(facts, count(AFTER_WARMUP), name, among)
        elif step.ends_period(self.local_steps, since=warmup + late):
            # Collectives of a warm-up step come before it.
            yield from self._average(facts, count(AFTER_WARMUP))

    def _average(self, facts: Facts, tags: Tags, name: str = "", among: str | int = "world") -> Ops:
        """Average the weights in the process groups of a period."""
        group: Group = self._group_of(name, among, facts)
        size = None if group is None else self._size_of(among, facts)
        copies = copies_charged(self.charge_copies, facts)
        group = facts.quorum.group if group is None else group
        yield from average_weights(facts, next(tags), copies, group, size)


def average_weights(
    facts: Facts, tag: int, copies: bool, group: Group = None, size: int | None = None
) -> Ops:
    """Average all trainable weights in one buffer, divided before the sum.

    Master weights are averaged where they exist, or the next update would undo it. ``copies``
    charges those into the buffer and back; ``group``, ``size`` are as of `simdp.steps.ops.Average`.
    """
    nbytes = float(num_trainable(facts) * facts.workload.itemsize)
    yield Hold("temporary", nbytes)
    if copies:
        yield Copy("weights", nbytes)
    yield Average(tag, "weights", nbytes, group, size)
    yield Wait((tag,))
    if copies:
        yield Copy("weights", nbytes)
    yield Hold("temporary", -nbytes)


class DiLoCo(Strategy):
    """Local steps, then an outer optimizer step on the average (DiLoCo).

    After ``local_steps`` local steps, ranks average their weights. The weights before these steps
    less the average are the gradient of an outer optimizer, which computes the weights with which
    all ranks continue. Inner optimizer state and buffers stay local. Every rank keeps a copy of the
    global weights and of the outer optimizer's state in device memory. A run that ends within a
    period leaves replicas that differ.

    References
    ----------
    Douillard et al., "DiLoCo: Distributed low-communication training of language models", arXiv
    2311.08105, 2023.
    """

    averages_parameters: ClassVar[bool] = True

    kind: Literal["diloco"] = "diloco"
    local_steps: Annotated[Int, Field(ge=1)] = 500
    """Steps from one outer update to the next, H."""
    outer_optimizer: AnyOptimizer = SGD(lr=0.7, momentum=0.9, nesterov=True)
    """By default SGD with Nesterov momentum 0.9 and lr 0.7; ``{kind: sgd, lr: 1}`` is an
    average."""
    charge_copies: Bool | None = None
    """Charge the copies of weights into the buffer and back. None follows the cluster's
    overheads."""

    def problem_with(self, world_size: int, workload: Workload) -> str | None:
        outer = self.outer_optimizer
        for parameter in workload.graph.trainable:
            if wrong := outer.problem_with(parameter.name, parameter.shape):
                return f"outer_optimizer: {wrong}"
        return uneven(workload)

    @property
    def steps_together(self) -> int:
        return self.local_steps

    def with_period(self, steps: int) -> Self:
        return self.model_copy(update={"local_steps": steps})

    def departures(self, workload: Workload) -> list[Departure]:
        text = f"ranks update their own weights before the average: {self.averaging()}"
        return [Departure("local_updates", "strategy.local_steps", text, {"strategy": "ddp"})]

    def averaging(self) -> str:
        outer = self.outer_optimizer.model_dump(mode="json", exclude_defaults=True)
        by = written(outer | {"kind": self.outer_optimizer.kind})
        return f"weights every {self.local_steps} steps, updated by {by}"

    def setup(self, facts: Facts) -> Ops:
        """Broadcast rank 0's model, and copy its weights as the global ones."""
        yield from DDP(broadcast_buffers=False).setup(facts)
        yield StartOuter(self.outer_optimizer)

    def train_step(self, facts: Facts, step: StepContext) -> Ops:
        yield from own_gradients(facts, step)
        yield Update(step.active())
        if step.ends_period(self.local_steps, since=0):
            yield from average_weights(facts, 0, copies_charged(self.charge_copies, facts))
            yield OuterUpdate(self.outer_optimizer)
