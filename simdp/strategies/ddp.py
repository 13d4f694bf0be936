"""DistributedDataParallel: a replica per rank, gradients averaged in buckets behind backward.

Mirrors torch's Reducer (torch 2.13: distributed.py, reducer.cpp). Left out are what a constructor
checks (one int64 per rank, the shapes) and the two broadcasts of indices when buckets are rebuilt:
a few hundred bytes, once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from simdp.errors import ScenarioError, shown
from simdp.spec import Bool, Bytes, Int, problem
from simdp.steps.bucket import Bucket
from simdp.steps.buckets import assign, limits, rules
from simdp.steps.facts import Facts, Ops, Step, trainable
from simdp.steps.ops import AllReduce, Scale, Update, Wait
from simdp.steps.passes import Tags, backward, forward, send_all, send_buffers
from simdp.strategies.base import Strategy, copies_charged
from simdp.strategies.comm_hooks import AnyCommHook, CommHook, NoHook
from simdp.strategies.delayed import Delayed, problem_with_delay
from simdp.strategies.inference import idle_option, infer_in_processes
from simdp.strategies.left_out import (
    asks_others,
    dropped_in_part,
    meet_again,
    problem_with_backups,
    unequal_groups,
)
from simdp.strategies.low import Low, low_problem
from simdp.strategies.reducer import Message, Reducer
from simdp.strategies.upcast import MixedPrecision, Upcast, cast_down, forget_wide
from simdp.workload import Workload
from simdp.workload.layers import Parameter

USED_MAP_ITEMSIZE = 4
"""find_unused_parameters sends one int32 per parameter after the last bucket."""

JOIN_ITEMSIZE = 4
"""Join's notices are all_reduces of one number."""


VERSION = r"[1-9][0-9]?\.[0-9]+(\.[0-9]+)?"


def _a_version(value: object) -> object:
    if isinstance(value, str) and re.fullmatch(VERSION, value):
        return value
    # Without quotes, YAML reads 1.10 as the number 1.1.
    raise problem(
        f'{shown(value)} is not a version of torch; write for example "1.4", with quotes.'
    )


AnyVersion = Annotated[
    str, BeforeValidator(_a_version), Field(json_schema_extra={"pattern": f"^{VERSION}$"})
]


