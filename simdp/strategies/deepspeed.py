"""DeepSpeed's ZeRO of stages 1 and 2: all parameters as one flat buffer, a piece for each rank.

A bucket of gradients lies in a few pieces only, so that DeepSpeed all_reduces it, and each rank
copies what is its own (stage_1_and_2.py, ``use_multi_rank_bucket_allreduce``); a reduce_scatter it
calls in stage 3 alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from simdp.spec import problem
from simdp.steps.bucket import Bucket
from simdp.steps.coalesced import KeepSums
from simdp.steps.facts import Facts, Ops, Step, trainable
from simdp.steps.offload import HostCopy
from simdp.steps.ops import AllGather, AllReduce, Hold, Scale, Unless, Update, Wait
from simdp.steps.partition import Kept, Partition
from simdp.steps.passes import Tags, backward, forward
from simdp.strategies.flat_pieces import agree
from simdp.strategies.ipg_buckets import BUCKET_ELEMENTS, IpgBuckets, IpgRules

GATHERED_ELEMENTS = 500_000_000
"""Elements that are gathered at a time where none are given (DeepSpeed: allgather_bucket_size)."""

KEYS = ("reduce_bucket_size", "allgather_bucket_size", "overlap_comm", "contiguous_gradients")
"""Options of DeepSpeed's way, which are None where they are left out."""


class DeepSpeed(NamedTuple):
    """How stages 1 and 2 reduce and gather; as of `simdp.strategies.zero2.Zero2`."""

    rules: IpgRules
    allgather_bucket_size: int
    by_shard: bool

    @classmethod
    def of(cls, options: Any) -> DeepSpeed:
        """Read a strategy's options; those that are left out are DeepSpeed's own."""
        size, whole = options.reduce_bucket_size, options.allgather_bucket_size
        rules = IpgRules(
            reduce_bucket_size=BUCKET_ELEMENTS if size is None else size,
            overlap_comm=bool(options.overlap_comm),
            contiguous_gradients=options.contiguous_gradients is not False,
            to_host=options.updates_on_host,
        )
        at_once = GATHERED_ELEMENTS if whole is None else whole
        return cls(rules, at_once, options.weight_by_shard)


def refuse_others(given: Mapping[str, bool], way: str, needed: str) -> None:
    """Refuse keys of another way of communicating.

    Raises
    ------
    PydanticCustomError
        Naming the first one that is given.
    """
    for key in [key for key, is_given in given.items() if is_given]:
        if way != needed:
            raise problem(f"{key} belongs to communication: {needed}; leave it out, or write that.")


def refuse_torchs(has_cap: bool, overlap: bool) -> None:
    """Refuse the options of other ways that DeepSpeed has under another name.

    Raises
    ------
    PydanticCustomError
        With DeepSpeed's name.
    """
    if has_cap:
        raise problem(
            "bucket_cap is not DeepSpeed's; with communication: deepspeed write "
            "reduce_bucket_size [elements]."
        )
    if not overlap:
        raise problem(
            "overlap is not DeepSpeed's; with communication: deepspeed write overlap_comm."
        )


def deal_flat(facts: Facts, kept: Kept) -> Partition:
    """Deal all parameters, one after the other, in equal pieces."""
    whole = [[parameter.name for parameter in trainable(facts)]]
    return Partition(trainable(facts), whole, np.arange(facts.world_size)[None, :], kept)


def step_of_deepspeed(facts: Facts, step: Step, partition: Partition, how: DeepSpeed) -> Ops:
    """One step of stage 1, or of stage 2 where gradients are not kept whole.

    Stage 2 reduces after every micro-step, stage 1 after the last one.
    """
    tags, last = count(), step.num_micro_steps - 1
    yield Scale(how.by_shard)
    for micro in range(last + 1):
        yield from forward(facts, micro)
        if partition.kept.gradients and micro < last:
            yield from backward(facts, micro)
        else:
            yield from _reduced_backward(facts, micro, how.rules, tags)
    yield from agree(facts, tags)
    yield Update()
    if how.rules.to_host:
        updated = partition.piece_elements(0) * facts.weight_itemsize
        yield Unless((HostCopy("parameters", float(updated)),))
    yield Unless(tuple(_gather(facts, partition, how.allgather_bucket_size, tags)))


def _reduced_backward(facts: Facts, micro: int, rules: IpgRules, tags: Tags) -> Ops:
    def start(tag: int, label: str, bucket: Bucket, before: HostCopy | None) -> Ops:
        yield AllReduce(tag, label, bucket.nbytes, bucket, before=before)

    def keep(bucket: Bucket) -> Ops:
        yield KeepSums(bucket)

    buckets = IpgBuckets(facts, rules, tags, start, keep)
    # What gradients are copied into; of two buffers one fills while the other travels.
    num_buffers = (1 + rules.overlap_comm) * rules.contiguous_gradients
    room = float(num_buffers * rules.reduce_bucket_size * facts.itemsize)
    yield Hold("buckets", room)
    yield from backward(facts, micro, buckets.mark_ready)
    yield from buckets.finish()
    yield Hold("buckets", -room)


def _gather(facts: Facts, partition: Partition, at_once: int, tags: Tags) -> Ops:
    """Gather all parameters, a slice of every rank's piece at a time, one after the other."""
    elements = partition.piece_elements(0) * partition.num_places
    num_slices = max(1, elements // max(at_once, 1))
    nbytes = float(partition.unit_elements(0) * facts.weight_itemsize)
    for number in range(num_slices):
        tag, is_last = next(tags), number == num_slices - 1
        # The numbers of all slices come with the last one.
        unit = 0 if is_last else None
        yield AllGather(tag, f"parameters {number}", nbytes / num_slices, unit)
        yield Wait((tag,))
