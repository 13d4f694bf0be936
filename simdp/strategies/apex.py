"""Apex: NVIDIA's DistributedDataParallel, with buckets by number of elements.

Mirrors apex/parallel/distributed.py of NVIDIA/apex. Left out are its custom triggers and several
all_reduce streams, and the broadcast of the bucket structure, a few hundred bytes once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from simdp.spec import Bool, Float, Int
from simdp.strategies.base import Rank, Script, Strategy, uneven
from simdp.strategies.buckets import assign
from simdp.strategies.reducer import Averaging, Message, Reducer, copies_charged
from simdp.workload import Workload
from simdp.workload.layers import Parameter

SINGLE_ITEMSIZE = 4
"""Bytes per element with ``allreduce_always_fp32``."""


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

    def uses(self, world_size: int, workload: Workload, num_samples: int) -> list[tuple[str, int]]:
        return [("all_reduce", 0), ("broadcast", 0)]

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

    def sent_nbytes(self, rank: Rank) -> list[int]:
        return self._nbytes(rank.parameters, rank.ready_order, rank.itemsize)

    def bucket_memory(
        self, parameters: Sequence[Parameter], ready: Sequence[str], itemsize: int
    ) -> float:
        """A bucket is made when it is sent and freed when it is copied back, unless retained."""
        nbytes = self._nbytes(parameters, ready, itemsize)
        return float(sum(nbytes) if self.retain_allreduce_buffers else max(nbytes))

    def _nbytes(
        self, parameters: Sequence[Parameter], ready: Sequence[str], itemsize: int
    ) -> list[int]:
        each = SINGLE_ITEMSIZE if self.allreduce_always_fp32 else itemsize
        sizes = {parameter.name: parameter.num_elements * each for parameter in parameters}
        return [sum(sizes[name] for name in names) for names in self.buckets(parameters, ready, 1)]

    def setup(self, rank: Rank) -> Script:
        """Broadcast rank 0's parameters, as one buffer."""
        yield from rank.broadcast(rank.parameters, "parameters")

    def train_step(self, rank: Rank) -> Script:
        rank.scale_losses(by_shard=self.weight_by_shard)
        last = rank.num_micro_steps - 1
        for micro_step in range(rank.num_micro_steps):
            yield from rank.forward(micro_step)
            if micro_step < last:
                yield from rank.backward(micro_step)
        reducer = Reducer(rank, self._messages(rank), self._averaging(rank.world_size))
        yield from reducer.backward(last, overlap=not self.delay_allreduce)
        yield from reducer.finish()
        yield from rank.update()

    def _messages(self, rank: Rank) -> list[Message]:
        copied = copies_charged(self.charge_copies, rank)
        back = copied and not self.retain_allreduce_buffers
        layout = self.buckets(rank.parameters, rank.ready_order, rank.num_reduced_before)
        return [Message(tuple(names), copied=copied, copied_back=back) for names in layout]

    def _averaging(self, world_size: int) -> Averaging:
        before = self.gradient_predivide_factor
        after = world_size / before if self.gradient_average else 1.0
        return Averaging(before, after, "float32" if self.allreduce_always_fp32 else None)
