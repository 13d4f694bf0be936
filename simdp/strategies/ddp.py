"""DistributedDataParallel of torch and of Apex, and the reducer's buckets.

Mirrors torch's Reducer (torch 2.13: distributed.py, reducer.cpp), without the constructor's checks
(one int64 per rank, the shapes) and the two broadcasts of indices when buckets are rebuilt: a few
hundred bytes, once.

Mirrors apex/parallel/distributed.py of NVIDIA/apex, without custom triggers, several all_reduce
streams, and the broadcast of the bucket structure, a few hundred bytes once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import BeforeValidator, Field, model_validator

from simdp.errors import ScenarioError, shown, unknown_name
from simdp.keys import written
from simdp.spec import Bool, Bytes, Float, Int, Spec, problem
from simdp.steps.facts import Facts, LayerDtypes, Ops, StepContext, Tags, trainable
from simdp.steps.ops import AllReduce, Copy, FillBucket, Hold, ScaleLoss, Take, Update, Wait
from simdp.steps.partition import Bucket, assign, limits, rules
from simdp.steps.passes import backward, forward, send, send_buffers
from simdp.strategies.base import (
    Departure,
    Low,
    Strategy,
    broadcast_model,
    copies_charged,
    idle_option,
    infer_in_processes,
    low_problem,
    make_quorum,
    partial_drop,
    problem_with_backups,
    synchronised_norms,
    unequal_groups,
    uneven,
)
from simdp.strategies.comm_hooks import AnyCommHook, CommHook, NoHook, Sending, SentBucket
from simdp.workload import Workload
from simdp.workload.layers.base import Parameter
from simdp.workload.models.base import Model
from simdp.workload.precision import numpy_dtype


class Delayed(NamedTuple):
    """Gradients all_reduced together when the gradient of the parameter ``hooked`` is ready."""

    bucket: Bucket
    hooked: str


def problem_with_delay(names: Sequence[str], hooked: str, workload: Workload) -> str | None:
    """Explain why gradients cannot wait for ``hooked`` to start their all_reduce; or None."""
    ready, all_of_them = workload.graph.ready_order, [p.name for p in workload.graph.trainable]
    unknown = [name for name in names if name not in all_of_them]
    if unknown:
        lead = f"delay_all_reduce_named_params: no parameter is called {shown(unknown[0])}"
        return unknown_name("", unknown[0], all_of_them, lead=lead)
    if hooked not in ready:
        lead = f"param_to_hook_all_reduce: no parameter {shown(hooked)} gets a gradient"
        return unknown_name("", hooked, ready, lead=lead)
    before = ready[: ready.index(hooked)]
    late = [name for name in names if name in ready and name not in before]
    if late:
        return (
            f"param_to_hook_all_reduce: {late[0]} has no gradient yet when {hooked} gets one, so "
            f"that it would not be reduced; hook the last one, {ready[-1]}, or leave it out of "
            "delay_all_reduce_named_params."
        )
    return None


class Message(NamedTuple):
    """One all_reduce of gradients."""

    bucket: Bucket
    wait: float = 0.0  # delay after the last gradient is ready [s]
    copied: bool = False  # whether copies into the bucket are charged
    copied_back: bool = False  # and those back


class Reducer:
    """Averages the gradients of one backward pass, bucket by bucket.

    Every parameter is in one of ``messages``, or in ``delayed``. Gradients are divided by
    ``before`` the sum, and sums by ``after``; ``unused`` parameters are ready with the first hook.
    """

    def __init__(
        self,
        facts: Facts,
        messages: Sequence[Message],
        tags: Tags,
        before: float = 1.0,
        after: float = 1.0,
        unused: Sequence[str] = (),
        comm_hook: CommHook | None = None,
        delayed: Delayed | None = None,
    ) -> None:
        self.facts, self.messages, self.tags = facts, messages, tags
        self.before, self.after = before, after
        self.hook: CommHook = comm_hook or NoHook()
        self.divisor = self.hook.divided(before)
        self.home = {
            name: number for number, message in enumerate(messages) for name in message.bucket.names
        }
        self.missing = [len(message.bucket.names) for message in messages]
        self.sent: list[SentBucket] = []
        self.unmarked = list(unused)
        self.delayed, self.delayed_tags = delayed, list[int]()

    def backward(self, micro: int, overlap: bool) -> Ops:
        """Run backward; without ``overlap`` nothing is sent before its end."""
        if overlap:
            yield from backward(self.facts, micro, self.mark_ready)
            return
        yield from backward(self.facts, micro)
        yield from self.mark_all()

    def mark_all(self) -> Ops:
        """Mark all gradients ready, one after the other."""
        for name in self.facts.ready_order:
            yield from self.mark_ready(name)

    def mark_ready(self, name: str) -> Ops:
        """Copy a gradient into its bucket; launch complete buckets, in order."""
        names, self.unmarked = [*self.unmarked, name], []
        if self.delayed is not None:
            yield from self._delay(name, self.delayed)
        for ready in [ready for ready in names if ready in self.home]:
            message = self.messages[self.home[ready]]
            yield FillBucket(message.bucket, ready, self.divisor, message.copied)
            self.missing[self.home[ready]] -= 1
        while len(self.sent) < len(self.messages) and not self.missing[len(self.sent)]:
            turn = len(self.sent)
            message, label = self.messages[turn], f"bucket {turn}"
            send = self.hook.send(
                self.facts, message.bucket, label, message.wait, self.before, self.tags
            )
            self.sent.append((yield from send))

    def _delay(self, name: str, delayed: Delayed) -> Ops:
        """Collect a delayed gradient; send all of them when the hooked one is ready."""
        if name in delayed.bucket.names:
            yield FillBucket(delayed.bucket, name, self.before)
        if name == delayed.hooked:
            self.delayed_tags.append(next(self.tags))
            tag, bucket, group = self.delayed_tags[-1], delayed.bucket, self.facts.quorum.group
            yield AllReduce(tag, "delayed gradients", bucket.nbytes, bucket, group=group)

    def finish(self, others: Sequence[int] = ()) -> Ops:
        """Wait for all buckets and ``others``, and copy the averages back."""
        waiting = list[int]()
        for sent in self.sent:
            if not sent.finish:
                waiting += sent.tags
                continue
            yield Wait(sent.tags)
            yield from sent.finish
        yield Wait((*waiting, *others, *self.delayed_tags))
        for message in self.messages:
            yield Take(message.bucket, self.after, message.copied_back)
        if self.delayed is not None:
            yield Take(self.delayed.bucket)


# Upcast -------------------------------------------------------------------------------------------


class MixedPrecision(Spec):
    """``_MixedPrecision`` of torch's DDP: float32 weights with copies of lower precision.

    Weights are copied to 16 bits before forward, one after the other; torch does so on a separate
    stream. The copies of a bucket are freed when its gradients have been averaged, which are then
    cast to float32 for the optimizer.

    References
    ----------
    torch, nn/parallel/distributed.py (_MixedPrecision) and
    distributed/algorithms/ddp_comm_hooks/mixed_precision_hooks.py.
    """

    param_dtype: Low | None = None
    """Compute dtype of layers, as under ``precision: mixed``. None is float32."""
    reduce_dtype: Low | None = None
    """Dtype in which gradients are sent, and divided after the sum. None is ``param_dtype``."""
    buffer_dtype: Low | None = None
    """Dtype of buffers, such as running means, rounded at every change; counters stay integers.
    None is float32."""

    @property
    def is_low(self) -> bool:
        """Whether layers compute in another dtype than the weights'."""
        return self.param_dtype not in (None, "float32")


