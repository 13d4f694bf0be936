"""Sharding: parameters, gradients and optimizer state that are dealt to the ranks."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import cached_property
from typing import Any

from simdp.arrays import Floats
from simdp.engine.cohort.base import Ranks
from simdp.engine.cohort.buckets import FlatBucket
from simdp.engine.launcher import Launched
from simdp.engine.shards import Shards
from simdp.strategies.base import Bucket, Script
from simdp.strategies.memory import update_temporaries
from simdp.strategies.partition import Partition
from simdp.strategies.rank_types import REPLICATE, SHARD
from simdp.workload import Workload
from simdp.workload.precision.rounding import numpy_dtype
from simdp.workload.step_costs import (
    gradient_nbytes_moved,
    optimizer_launches,
    optimizer_nbytes_moved,
)

AGREED_NBYTES = 4.0
"""Norms and flags are float32, whatever the gradients are (torch: FSDP.clip_grad_norm_,
ShardedGradScaler)."""


class Sharding(Ranks):
    """What ranks keep that have only pieces, and how these are put together."""

    _shards: Shards | None = None

    @cached_property
    def _dealt(self) -> Partition | None:
        """How the strategy deals parameters to the ranks, if it does."""
        cluster, workload = self.scenario.cluster, self.scenario.workload
        strategy = self.scenario.strategy
        return strategy.partition(workload, cluster.local_size, self.world_size)

    @property
    def partition(self) -> Partition:
        """See `simdp.strategies.base.Rank`."""
        assert self._dealt is not None
        return self._dealt

    @property
    def workload(self) -> Workload:
        """See `simdp.strategies.base.Rank`."""
        return self.scenario.workload

    @cached_property
    def _inside(self) -> str | None:
        """The groups in which units are gathered and scattered; None for all ranks together."""
        names = [several.name for several in self.scenario.process_groups()]
        return SHARD if SHARD in names else None

    def shard(self) -> Script:
        """See `simdp.strategies.base.Rank`."""
        if self.replicas:
            self._shards = self.replicas.shards = Shards(self.replicas, self.partition)
        yield from ()

    def unit_bucket(self, unit: int) -> Generator[Any, None, FlatBucket]:
        """See `simdp.strategies.base.Rank`."""
        workload, names = self.scenario.workload, self.partition.units[unit]
        yield from self.hold("buckets", self._bucket_room(unit))
        dtype = workload.precision.gradient_dtype(workload.dtype)
        buffers = self._shards.bucket(unit, dtype) if self._shards else None
        nbytes = float(self.partition.unit_elements(unit) * self.itemsize)
        return FlatBucket(nbytes, False, names, buffers)

    def release(self, unit: int) -> Script:
        """See `simdp.strategies.base.Rank`."""
        yield from self.hold("buckets", -self._bucket_room(unit))

    def _bucket_room(self, unit: int) -> float:
        """What a unit's whole gradients take beside what is kept of them [bytes]."""
        if self.partition.kept.gradients:
            return 0.0
        return self._whole_room(unit, self.itemsize)

    def _whole_room(self, unit: int, itemsize: int) -> float:
        elements = self.partition.piece_elements(unit) * self.partition.num_places
        return self.room([elements * itemsize])

    def reduce_scatter(
        self, unit: int, bucket: Bucket, label: str
    ) -> Generator[Any, None, Sequence[Launched]]:
        """See `simdp.strategies.base.Rank`."""
        assert isinstance(bucket, FlatBucket)
        inside, piece = self._inside, bucket.nbytes / self.partition.num_places
        plan = self.launcher.plan("reduce_scatter", bucket.nbytes, group=inside)
        across = None
        if len(self.partition.ranks) > 1:
            across = self.launcher.plan("all_reduce", piece, group=REPLICATE)
        if self._shards and bucket.buffers:
            self._shards.reduce(unit, bucket.buffers, plan, across)
        first = yield from self._launch(plan, bucket.nbytes, label, group=inside)
        if across is None:
            return [first]
        after = (first.number,)
        second = yield from self._launch(across, piece, label, group=REPLICATE, after=after)
        return [first, second]

    def all_gather(self, unit: int, label: str) -> Generator[Any, None, Sequence[Launched]]:
        """See `simdp.strategies.base.Rank`."""
        itemsize = self._stored_itemsize
        nbytes = float(self.partition.unit_elements(unit) * itemsize)
        plan = self.launcher.plan("all_gather", nbytes, group=self._inside)
        if not self.partition.kept.weights:
            yield from self.hold("gathered", self._whole_room(unit, itemsize))
        if self._shards:
            self._shards.gather(unit, plan)
        return [(yield from self._launch(plan, nbytes, label, group=self._inside))]

    def free(self, unit: int) -> Script:
        """See `simdp.strategies.base.Rank`."""
        yield from self.hold("gathered", -self._whole_room(unit, self._stored_itemsize))
        if self._shards:
            self._shards.free(unit)

    def send_owned(
        self, names: Sequence[str], label: str, root: int
    ) -> Generator[Any, None, Launched]:
        """See `simdp.strategies.base.Rank`."""
        nbytes = float(sum(self._sizes[name] for name in names) * self._stored_itemsize)
        plan = self.launcher.plan("broadcast", nbytes, root)
        if self.replicas:
            self.replicas.broadcast(names, plan)
        return (yield from self._launch(plan, nbytes, label))

    @property
    def skipped(self) -> bool:
        """See `simdp.strategies.base.Rank`."""
        return bool(self.records[-1].skipped)

    def agree(self) -> Script:
        """See `simdp.strategies.base.Rank`."""
        workload = self.scenario.workload
        asked = {
            "inf or nan": workload.precision.scaler() is not None,
            "gradient norm": workload.clip_grad_norm is not None,
        }
        for label, needed in asked.items():
            if needed:
                plan = self.launcher.plan("all_reduce", AGREED_NBYTES, group=self._inside)
                call = yield from self._launch(plan, AGREED_NBYTES, label, group=self._inside)
                yield from self.wait([call])

    @property
    def _stored_itemsize(self) -> int:
        workload = self.scenario.workload
        return numpy_dtype(workload.precision.weight_dtype(workload.dtype)).itemsize

    # What is kept, and what an update moves ----------------------------------------------------

    def _by_place(self, count: Any) -> Floats:
        """Count for what each place learns; shape `(world_size,)`."""
        learned = set(self.graph.ready_order)
        of_places = [
            count({name: size for name, size in mine.items() if name in learned})
            for mine in self.partition.owned
        ]
        return self.partition.by_rank(of_places)

    def kept_parameters(self) -> float | Floats:
        if self._dealt is None or self.partition.kept.weights:
            return super().kept_parameters()
        return self._room_of_pieces(self._stored_itemsize)

    def kept_master(self) -> float | Floats:
        workload = self.scenario.workload
        if self._dealt is None or not workload.precision.has_master:
            return super().kept_master()
        if self.partition.owners is None:
            return self._room_of_pieces(workload.itemsize)
        return self.partition.by_rank(
            [
                self.room(size * workload.itemsize for size in mine.values())
                for mine in self.partition.owned
            ]
        )

    def _room_of_pieces(self, itemsize: int) -> float:
        dealt = self.partition
        return self.room(dealt.piece_elements(unit) * itemsize for unit in range(len(dealt.units)))

    def kept_gradient(self, name: str) -> float | Floats:
        if self._dealt is None or self.partition.kept.gradients:
            return super().kept_gradient(name)
        return self._sizes[name] * self.itemsize / self.partition.num_places

    def kept_state(self) -> float | Floats:
        if self._dealt is None:
            return super().kept_state()
        workload = self.scenario.workload

        def state(sizes: dict[str, int]) -> float:
            return self.room(
                size * workload.itemsize
                for name, size in sizes.items()
                for _ in workload.optimizer.for_parameter(name).state_names()
            )

        return self._by_place(state)

    def update_temporaries(self) -> float | Floats:
        if self._dealt is None:
            return super().update_temporaries()
        workload, allocator = self.scenario.workload, self.scenario.cluster.allocator
        return self._by_place(lambda sizes: update_temporaries(workload, sizes, allocator))

    def moved_by_scaling(self) -> float | Floats:
        if self._dealt is None or self.partition.owners is not None:
            return super().moved_by_scaling()
        return self._by_place(lambda sizes: gradient_nbytes_moved(self.scenario.workload, sizes))

    def moved_by_optimizer(self) -> float | Floats:
        if self._dealt is None:
            return super().moved_by_optimizer()
        return self._by_place(lambda sizes: optimizer_nbytes_moved(self.scenario.workload, sizes))

    def launched_by_optimizer(self) -> float | Floats:
        if self._dealt is None:
            return super().launched_by_optimizer()
        return self._by_place(lambda sizes: optimizer_launches(self.scenario.workload, sizes))