class DDP(Strategy):
    """``torch.nn.parallel.DistributedDataParallel``.

    Attributes
    ----------
    bucket_cap : float or None
        Limit of every bucket [bytes]. None is torch's default: 1 MiB for the first, then 25 MiB;
        0 puts every tensor into a bucket of its own.
    overlap : bool
        False waits for the whole backward pass before the first all_reduce.
    version : str or None
        Sort gradients as this version of torch did, such as ``"1.4"``; None is the newest. See
        `simdp.steps.buckets.rules`.
    bucket_order : {"gradient_ready", "reverse_registration", "reverse_buckets"} or None
        How buckets are sorted. By readiness: the first iteration has one bucket with everything,
        then they are rebuilt in the order in which gradients became ready. In reverse order of
        registration, from the start. Or filled in order of registration and sent from the last,
        from the start: the small bucket then goes last. None is what ``version`` does, which is
        ``gradient_ready`` since torch 1.6 and ``reverse_buckets`` before.
    find_unused_parameters : bool
        Buckets in registration order, reversed, never rebuilt; and a map of the used parameters is
        reduced after the last bucket.
    skip_all_reduce_unused_params : bool
        With ``find_unused_parameters``, a bucket in which no parameter is used is not reduced. All
        ranks have to have the same unused parameters.
    static_graph : bool
        Every step uses the same parameters. Those without a gradient are found in the first one,
        whose gradients are reduced after backward, behind a map of the used parameters; the second
        has one bucket too, and buckets follow the order in which its gradients became ready. torch
        fails if micro-steps before the last one do not reduce (``no_sync``); this is refused.
    delay_all_reduce_named_params : tuple of str or None
        Parameters whose gradients are in no bucket: all of them are reduced at once when
        ``param_to_hook_all_reduce`` gets its gradient, which comes after theirs.
    param_to_hook_all_reduce : str or None
        The parameter that starts it.
    gradient_as_bucket_view : bool
        Gradients live in their buckets, which then take no memory of their own and need no copies.
    charge_copies : bool or None
        Charge the copy of every gradient into its bucket and back, at the memory's bandwidth. None
        does as the cluster's overheads say.
    broadcast_buffers : bool
        Replace every rank's buffers, such as running means, by rank 0's before each forward that
        follows a reduction; and in the constructor and at the end of a join, with the parameters.
    comm_hook : CommHook
        What becomes of a bucket on its way: of `simdp.strategies.comm_hooks`.
    mixed_precision : MixedPrecision or None
        Compute in fewer bits than weights have: of `simdp.strategies.upcast`.
    join : bool
        Ranks whose samples run out take part in the others' reductions with zeros, as under
        torch's Join; at the end of the epoch the last one to go on, of several the largest rank,
        makes every replica a copy of its own.
    divide_by_initial_world_size : bool
        With ``join``, average over all ranks; False averages over those that still have samples.
    no_sync : bool
        Reduce gradients once per step; False reduces them after every micro-step.
    weight_by_shard : bool
        Weight each rank's loss by its share of what counts, which restores the mean over the global
        batch where ranks have unequal shards. torch does not.
    backup_ranks : int
        So many ranks are dropped in every step: those that would be the last to have their
        gradients (ties: the higher ranks). They leave each layer when the slowest of the others has
        done it, add zeros, and get the mean of the others as all do; what their samples teach is
        lost, and what forward would make of their buffers. Who that is follows from the times of
        compute with its stragglers, as if all ranks began the step together. Not in torch; see Chen
        et al., arXiv 1604.00981, 2016.
    """

    kind: Literal["ddp"] = "ddp"
    bucket_cap: Bytes | None = None
    overlap: Bool = True
    version: AnyVersion | None = None
    bucket_order: Literal["gradient_ready", "reverse_registration", "reverse_buckets"] | None = None
    find_unused_parameters: Bool = False
    skip_all_reduce_unused_params: Bool = False
    static_graph: Bool = False
    delay_all_reduce_named_params: tuple[str, ...] | None = None
    param_to_hook_all_reduce: str | None = None
    gradient_as_bucket_view: Bool = False
    charge_copies: Bool | None = None
    broadcast_buffers: Bool = True
    comm_hook: AnyCommHook = NoHook()
    mixed_precision: MixedPrecision | None = None
    join: Bool = False
    divide_by_initial_world_size: Bool = True
    no_sync: Bool = True
    weight_by_shard: Bool = False
    backup_ranks: Int = Field(0, ge=0)

    @model_validator(mode="after")
    def _join_and_backups_fit(self) -> Self:
        if not (self.join or self.divide_by_initial_world_size):
            raise problem("divide_by_initial_world_size: false needs join: true.")
        if self.backup_ranks and (wrong := dropped_in_part(self.join, self.comm_hook)):
            raise problem(f"backup_ranks drops gradients, {wrong}")
        return self

    @model_validator(mode="after")
    def _delay_needs_both(self) -> Self:
        if bool(self.delay_all_reduce_named_params) != (self.param_to_hook_all_reduce is not None):
            raise problem(
                "delay_all_reduce_named_params and param_to_hook_all_reduce go together; write "
                "both, or none."
            )
        return self

    @model_validator(mode="after")
    def _mixed_precision_reduces(self) -> Self:
        given = {
            "comm_hook": self.comm_hook.kind != "none",
            "delay_all_reduce_named_params": bool(self.delay_all_reduce_named_params),
        }
        wrong = [key for key, there in given.items() if there]
        if self.mixed_precision is not None and wrong:
            raise problem(
                f"mixed_precision reduces gradients by a hook of its own, beside which {wrong[0]} "
                "has no place; leave one of them out."
            )
        return self

    def settled(self, base: Path) -> Self:
        try:
            hook = self.comm_hook.settled(base)
        except ScenarioError as error:
            raise ScenarioError([f"comm_hook: {line}" for line in error.problems]) from None
        return self if hook is self.comm_hook else self.model_copy(update={"comm_hook": hook})

    def after_warmup(self) -> Self:
        hook = self.comm_hook.after_warmup()
        return self if hook is self.comm_hook else self.model_copy(update={"comm_hook": hook})

    @property
    def param_dtype(self) -> Low | None:
        """The dtype that layers compute in; None leaves it to ``workload.precision``."""
        return None if self.mixed_precision is None else self.mixed_precision.param_dtype

    @property
    def buffer_dtype(self) -> Low | None:
        """The dtype of buffers; None is the workload's."""
        return None if self.mixed_precision is None else self.mixed_precision.buffer_dtype

    @property
    def _casts(self) -> bool:
        return self.mixed_precision is not None and self.mixed_precision.is_low

    def problem_with(self, world_size: int, workload: Workload) -> str | None:
        if workload.mode == "inference":
            return idle_option(self, ("broadcast_buffers",))
        unused = workload.graph.unused
        if unused and not (self.find_unused_parameters or self.static_graph):
            return (
                f"find_unused_parameters: {unused[0]} gets no gradient, so that its bucket would "
                "never be complete; set find_unused_parameters: true."
            )
        accumulate = workload.grad_accum
        num_micro_steps = len(accumulate) if isinstance(accumulate, list) else accumulate
        if self.static_graph and self.no_sync and num_micro_steps > 1:
            return (
                f"static_graph: torch fails in the first step, of whose {num_micro_steps} "
                "micro-steps only the last one is not under no_sync; write no_sync: false, or "
                "static_graph: false."
            )
        if self.skip_all_reduce_unused_params:
            if not self.find_unused_parameters or self.static_graph:
                return (
                    "skip_all_reduce_unused_params: needs to know what is unused before it is "
                    "reduced; set find_unused_parameters: true, and static_graph: false."
                )
            if workload.unused:
                return (
                    "skip_all_reduce_unused_params: workload.unused gives ranks different unused "
                    "parameters, so that they would wait for each other; leave one of them out."
                )
        parts = workload.samples_per_rank or []
        if len(set(parts)) > 1 and not self.join:
            return (
                "join: ranks have different numbers of samples, and those that run out would "
                "leave the others waiting; set join: true."
            )
        if self.delay_all_reduce_named_params and self.param_to_hook_all_reduce:
            delayed, hooked = self.delay_all_reduce_named_params, self.param_to_hook_all_reduce
            wrong = problem_with_delay(delayed, hooked, workload)
            if wrong is not None:
                return wrong
        if self.backup_ranks and (
            wrong := problem_with_backups(self.backup_ranks, world_size, workload)
        ):
            return wrong
        wrong = low_problem(self.param_dtype, workload)
        return f"mixed_precision.{wrong}" if wrong else self.comm_hook.problem_with(workload)

    def problem_with_groups(
        self, num_groups: int, world_size: int, workload: Workload
    ) -> str | None:
        wrong = dropped_in_part(self.join, self.comm_hook)
        if wrong is not None:
            return f"kind: replica groups drop out with their gradients, {wrong}"
        if self.backup_ranks:
            return "backup_ranks: replica groups have none; leave it out."
        return unequal_groups(num_groups, world_size) or asks_others(workload)

    def buckets(
        self, parameters: Sequence[Parameter], ready: Sequence[str], itemsize: int, iteration: int
    ) -> list[list[str]]:
        """Names in each bucket, in launch order.

        Parameters
        ----------
        parameters : sequence of Parameter
            In order of registration.
        ready : sequence of str
            Names in the order in which gradients become ready.
        itemsize : int
            Bytes per element.
        iteration : int
            From 0; the first one differs from the others, and with a static graph the second.
        """
        torch = rules(self.version)
        caps = limits(self.bucket_cap, torch.equal_caps)
        order = self.bucket_order or ("gradient_ready" if torch.rebuilds else "reverse_buckets")
        searched = self.find_unused_parameters and not self.static_graph
        if order == "reverse_buckets" or searched:
            return assign(parameters, itemsize, caps)[::-1]
        if order == "reverse_registration":
            return assign(parameters[::-1], itemsize, caps)
        if iteration <= self.static_graph and torch.one_at_first:
            return [[parameter.name for parameter in parameters]]
        if iteration <= self.static_graph:
            return assign(parameters, itemsize, caps)[::-1]
        by_name = {parameter.name: parameter for parameter in parameters}
        # With a static graph those without a gradient come with the first hook.
        unused = by_name.keys() - set(ready) if self.static_graph else ()
        order_of_hooks = [*[name for name in by_name if name in unused], *ready]
        return assign([by_name[name] for name in order_of_hooks], itemsize, caps)

    def setup(self, facts: Facts) -> Ops:
        """Make every replica a copy of rank 0's."""
        yield from meet_again(facts)
        if facts.quorum.group is None:
            yield from self._send_model(facts, 0, count())
        yield from self.comm_hook.setup(facts)

    def _send_model(self, facts: Facts, root: int, tags: Tags) -> Ops:
        yield from send_all(facts, facts.parameters, "parameters", root, tags)
        if self.broadcast_buffers:
            yield from send_buffers(facts, root, tags)

    def train_step(self, facts: Facts, step: Step) -> Ops:
        tags = count()
        yield from self.average_gradients(facts, step, tags)
        yield Update(step.active() if self.join else facts.quorum.there)
        if self._casts:
            yield from forget_wide(facts)
        if self.join and step.closes_epoch:
            last_joiner = max(r for r, there in enumerate(step.active()) if there)
            yield from self._send_model(facts, last_joiner, tags)

    def average_gradients(self, facts: Facts, step: Step, tags: Tags) -> Ops:
        """Forward and backward of a step, up to the optimizer's turn."""
        yield Scale(self.weight_by_shard)
        last = step.num_micro_steps - 1
        for micro in range(last + 1):
            if self.join:
                yield from self._announce(tags)
            # torch: after a forward under no_sync the buffers are left alone.
            # Replica groups have nobody to broadcast to.
            is_silent = (self.no_sync and micro) or facts.quorum.participants is not None
            if self.broadcast_buffers and not is_silent:
                yield from send_buffers(facts, self._authority(step, micro), tags)
            if self._casts:
                yield from cast_down(facts, bool(self.no_sync and micro))
            yield from forward(facts, micro)
            if self.no_sync and micro < last:
                yield from backward(facts, micro)
                continue
            # Buckets are rebuilt after the first backward that is reduced.
            iteration = self._iteration(facts, step, micro)
            reducer = self._reducer(facts, step, micro, iteration, tags)
            used = list(self._used_map(facts, iteration, tags))
            if self.static_graph and not iteration:
                yield from backward(facts, micro)
                yield from used
                yield from reducer.mark_all()
            else:
                yield from reducer.backward(micro, self.overlap)
                yield from used
            yield from reducer.finish([op.tag for op in used])

    def _iteration(self, facts: Facts, step: Step, micro: int) -> int:
        """Count the backward passes that were reduced before; from 2 on all are alike."""
        earlier = 0 if self.no_sync else micro
        if step.reduced_before(1):
            return min(earlier, 2)
        if not self.static_graph or facts.workload.model.timed or not step.reduced_before(2):
            return 2
        return min(1 + earlier if self.no_sync else step.num_micro_steps + earlier, 2)

    def infer_step(self, facts: Facts, step: Step) -> Ops:
        yield from infer_in_processes(facts, facts.workload.global_batch is not None)

    def _reducer(self, facts: Facts, step: Step, micro: int, iteration: int, tags: Tags) -> Reducer:
        """Multiply by 1/W before the sum; unused parameters are ready with the first hook.

        Gradients that live in their buckets need no copies.
        """
        copies = copies_charged(self.charge_copies, facts) and not self.gradient_as_bucket_view
        hook, before, after = self._hook(facts, step, micro)
        apart = set(self.delay_all_reduce_named_params or ())
        parameters = [p for p in trainable(facts) if p.name not in apart]
        ready = [name for name in facts.ready_order if name not in apart]
        itemsize = facts.workload.itemsize if self._casts else facts.itemsize
        layout = self.buckets(parameters, ready, itemsize, iteration) if parameters else []
        if self.skip_all_reduce_unused_params:
            layout = [names for names in layout if not set(names) <= set(facts.unused)]
        messages = [
            Message(self._bucket(facts, names, hook.dtype), 0.0, copies, copies) for names in layout
        ]
        kept = {name for names in layout for name in names}
        unused = [name for name in facts.unused if name not in apart and name in kept]
        return Reducer(facts, messages, tags, before, after, unused, hook, self._delayed(facts))

    def _hook(self, facts: Facts, step: Step, micro: int) -> tuple[CommHook, float, float]:
        """Who sends buckets, and what gradients are divided by before and after the sum."""
        divisor, mixed = float(self._divisor(facts, step, micro)), self.mixed_precision
        if mixed is None:
            return self.comm_hook.of(step), divisor, 1.0
        own = facts.workload.precision.gradient_dtype(facts.workload.dtype)
        asked = None if mixed.reduce_dtype == own else mixed.reduce_dtype
        is_first = self.no_sync or micro == 0
        return Upcast(reduce_dtype=asked, casts=self._casts, is_first=is_first), 1.0, divisor

    def _delayed(self, facts: Facts) -> Delayed | None:
        """The gradients that are in no bucket; they live in a buffer of their own."""
        if not (self.delay_all_reduce_named_params and self.param_to_hook_all_reduce):
            return None
        bucket = facts.bucket(self.delay_all_reduce_named_params, room=0.0)
        return Delayed(bucket, self.param_to_hook_all_reduce)

    def _bucket(self, facts: Facts, names: Sequence[str], dtype: str | None) -> Bucket:
        """A bucket has the gradients' own dtype; a hook may send it in another."""
        is_view = self.gradient_as_bucket_view
        found = facts.bucket(names, is_view=is_view, is_compressed=dtype is not None)
        return found._replace(dtype=dtype or found.dtype)

    def _used_map(self, facts: Facts, iteration: int, tags: Tags) -> Iterator[AllReduce]:
        if not iteration if self.static_graph else self.find_unused_parameters:
            nbytes = float(USED_MAP_ITEMSIZE * len(trainable(facts)))
            yield AllReduce(next(tags), "used parameters", nbytes, group=facts.quorum.group)

    def _announce(self, tags: Tags) -> Ops:
        """Under Join, ranks count who still has samples, and whether gradients will be reduced."""
        counted, agreed = next(tags), next(tags)
        yield AllReduce(counted, "active ranks", JOIN_ITEMSIZE)
        yield AllReduce(agreed, "will reduce", JOIN_ITEMSIZE)
        # Only an average over the active ranks needs the count on the host.
        yield Wait((agreed,) if self.divide_by_initial_world_size else (counted, agreed))

    def _authority(self, step: Step, micro: int) -> int:
        """Whose buffers count: rank 0's; under Join those of the last rank that has samples."""
        there = step.active(micro) if self.join else [True]
        return max(r for r, has_samples in enumerate(there) if has_samples)

    def _divisor(self, facts: Facts, step: Step, micro: int) -> int:
        if self.divide_by_initial_world_size:
            return facts.quorum.num_counted
        return sum(step.active(micro))