class Upcast(CommHook):
    """Sums a bucket in ``reduce_dtype``, casts its averages to float32, and frees its copies."""

    kind: str = "upcast"
    reduce_dtype: str | None = None  # of gradients that are sent
    casts: bool = False  # whether weights have copies
    is_first: bool = True  # whether gradients have the copies' dtype

    @property
    def dtype(self) -> str | None:
        return self.reduce_dtype

    def send(
        self, facts: Facts, bucket: Bucket, label: str, wait: float, divisor: float, tags: Tags
    ) -> Sending:
        tag, nbytes = next(tags), float(bucket.num_elements * numpy_dtype(bucket.dtype).itemsize)
        beside = nbytes if self.reduce_dtype is not None else 0.0
        if beside:
            yield Copy(f"{label} to {bucket.dtype}", (bucket.nbytes + nbytes) / 2)
            yield Hold("temporary", beside)
        yield AllReduce(tag, label, nbytes, bucket, wait, group=facts.quorum.group)
        back = [Hold("temporary", -beside)] if beside else []
        return SentBucket((tag,), (*self._upcast(facts, bucket, label), *back))

    def _upcast(self, facts: Facts, bucket: Bucket, label: str) -> Ops:
        if not self.casts:
            return
        learned = [name for name in bucket.names if name not in set(facts.unused)]
        narrow, wide = facts.itemsize, facts.workload.itemsize
        elements = facts.num_elements(learned)
        if self.is_first:
            yield Copy(f"{label} to float32", elements * (narrow + wide) / 2)
            yield Hold("gradients", float(elements * (wide - narrow)))
        yield Hold("parameters", -float(bucket.num_elements * narrow))


