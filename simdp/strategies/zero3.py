"""ZeRO-3: parameters are kept in pieces too, and whole only while a module needs them."""

from __future__ import annotations

from itertools import count
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from simdp.spec import Bool, Int, problem
from simdp.steps.bucket import Bucket
from simdp.steps.coalesced import ReduceTogether
from simdp.steps.facts import Facts, Ops, Step
from simdp.steps.offload import HostCopy
from simdp.steps.ops import Reserve, Scale, Unless, Update, Wait
from simdp.steps.partition import Kept, Partition
from simdp.steps.passes import Tags, backward, forward, send_all, send_buffers
from simdp.steps.unit_ops import Free, Shard
from simdp.strategies.base import Strategy, uneven
from simdp.strategies.fetching import Fetcher, FetchRules, Trace, together, trace_of
from simdp.strategies.flat_pieces import agree
from simdp.strategies.ipg_buckets import BUCKET_ELEMENTS, IpgBuckets, IpgRules, Start
from simdp.workload import Workload

PREFETCHED_ELEMENTS, LIVE_ELEMENTS, PERSISTENT_ELEMENTS = 50_000_000, 1_000_000_000, 100_000
"""DeepSpeed's prefetch_bucket_size, max_live_parameters and param_persistence_threshold."""

IN_FLIGHT = 2
"""Buckets that may be on their way when another is sent (DeepSpeed: max_param_reduce_events)."""

Elements = Annotated[Int, Field(ge=0)]


