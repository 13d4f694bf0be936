"""Buckets: gradients that travel together, and tensors that a root gives to all."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

from simdp.engine import payload
from simdp.engine.buffers import FlatBuffers
from simdp.engine.cohort.base import Ranks
from simdp.engine.launcher import Launched
from simdp.strategies.base import Bucket, Script, Tensor
from simdp.workload.precision.rounding import numpy_dtype


class FlatBucket(NamedTuple):
    """A bucket: its size on the wire, and its arrays where there are numerics."""

    nbytes: float
    compressed: bool
    names: tuple[str, ...]
    buffers: FlatBuffers | None


class Buckets(Ranks):
    """What replicas send each other."""

    def bucket(self, names: Sequence[str], compress: str | None = None) -> FlatBucket:
        """See `simdp.strategies.base.Rank`."""
        workload = self.scenario.workload
        dtype = compress or workload.precision.gradient_dtype(workload.dtype)
        elements = sum(self._sizes[name] for name in names)
        buffers = self.replicas.flat_buffers(names, dtype) if self.replicas else None
        nbytes = float(elements * numpy_dtype(dtype).itemsize)
        return FlatBucket(nbytes, compress is not None, tuple(names), buffers)

    def fill(self, bucket: Bucket, name: str, divisor: float, copies: bool) -> Script:
        """See `simdp.strategies.base.Rank`."""
        assert isinstance(bucket, FlatBucket)
        if self.replicas and bucket.buffers:
            self.replicas.fill(bucket.buffers.views(name), name, divisor, bucket.compressed)
        if self.overheads.hook:
            yield self._host("hook", self._per_hook)
        if copies:
            yield self._copy(name, self._sizes[name] * self.itemsize)

    def empty(self, bucket: Bucket, copies: bool, divisor: float = 1.0) -> Script:
        """See `simdp.strategies.base.Rank`."""
        assert isinstance(bucket, FlatBucket)
        if self.replicas and bucket.buffers:
            self.replicas.empty(bucket.buffers, divisor)
        if copies:
            elements = sum(self._sizes[name] for name in bucket.names)
            yield self._copy("gradients", float(elements * self.itemsize))

    def all_reduce(
        self, bucket: Bucket, label: str, wait: float = 0.0, delay: float = 0.0
    ) -> Generator[Any, None, Launched]:
        """See `simdp.strategies.base.Rank`."""
        assert isinstance(bucket, FlatBucket)
        plan = self.launcher.plan("all_reduce", bucket.nbytes)
        if bucket.buffers:
            payload.run(plan, bucket.buffers.flat)
        return (yield from self._launch(plan, bucket.nbytes, label, wait, delay=delay))

    def all_reduce_seconds(self, nbytes: float) -> float:
        """See `simdp.strategies.base.Rank`."""
        return self.launcher.predicted("all_reduce", nbytes)

    def all_reduce_bytes(self, nbytes: float, label: str) -> Generator[Any, None, Launched]:
        """See `simdp.strategies.base.Rank`."""
        plan = self.launcher.plan("all_reduce", nbytes)
        return (yield from self._launch(plan, nbytes, label))

    def broadcast(
        self, tensors: Sequence[Tensor], label: str, root: int = 0, group: str | None = None
    ) -> Script:
        """See `simdp.strategies.base.Rank`."""
        nbytes = float(sum(tensor.num_elements * self.itemsize_of(tensor) for tensor in tensors))
        plan = self.launcher.plan("broadcast", nbytes, root, group)
        if self.replicas:
            self.replicas.broadcast([tensor.name for tensor in tensors], plan)
        call = yield from self._launch(plan, nbytes, label, group=group)
        yield from self.wait([call])
