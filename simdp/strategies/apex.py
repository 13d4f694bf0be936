"""Apex: NVIDIA's DistributedDataParallel, with buckets by number of elements.

Mirrors apex/parallel/distributed.py of NVIDIA/apex. Left out are its custom triggers and several
all_reduce streams, and the broadcast of the bucket structure, a few hundred bytes once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Annotated, Literal

from pydantic import Field

from simdp.spec import Bool, Float, Int
from simdp.steps.buckets import assign
from simdp.steps.facts import Facts, Ops, Step, trainable
from simdp.steps.ops import Scale, Update
from simdp.steps.passes import Tags, backward, forward, send
from simdp.strategies.base import Strategy, copies_charged, uneven
from simdp.strategies.reducer import Message, Reducer
from simdp.workload import Workload
from simdp.workload.layers import Parameter


class Apex(Strategy):
    """``apex.parallel.DistributedDataParallel``.

    Gradients are reduced once per step, as with ``disable_allreduce()`` before the last micro-step.
    Buffers are never broadcast.

    Attributes
    ----------
    message_size : int
        Elements from which on a bucket is sent. The first iteration reduces everything at its end;
        from then on buckets are filled in the order in which gradients became ready.
    delay_allreduce : bool
        Reduce everything in one piece after backward.
    allreduce_always_fp32 : bool
        Send gradients in float32, whatever their dtype.
    gradient_average : bool
        Divide the sums by world_size; False leaves them sums.
    gradient_predivide_factor : float
        Divide by this before the sum, and by the rest of world_size after it.
    retain_allreduce_buffers : bool
        Gradients stay in their buckets, without copies back.
    charge_copies : bool or None
        Charge the copies into buckets and back, at the memory's bandwidth. None does as the
        cluster's overheads say.
    weight_by_shard : bool
        Weight each rank's loss by its share of what counts, as for ``ddp``.
    """

    kind: Literal["apex"] = "apex"
    message_size: Annotated[Int, Field(ge=1)] = 10_000_000
    delay_allreduce: Bool = False
    allreduce_always_fp32: Bool = False
    gradient_average: Bool = True
    gradient_predivide_factor: Annotated[Float, Field(gt=0)] = 1.0
    retain_allreduce_buffers: Bool = False
    charge_copies: Bool | None = None
    weight_by_shard: Bool = False

    def problem_with(self, world_size: int, workload: Workload) -> str | None:
        return uneven(workload)

    def buckets(
        self, parameters: Sequence[Parameter], ready: Sequence[str], iteration: int
    ) -> list[list[str]]:
        """Names in each bucket, in launch order; parameters without a gradient are in none.

        Parameters
        ----------
        parameters : sequence of Parameter
            In order of registration.
        ready : sequence of str
            Names in the order in which gradients become ready.
        iteration : int
            From 0; the first one differs from the others.
        """
        by_name = {parameter.name: parameter for parameter in parameters}
        if self.delay_allreduce or iteration == 0:
            used = set(ready)
            return [[name for name in by_name if name in used]]
        return assign([by_name[name] for name in ready], 1, [self.message_size])

    def setup(self, facts: Facts) -> Ops:
        """Broadcast rank 0's parameters, as one buffer."""
        yield from send(facts, facts.parameters, "parameters", 0, 0)

    def train_step(self, facts: Facts, step: Step) -> Ops:
        yield Scale(self.weight_by_shard)
        last = step.num_micro_steps - 1
        for micro in range(last + 1):
            yield from forward(facts, micro)
            if micro < last:
                yield from backward(facts, micro)
        reducer = self._reducer(facts, step, count())
        yield from reducer.backward(last, overlap=not self.delay_allreduce)
        yield from reducer.finish()
        yield Update()

    def _reducer(self, facts: Facts, step: Step, tags: Tags) -> Reducer:
        before = self.gradient_predivide_factor
        after = facts.world_size / before if self.gradient_average else 1.0
        return Reducer(facts, self._messages(facts, step), tags, before, after)

    def _messages(self, facts: Facts, step: Step) -> list[Message]:
        """A bucket is made when it is sent and freed when it is copied back, unless retained."""
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