class Zero3(Strategy):
    """ZeRO stage 3, as DeepSpeed does it: parameters, gradients and optimizer state in pieces.

    Every parameter is cut by itself. A module's parameters are gathered before its forward and its
    backward, and those that the next ones need with them; gradients are summed in buckets, each
    piece on its owner, after every micro-step. A module is a call of the model. As there, the first
    step fetches nothing ahead, since it does not know the order yet.

    Attributes
    ----------
    reduce_bucket_size : int
        Elements of gradients that are reduced at a time.
    overlap_comm : bool
        Reduce a bucket while backward goes on.
    contiguous_gradients : bool
        Copy gradients into a buffer of ``reduce_bucket_size`` elements, which stays. False flattens
        every bucket for the way.
    prefetch_bucket_size : int
        Elements that are fetched ahead at a time (DeepSpeed: stage3_prefetch_bucket_size); 0
        fetches none.
    max_live_parameters : int
        Nothing is fetched ahead beyond so many elements on a rank.
    max_reuse_distance : int
        What is used again within so many elements is not freed; in a model of less, little is.
    param_persistence_threshold : int
        Parameters of at most so many elements stay whole on every rank; they are gathered after
        every update.
    offload_optimizer : {"none", "cpu"}
        Keep pieces of gradients, master weights and the optimizer's state in the memory of the host
        (``cluster.host``), which updates them. Gradients are copied there behind their sums, and
        parameters back after the update.
    offload_param : {"none", "cpu"}
        Keep pieces of parameters there too; each is copied to the device before it is gathered.
    weight_by_shard : bool
        As of `DDP`.

    References
    ----------
    Rajbhandari et al., arXiv 1910.02054 and 2104.07857; DeepSpeed, runtime/zero/stage3.py and
    config.py, of which the defaults are.
    """

    kind: Literal["zero3"] = "zero3"
    reduce_bucket_size: Annotated[Int, Field(ge=1)] = BUCKET_ELEMENTS
    overlap_comm: Bool = True
    contiguous_gradients: Bool = True
    prefetch_bucket_size: Elements = PREFETCHED_ELEMENTS
    max_live_parameters: Elements = LIVE_ELEMENTS
    max_reuse_distance: Elements = LIVE_ELEMENTS
    param_persistence_threshold: Elements = PERSISTENT_ELEMENTS
    offload_optimizer: Literal["none", "cpu"] = "none"
    offload_param: Literal["none", "cpu"] = "none"
    weight_by_shard: Bool = False

    @model_validator(mode="after")
    def _parameters_follow_the_optimizer(self) -> Self:
        if self.offload_param == "cpu" and self.offload_optimizer == "none":
            raise problem("offload_param: cpu needs offload_optimizer: cpu.")
        return self

    @property
    def updates_on_host(self) -> bool:
        return self.offload_optimizer == "cpu"

    @property
    def keeps_parameters_on_host(self) -> bool:
        return self.offload_param == "cpu"

    def problem_with(self, world_size: int, workload: Workload) -> str | None:
        return uneven(workload)

    def _dealt(self, facts: Facts) -> tuple[Partition, Trace]:
        def deal() -> tuple[Partition, Trace]:
            units = [[parameter.name] for parameter in facts.parameters]
            ranks, kept = np.arange(facts.world_size)[None, :], Kept(False, False)
            partition = Partition(facts.parameters, units, ranks, kept)
            return partition, trace_of(facts, partition)

        return facts.once("partition", deal)

    def _persistent(self, partition: Partition) -> list[int]:
        most = self.param_persistence_threshold
        return [u for u in range(len(partition.units)) if partition.unit_elements(u) <= most]

    @property
    def _rules(self) -> IpgRules:
        return IpgRules(
            self.reduce_bucket_size,
            self.overlap_comm,
            self.contiguous_gradients,
            self.updates_on_host,
        )

    def setup(self, facts: Facts) -> Ops:
        """Make every rank's model that of rank 0, deal it, and gather what stays whole."""
        tags = count()
        yield from send_all(facts, facts.parameters, "parameters", 0, tags)
        yield from send_buffers(facts, 0, tags)
        partition, _ = self._dealt(facts)
        yield Shard(partition)
        yield from self._gather_persistent(facts, partition, tags)
        if self.contiguous_gradients:
            yield Reserve(float(self.reduce_bucket_size * facts.itemsize))

    def _gather_persistent(self, facts: Facts, partition: Partition, tags: Tags) -> Ops:
        units = self._persistent(partition)
        if units:
            tag = next(tags)
            yield together(facts, partition, units, tag, self.keeps_parameters_on_host)
            yield Wait((tag,))

    def train_step(self, facts: Facts, step: Step) -> Ops:
        partition, _ = self._dealt(facts)
        tags, units = count(), self._persistent(partition)
        yield Scale(self.weight_by_shard)
        for micro in range(step.num_micro_steps):
            is_known = bool(micro) or not step.reduced_before(1)
            yield from self._micro_step(facts, micro, is_known, tags)
        yield from agree(facts, tags)
        yield Update()
        if self.updates_on_host and not self.keeps_parameters_on_host:
            elements = sum(map(partition.piece_elements, range(len(partition.units))))
            yield Unless((HostCopy("parameters", float(elements * facts.weight_itemsize)),))
        # What stays whole is gathered anew, into the memory that it has.
        anew = [*map(Free, units), *self._gather_persistent(facts, partition, tags)]
        yield Unless(tuple(anew))

    def _micro_step(self, facts: Facts, micro: int, is_known: bool, tags: Tags) -> Ops:
        partition, trace = self._dealt(facts)
        rules = FetchRules(
            self.prefetch_bucket_size,
            self.max_live_parameters,
            self.max_reuse_distance,
            self.keeps_parameters_on_host,
        )
        persistent = frozenset(self._persistent(partition))
        fetcher = Fetcher(facts, partition, trace, is_known, rules, persistent, tags)
        buckets = IpgBuckets(
            facts, self._rules, tags, _start_of(partition), nothing_left, IN_FLIGHT
        )
        yield from forward(facts, micro, *fetcher.around(trace.forward))
        yield from backward(facts, micro, buckets.mark_ready, *fetcher.around(trace.backward))
        yield from buckets.finish()


def _start_of(partition: Partition) -> Start:
    """What starts to reduce a bucket."""

    def start(tag: int, label: str, bucket: Bucket, before: HostCopy | None) -> Ops:
        units = tuple(partition.unit_of[name] for name in bucket.names)
        yield ReduceTogether(tag, label, bucket, units, before)

    return start


def nothing_left(bucket: Bucket) -> Ops:
    """Do nothing: the sums are on their owners when they are there."""
    yield from ()
