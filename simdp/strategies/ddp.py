"""DistributedDataParallel: a replica per rank, gradients averaged in buckets behind backward.

Mirrors torch's Reducer (torch 2.13: distributed.py, reducer.cpp). Left out are what a constructor
checks (one int64 per rank, the shapes) and the two broadcasts of indices when buckets are rebuilt:
a few hundred bytes, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from simdp.spec import Bool, Bytes
from simdp.strategies.base import Bucket, Pending, Rank, Script, Strategy
from simdp.strategies.buckets import MiB, assign, limits
from simdp.workload.layers import Parameter

BROADCAST_NBYTES = 250 * MiB
"""Parameters travel from rank 0 in buffers of this size (torch: _sync_module_states)."""

USED_MAP_ITEMSIZE = 4
"""find_unused_parameters sends one int32 per parameter after the last bucket."""


class DDP(Strategy):
    """``torch.nn.parallel.DistributedDataParallel``.

    Attributes
    ----------
    bucket_cap : float or None
        Limit of every bucket [bytes]. None is torch's default: 1 MiB for the first, then 25 MiB;
        0 puts every tensor into a bucket of its own.
    overlap : bool
        False waits for the whole backward pass before the first all_reduce.
    bucket_order : {"gradient_ready", "reverse_registration"}
        How buckets are sorted. By readiness, as torch does since 1.7: the first iteration has one
        bucket with everything, then they are rebuilt in the order in which gradients became ready.
        Or, as before, in reverse order of registration from the start.
    find_unused_parameters : bool
        Buckets in registration order, reversed, never rebuilt; and a map of the used parameters is
        reduced after the last bucket.
    gradient_as_bucket_view : bool
        Gradients live in their buckets, which then take no memory of their own and need no copies.
    charge_copies : bool
        Charge the copy of every gradient into its bucket and back, at the memory's bandwidth.
    no_sync : bool
        Reduce gradients once per step; False reduces them after every micro-step.
    weight_by_shard : bool
        Weight each rank's loss by its share of what counts, which restores the mean over the global
        batch where ranks have unequal shards. torch does not.
    """

    kind: Literal["ddp"] = "ddp"
    bucket_cap: Bytes | None = None
    overlap: Bool = True
    bucket_order: Literal["gradient_ready", "reverse_registration"] = "gradient_ready"
    find_unused_parameters: Bool = False
    gradient_as_bucket_view: Bool = False
    charge_copies: Bool = False
    no_sync: Bool = True
    weight_by_shard: Bool = False

    def uses(self) -> list[str]:
        return ["all_reduce", "broadcast"]

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
            From 0; the first one differs from the others.
        """
        caps = limits(self.bucket_cap)
        if self.find_unused_parameters:
            return assign(parameters, itemsize, caps)[::-1]
        if self.bucket_order == "reverse_registration":
            return assign(parameters[::-1], itemsize, caps)
        if iteration == 0:
            return [[parameter.name for parameter in parameters]]
        by_name = {parameter.name: parameter for parameter in parameters}
        return assign([by_name[name] for name in ready], itemsize, caps)

    def bucket_nbytes(
        self, parameters: Sequence[Parameter], ready: Sequence[str], itemsize: int
    ) -> list[int]:
        sizes = {p.name: p.num_elements * itemsize for p in parameters}
        layout = self.buckets(parameters, ready, itemsize, 1)
        return [sum(sizes[name] for name in names) for names in layout]

    def bucket_memory(self, gradient_nbytes: float) -> float:
        return 0.0 if self.gradient_as_bucket_view else gradient_nbytes

    def setup(self, rank: Rank) -> Script:
        """Make every replica a copy of rank 0's."""
        for number, names in enumerate(assign(rank.parameters, rank.itemsize, [BROADCAST_NBYTES])):
            yield from rank.broadcast_parameters(names, f"parameters {number}")

    def train_step(self, rank: Rank) -> Script:
        rank.scale_losses(by_shard=self.weight_by_shard)
        last = rank.num_micro_steps - 1
        for micro_step in range(rank.num_micro_steps):
            yield from rank.forward(micro_step)
            if self.no_sync and micro_step < last:
                yield from rank.backward(micro_step)
                continue
            # Buckets are rebuilt after the first backward that is reduced.
            reducer = Reducer(self, rank, rank.step if self.no_sync else rank.step + micro_step)
            if self.overlap:
                yield from rank.backward(micro_step, hook=reducer.mark_ready)
            else:
                yield from rank.backward(micro_step)
                for name in rank.ready_order:
                    yield from reducer.mark_ready(name)
            yield from reducer.finish()
        yield from rank.update()


class Reducer:
    """Averages the gradients of one backward pass, bucket by bucket.

    Parameters
    ----------
    strategy : DDP
        The settings.
    rank : Rank
        Whose gradients.
    iteration : int
        0 for the first reduced backward, which has other buckets than those that follow.
    """

    def __init__(self, strategy: DDP, rank: Rank, iteration: int) -> None:
        self.rank = rank
        self.copies = strategy.charge_copies and not strategy.gradient_as_bucket_view
        self.used_map = strategy.find_unused_parameters
        layout = strategy.buckets(rank.parameters, rank.ready_order, rank.itemsize, iteration)
        self.buckets: list[Bucket] = [rank.bucket(names) for names in layout]
        self.home = {name: number for number, names in enumerate(layout) for name in names}
        self.missing = [len(names) for names in layout]
        self.launched: list[Pending] = []

    def mark_ready(self, name: str) -> Script:
        """Take a gradient into its bucket; launch every bucket whose turn has come.

        The gradient is multiplied by 1/W before the sum, as torch does. A bucket that is complete
        waits for the ones before it.
        """
        number = self.home[name]
        factor = 1.0 / self.rank.world_size
        yield from self.rank.fill(self.buckets[number], name, factor, self.copies)
        self.missing[number] -= 1
        while len(self.launched) < len(self.buckets) and not self.missing[len(self.launched)]:
            turn = len(self.launched)
            pending = yield from self.rank.all_reduce(self.buckets[turn], f"bucket {turn}")
            self.launched.append(pending)

    def finish(self) -> Script:
        """Wait for all buckets, and take the averages out of them."""
        pending = list(self.launched)
        if self.used_map:
            nbytes = USED_MAP_ITEMSIZE * len(self.home)
            pending.append((yield from self.rank.all_reduce_bytes(nbytes, "used parameters")))
        yield from self.rank.wait(pending)
        for bucket in self.buckets:
            yield from self.rank.empty(bucket, self.copies)