def cast_down(facts: Facts, is_kept: bool) -> Ops:
    """Copy all weights to the layers' dtype; ``is_kept`` if the memory is already held."""
    elements = facts.num_elements(list(facts.sizes))
    narrow, wide = facts.itemsize, facts.workload.itemsize
    if not is_kept:
        yield Hold("parameters", float(elements * narrow))
    yield Copy("parameters to 16 bit", elements * (narrow + wide) / 2)


def free_wide(facts: Facts) -> Ops:
    """Free the memory of float32 gradients beyond that of the layers' dtype."""
    elements = facts.num_elements(facts.ready_order)
    yield Hold("gradients", -float(elements * (facts.workload.itemsize - facts.itemsize)))


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
    """``torch.nn.parallel.DistributedDataParallel``."""

    varies_buckets: ClassVar[bool] = True
    faster_options: ClassVar[Mapping[str, Any]] = {"overlap": True, "find_unused_parameters": False}
    sync_once: ClassVar[Mapping[str, Any]] = {"no_sync": True}
    wrapper: ClassVar[str] = "DistributedDataParallel"

    kind: Literal["ddp"] = "ddp"
    bucket_cap: Bytes | None = None
    """Limit of every bucket [bytes]. None is torch's default: 1 MiB for the first, then 25 MiB; 0
    gives every tensor a bucket of its own."""
    overlap: Bool = True
    """False waits for the whole backward pass before the first all_reduce."""
    version: AnyVersion | None = None
    """Sort gradients as this version of torch did, such as ``"1.4"``; None is the newest. See
    `simdp.steps.partition.rules`."""
    bucket_order: Literal["gradient_ready", "reverse_registration", "reverse_buckets"] | None = None
    """How buckets are sorted. By readiness: the first iteration has one bucket with everything;
    then buckets are rebuilt in the order in which gradients became ready. In reverse order of
    registration, from the start. Or filled in order of registration and sent from the last, from
    the start, so that the small bucket is sent last. None is that of ``version``:
    ``gradient_ready`` since torch 1.6, ``reverse_buckets`` before. Of no effect with
    ``find_unused_parameters``, unless ``static_graph``."""
    find_unused_parameters: Bool = False
    """Buckets in reverse order of registration, never rebuilt; a map of the used parameters is
    reduced after the last bucket."""
    skip_all_reduce_unused_params: Bool = False
    """With ``find_unused_parameters``, buckets without used parameters are not reduced. Unused
    parameters must be the same on all ranks."""
    static_graph: Bool = False
    """Every step uses the same parameters. Those without a gradient are found in the first step,
    which reduces after backward, following a map of the used parameters; the second has one bucket
    too, and later buckets follow the order in which its gradients became ready. torch fails if
    micro-steps before the last one do not reduce (``no_sync``); this is refused."""
    delay_all_reduce_named_params: tuple[str, ...] | None = None
    """Parameters with gradients outside of all buckets: all are reduced together when
    ``param_to_hook_all_reduce`` gets its gradient, which comes after theirs."""
    param_to_hook_all_reduce: str | None = None
    """The parameter that starts their all_reduce."""
    gradient_as_bucket_view: Bool = False
    """Gradients live in their buckets, which then use no extra memory and need no copies."""
    charge_copies: Bool | None = None
    """Charge the copy of every gradient into its bucket and back, at memory bandwidth. None follows
    the cluster's overheads."""
    broadcast_buffers: Bool = True
    """Replace every rank's buffers, such as running means, by rank 0's before each forward that
    follows a reduction; with the parameters in the constructor and at the end of a join."""
    comm_hook: AnyCommHook = NoHook()
    """Compression and sending of buckets, from `simdp.strategies.comm_hooks`."""
    mixed_precision: MixedPrecision | None = None
    """Compute in lower precision than the weights': of `simdp.strategies.ddp`."""
    join: Bool = False
    """Ranks without further samples join the others' reductions with zeros, as under torch's Join;
    at the end of the epoch the last rank with samples (ties: the highest) broadcasts its model."""
    divide_by_initial_world_size: Bool = True
    """With ``join``, average over all ranks; False averages over those that still have samples."""
    no_sync: Bool = True
    """Reduce gradients once per step; False reduces them after every micro-step."""
    weight_by_shard: Bool = False
    """Weight each rank's loss by its share of the global batch, which restores the global mean
    where ranks have unequal shards. torch does not."""
    backup_ranks: Int = Field(0, ge=0)
    """Number of ranks dropped in every step: the last to have their gradients (ties: the higher
    ranks). They finish each layer with the slowest of the others, add zeros, and get the mean of
    the others; their samples' gradients and buffer updates are lost. Dropped ranks follow from
    compute times with stragglers, as if all ranks began the step together. Not in torch; see Chen
    et al., arXiv 1604.00981, 2016."""

    @model_validator(mode="after")
    def _join_and_backups_fit(self) -> Self:
        if not (self.join or self.divide_by_initial_world_size):
            raise problem("divide_by_initial_world_size: false needs join: true.")
        if self.backup_ranks and (wrong := partial_drop(self.join, self.comm_hook)):
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
                f"mixed_precision reduces gradients by its own hook, which excludes {wrong[0]}; "
                "leave one of them out."
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
        """Compute dtype of layers; None leaves it to ``workload.precision``."""
        return None if self.mixed_precision is None else self.mixed_precision.param_dtype

    @property
    def dtypes(self) -> LayerDtypes:
        mixed = self.mixed_precision or MixedPrecision()
        return LayerDtypes(mixed.param_dtype, mixed.buffer_dtype)

    @property
    def num_late(self) -> int:
        return self.backup_ranks

    @property
    def first_alike(self) -> int:
        return self.comm_hook.first_alike

    def departures(self, workload: Workload) -> list[Departure]:
        departures = super().departures(workload)
        if self.comm_hook.kind != "none":
            key = "strategy.comm_hook"
            text = f"gradients are sent {self.sent_as()}"
            departures.append(Departure(self.comm_hook.departure, key, text, {key: "none"}))
        if self.backup_ranks:
            text = f"gradients of the {self.backup_ranks} slowest ranks are dropped in every step"
            without = {"strategy.backup_ranks": 0}
            departures.append(Departure("dropped_ranks", "strategy.backup_ranks", text, without))
        if self.join and self.divide_by_initial_world_size:
            text = "gradients are divided by all ranks, also where some have no samples any more"
            key = "strategy.divide_by_initial_world_size"
            departures.insert(0, Departure("last_batch_smaller", key, text, {key: False}))
        return departures

    def sent_as(self) -> str:
        hook = self.comm_hook
        if hook.kind == "none":
            return super().sent_as()
        options = hook.model_dump(mode="json", exclude_defaults=True)
        return f"by {written(options | {'kind': hook.kind})}"

    @property
    def _casts(self) -> bool:
        return self.mixed_precision is not None and self.mixed_precision.is_low

    def problem_with_frozen(self) -> str | None:
        if self.mixed_precision is None:
            return None
        return (
            "strategy.mixed_precision copies weights down and frees the copies with their "
            "gradients, of which frozen ones have none; leave it out, or write workload.precision."
        )

    def problem_with_unused(self, workload: Workload) -> str | None:
        if self.static_graph:
            return (
                "workload.unused: strategy.static_graph determines only once which parameters "
                "are unused; write strategy.static_graph: false."
            )
        if self.find_unused_parameters:
            return None
        rank, names = next(iter(workload.unused.items()))
        first = names[0] if names else workload.graph.parameters[0].name
        return (
            f"strategy.find_unused_parameters: rank {rank} does not use {first}, so that its "
            "bucket would never be complete there; set find_unused_parameters: true."
        )

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
                f"static_graph: torch fails in the first step, where only the last of "
                f"{num_micro_steps} micro-steps is not under no_sync; write no_sync: false, or "
                "static_graph: false."
            )
        if self.skip_all_reduce_unused_params:
            if not self.find_unused_parameters or self.static_graph:
                return (
                    "skip_all_reduce_unused_params: needs the unused parameters before buckets are "
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
        wrong = partial_drop(self.join, self.comm_hook)
        if wrong is not None:
            return f"kind: replica groups drop out with their gradients, {wrong}"
        if self.backup_ranks:
            return "backup_ranks: replica groups have none; leave it out."
        return unequal_groups(num_groups, world_size) or synchronised_norms(workload)

    def buckets(
        self, parameters: Sequence[Parameter], ready: Sequence[str], itemsize: int, iteration: int
    ) -> list[list[str]]:
        """Return the names in each bucket, in launch order.

        ``ready`` are names in the order in which gradients become ready; ``iteration`` counts from
        0: the first one differs, and with a static graph the second.
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
        # With a static graph unused parameters are ready with the first hook.
        unused = by_name.keys() - set(ready) if self.static_graph else ()
        order_of_hooks = [*[name for name in by_name if name in unused], *ready]
        return assign([by_name[name] for name in order_of_hooks], itemsize, caps)

    def setup(self, facts: Facts) -> Ops:
        """Broadcast rank 0's model."""
        yield from make_quorum(facts)
        if facts.quorum.group is None:
            yield from broadcast_model(facts, 0, count(), buffers=self.broadcast_buffers)
        yield from self.comm_hook.setup(facts)

    def train_step(self, facts: Facts, step: StepContext) -> Ops:
        tags = count()
        yield from self.average_gradients(facts, step, tags)
        yield Update(step.active() if self.join else facts.quorum.there)
        if self._casts:
            yield from free_wide(facts)
        if self.join and step.closes_epoch:
            last_joiner = max(r for r, there in enumerate(step.active()) if there)
            yield from broadcast_model(facts, last_joiner, tags, buffers=self.broadcast_buffers)

    def average_gradients(self, facts: Facts, step: StepContext, tags: Tags) -> Ops:
        """Run forward and backward of a step, and average the gradients."""
        yield ScaleLoss(self.weight_by_shard)
        last = step.num_micro_steps - 1
        for micro in range(last + 1):
            if self.join:
                yield from self._announce(tags)
            # torch: after a forward under no_sync the buffers are left alone.
            # Replica groups do not broadcast.
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

    def _iteration(self, facts: Facts, step: StepContext, micro: int) -> int:
        """Count earlier reduced backward passes; all are equal from 2 on."""
        earlier = 0 if self.no_sync else micro
        if step.reduced_before(1):
            return min(earlier, 2)
        if not self.static_graph or facts.workload.model.timed or not step.reduced_before(2):
            return 2
        return min(1 + earlier if self.no_sync else step.num_micro_steps + earlier, 2)

    def infer_step(self, facts: Facts, step: StepContext) -> Ops:
        yield from infer_in_processes(facts, facts.workload.global_batch is not None)

    def _reducer(
        self, facts: Facts, step: StepContext, micro: int, iteration: int, tags: Tags
    ) -> Reducer:
        """Return the reducer of a backward pass; gradients that live in buckets need no copies."""
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

    def _hook(self, facts: Facts, step: StepContext, micro: int) -> tuple[CommHook, float, float]:
        """Return the hook that sends buckets, and the divisors before and after the sum."""
        divisor, mixed = float(self._divisor(facts, step, micro)), self.mixed_precision
        if mixed is None:
            return self.comm_hook.of(step), divisor, 1.0
        own = facts.workload.precision.gradient_dtype(facts.workload.dtype)
        dtype = None if mixed.reduce_dtype == own else mixed.reduce_dtype
        is_first = self.no_sync or micro == 0
        return Upcast(reduce_dtype=dtype, casts=self._casts, is_first=is_first), 1.0, divisor

    def _delayed(self, facts: Facts) -> Delayed | None:
        """Return the gradients outside of all buckets, in a buffer of their own."""
        if not (self.delay_all_reduce_named_params and self.param_to_hook_all_reduce):
            return None
        bucket = facts.bucket(self.delay_all_reduce_named_params, room=0.0)
        return Delayed(bucket, self.param_to_hook_all_reduce)

    def _bucket(self, facts: Facts, names: Sequence[str], dtype: str | None) -> Bucket:
        """Return a bucket in the gradients' dtype, or in the hook's."""
        is_view = self.gradient_as_bucket_view
        bucket = facts.bucket(names, is_view=is_view, is_compressed=dtype is not None)
        return bucket._replace(dtype=dtype or bucket.dtype)

    def _used_map(self, facts: Facts, iteration: int, tags: Tags) -> Iterator[AllReduce]:
        if not iteration if self.static_graph else self.find_unused_parameters:
            nbytes = float(USED_MAP_ITEMSIZE * len(trainable(facts)))
            yield AllReduce(next(tags), "used parameters", nbytes, group=facts.quorum.group)

    def _announce(self, tags: Tags) -> Ops:
        """Count the ranks with samples and agree on reducing, as under Join."""
        counted, agreed = next(tags), next(tags)
        yield AllReduce(counted, "active ranks", JOIN_ITEMSIZE)
        yield AllReduce(agreed, "will reduce", JOIN_ITEMSIZE)
        # Only an average over the active ranks needs the count on the host.
        yield Wait((agreed,) if self.divide_by_initial_world_size else (counted, agreed))

    def _authority(self, step: StepContext, micro: int) -> int:
        """Return the rank that broadcasts buffers: 0, or under Join the last one with samples."""
        there = step.active(micro) if self.join else [True]
        return max(r for r, has_samples in enumerate(there) if has_samples)

    def _divisor(self, facts: Facts, step: StepContext, micro: int) -> int:
        if self.divide_by_initial_world_size:
            return facts.quorum.num_counted
        return sum(step.active(micro))


def default_buckets(model: Model, itemsize: int) -> list[int]:
    """Return the elements of DDP's default buckets of a model, once rebuilt."""
    sizes = {parameter.name: parameter.num_elements for parameter in model.parameters()}
    layout = DDP(find_unused_parameters=bool(model.graph.unused)).buckets(
        model.parameters(), model.ready_order(), itemsize, iteration=1
    )
    return [sum(sizes[name] for name in names) for names in layout]


class Apex(Strategy):
    """``apex.parallel.DistributedDataParallel``.

    Gradients are reduced once per step, as with ``disable_allreduce()`` before the last micro-step.
    Buffers are never broadcast.
    """

    wrapper: ClassVar[str] = "DistributedDataParallel"

    kind: Literal["apex"] = "apex"
    message_size: Annotated[Int, Field(ge=1)] = 10_000_000
    """A bucket of at least this many elements is sent. The first iteration reduces everything at
    its end; later buckets are filled in the order in which gradients became ready."""
    delay_allreduce: Bool = False
    """Reduce everything in one piece after backward."""
    allreduce_always_fp32: Bool = False
    """Send gradients in float32, whatever their dtype."""
    gradient_average: Bool = True
    """Divide the sums by world_size; False leaves them sums."""
    gradient_predivide_factor: Annotated[Float, Field(gt=0)] = 1.0
    """Divide by this before the sum, and by the rest of world_size after it."""
    retain_allreduce_buffers: Bool = False
    """Gradients stay in their buckets, without copies back."""
    charge_copies: Bool | None = None
    """Charge the copies into buckets and back, at the memory's bandwidth. None does as the
    cluster's overheads say."""
    weight_by_shard: Bool = False
    """Weight each rank's loss by its share of the global batch, as for ``ddp``."""

    def problem_with(self, world_size: int, workload: Workload) -> str | None:
        return uneven(workload)

    def departures(self, workload: Workload) -> list[Departure]:
        departures = super().departures(workload)
        if not self.gradient_average:
            key, text = "strategy.gradient_average", "gradients are summed over the ranks"
            departures.append(Departure("loss_sum_not_averaged", key, text, {key: True}))
        return departures

    def buckets(
        self, parameters: Sequence[Parameter], ready: Sequence[str], iteration: int
    ) -> list[list[str]]:
        """Return the names in each bucket, in launch order; unused parameters are in none.

        ``ready`` are names in the order in which gradients become ready; iteration 0 differs.
        """
        by_name = {parameter.name: parameter for parameter in parameters}
        if self.delay_allreduce or iteration == 0:
            used = set(ready)
            return [[name for name in by_name if name in used]]
        return assign([by_name[name] for name in ready], 1, [self.message_size])

    def setup(self, facts: Facts) -> Ops:
        """Broadcast rank 0's parameters, as one buffer."""
        yield from send(facts, facts.parameters, "parameters", 0, 0)

    def train_step(self, facts: Facts, step: StepContext) -> Ops:
        yield ScaleLoss(self.weight_by_shard)
        last = step.num_micro_steps - 1
        for micro in range(last + 1):
            yield from forward(facts, micro)
            if micro < last:
                yield from backward(facts, micro)
        reducer = self._reducer(facts, step, count())
        yield from reducer.backward(last, overlap=not self.delay_allreduce)
        yield from reducer.finish()
        yield Update()

    def _reducer(self, facts: Facts, step: StepContext, tags: Tags) -> Reducer:
        before = self.gradient_predivide_factor
        after = facts.world_size / before if self.gradient_average else 1.0
        return Reducer(facts, self._messages(facts, step), tags, before, after)

    def _messages(self, facts: Facts, step: StepContext) -> list[Message]:
        """Return the buckets, created when sent and freed when copied back, unless retained."""
        copied = copies_charged(self.charge_copies, facts)
        back = copied and not self.retain_allreduce_buffers
        dtype = "float32" if self.allreduce_always_fp32 else None
        iteration = int(not step.reduced_before(1))
        layout = self.buckets(trainable(facts), facts.ready_order, iteration)
        buckets = [facts.bucket(names, dtype, is_compressed=bool(dtype)) for names in layout]
        if not self.retain_allreduce_buffers:
            largest = max(buckets, key=lambda bucket: bucket.nbytes) if iteration else None
            buckets = [b if b is largest else b._replace(room=0.0) for b in buckets]
        return [Message(bucket, copied=copied, copied_back=back) for bucket in buckets]
