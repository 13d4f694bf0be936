"""Compressing: comm hooks that keep something from step to step, and averages of weights."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from simdp.arrays import Floats
from simdp.engine.buffers import FlatBuffers
from simdp.engine.cohort.base import Ranks
from simdp.engine.cohort.buckets import FlatBucket
from simdp.engine.compression import largest
from simdp.engine.compression.kernels import (
    Kernel,
    entrywise,
    orthonormal,
    product,
    seconds,
    selection,
)
from simdp.engine.compression.largest import Entries, Largest
from simdp.engine.compression.low_rank import LowRank, Thin
from simdp.engine.launcher import Launched
from simdp.engine.ops import Work
from simdp.strategies.base import Bucket, Factored, Factoring, Script, Selected
from simdp.workload.precision.rounding import numpy_dtype

PLACE_ITEMSIZE, LONG_PLACE_ITEMSIZE = 4, 8
"""An entry's place in its bucket is an int32, or an int64 where that does not reach."""


class Taken(NamedTuple):
    """A bucket that has been taken apart."""

    bucket: FlatBucket
    factoring: Factoring
    label: str
    rest: FlatBucket
    p: FlatBucket
    q: FlatBucket
    thin: Thin | None
    temporary: float


class Chosen(NamedTuple):
    """The entries of a bucket that the ranks send; ``nbytes`` are those of one rank."""

    bucket: FlatBucket
    label: str
    num_entries: int
    nbytes: float
    entries: list[Entries] | None


class Compressing(Ranks):
    """What comm hooks do to buckets, and local SGD to weights."""

    @cached_property
    def _low_rank(self) -> LowRank:
        return LowRank(self.world_size, self.scenario.seed)

    @cached_property
    def _largest(self) -> Largest:
        return Largest()

    @property
    def _sent_dtype(self) -> str:
        workload = self.scenario.workload
        return workload.precision.gradient_dtype(workload.dtype)

    def _compress(self, name: str, kernels: Iterable[Kernel]) -> Work:
        return Work(self.step, "compress", name, self._kernel_seconds(kernels))

    def _kernel_seconds(self, kernels: Iterable[Kernel]) -> Floats:
        return seconds(kernels, self.roofline, self._sent_dtype)

    # PowerSGD ------------------------------------------------------------------------------------

    def take_factors(
        self, bucket: Bucket, factoring: Factoring, label: str
    ) -> Generator[Any, None, Taken]:
        """See `simdp.strategies.base.Rank`."""
        assert isinstance(bucket, FlatBucket)
        thin = None
        if bucket.buffers:
            thin = self._low_rank.take(bucket.buffers, factoring)
        factors = factoring.factors
        rest = self._thin(factoring.rest, self._elements(factoring.rest), thin and thin.rest)
        names = [factor.name for factor in factors]
        p = self._thin(names, sum(f.rows * f.rank for f in factors), thin and thin.p)
        q = self._thin(names, sum(f.columns * f.rank for f in factors), thin and thin.q)
        # A copy of what is to be sent, from which the error will follow; and what goes as it is.
        temporary = rest.nbytes + factoring.error_feedback * bucket.nbytes
        taken = Taken(bucket, factoring, label, rest, p, q, thin, temporary)
        yield from self.hold("temporary", temporary)
        yield self._compress(f"{label} P", self._kernels_before(taken))
        return taken

    def _thin(
        self, names: Sequence[str], num_elements: int, buffers: FlatBuffers | None
    ) -> FlatBucket:
        nbytes = float(num_elements * numpy_dtype(self._sent_dtype).itemsize)
        return FlatBucket(nbytes, False, tuple(names), buffers)

    def _elements(self, names: Iterable[str]) -> int:
        return sum(self._sizes[name] for name in names)

    def _kernels_before(self, taken: Taken) -> list[Kernel]:
        """Up to the products P = M Q.

        The error is added (two buffers read, one written) and the sum copied; what travels as it is
        is copied into a buffer.
        """
        factoring, itemsize = taken.factoring, self.itemsize
        found = []
        if factoring.error_feedback:
            found.append(entrywise(taken.bucket.nbytes, 5, 2))
        if taken.rest.nbytes:
            found.append(entrywise(taken.rest.nbytes, 2))
        for batch, rows, columns, rank in _shapes(factoring):
            if batch > 1:
                found.append(entrywise(float(batch * rows * columns * itemsize), 2))
            found.append(orthonormal(columns, rank, itemsize, factoring.epsilon, batch))
            found.append(product(rows, columns, rank, itemsize, batch))
        return found

    def unpacking_seconds(self, factored: Factored) -> float:
        """See `simdp.strategies.base.Rank`."""
        assert isinstance(factored, Taken)
        # They are divided, and copied back one by one.
        nbytes, tensors = factored.rest.nbytes, len(factored.factoring.rest)
        return float(self._kernel_seconds([entrywise(nbytes, 4, 1 + tensors)]).max())

    def turn_factors(self, factored: Factored) -> float:
        """See `simdp.strategies.base.Rank`."""
        assert isinstance(factored, Taken)
        factoring, found = factored.factoring, list[Kernel]()
        if factored.thin and factored.bucket.buffers:
            self._low_rank.turn(factored.bucket.buffers, factoring, factored.thin)
        for batch, rows, columns, rank in _shapes(factoring):
            found.append(orthonormal(rows, rank, self.itemsize, factoring.epsilon, batch))
            found.append(product(columns, rows, rank, self.itemsize, batch))
        return float(self._kernel_seconds(found).max())

    def join_factors(self, factored: Factored, divisor: float) -> Script:
        """See `simdp.strategies.base.Rank`."""
        assert isinstance(factored, Taken)
        factoring, found = factored.factoring, list[Kernel]()
        if factored.thin and factored.bucket.buffers:
            self._low_rank.join(factored.bucket.buffers, factoring, factored.thin, divisor)
        if factored.q.nbytes:
            found.append(entrywise(factored.q.nbytes, 2))
        elif factored.rest.nbytes:  # no later all_reduce has waited until it was unpacked
            found.append(entrywise(factored.rest.nbytes, 4, 1 + len(factoring.rest)))
        for batch, rows, columns, rank in _shapes(factoring):
            found.append(product(rows, rank, columns, self.itemsize, batch))
            if batch > 1:
                found.append(entrywise(float(batch * rows * columns * self.itemsize), 2, batch))
        if factoring.error_feedback:
            found.append(entrywise(factored.bucket.nbytes, 3))
        yield self._compress(f"{factored.label} P Q", found)
        yield from self.hold("temporary", -factored.temporary)

    # Top-k ---------------------------------------------------------------------------------------

    def select(
        self, bucket: Bucket, ratio: float, divisor: float, error_feedback: bool, label: str
    ) -> Generator[Any, None, Chosen]:
        """See `simdp.strategies.base.Rank`."""
        assert isinstance(bucket, FlatBucket)
        elements, entries = self._elements(bucket.names), None
        count = max(1, round(ratio * elements))
        if bucket.buffers:
            entries = self._largest.select(bucket.buffers, count, divisor, error_feedback)
        short = elements <= np.iinfo(np.int32).max
        entry = self.itemsize + (PLACE_ITEMSIZE if short else LONG_PLACE_ITEMSIZE)
        kernels = selection(bucket.nbytes, self.itemsize, count, entry)
        if error_feedback:  # the error is added; what is chosen is then set to 0 in the sum
            kernels = [entrywise(bucket.nbytes, 3), *kernels, entrywise(float(count * entry), 1)]
        chosen = Chosen(bucket, label, count, float(count * entry), entries)
        yield from self.hold("temporary", chosen.nbytes * self.world_size)
        yield self._compress(f"{label} top k", kernels)
        return chosen

    def all_gather_selected(
        self, selected: Selected, label: str, wait: float
    ) -> Generator[Any, None, Launched]:
        """See `simdp.strategies.base.Rank`."""
        assert isinstance(selected, Chosen)
        nbytes = selected.nbytes * self.world_size
        plan = self.launcher.plan("all_gather", nbytes)
        return (yield from self._launch(plan, nbytes, label, wait))

    def add_selected(self, selected: Selected) -> Script:
        """See `simdp.strategies.base.Rank`."""
        assert isinstance(selected, Chosen)
        bucket, n = selected.bucket, self.world_size
        if selected.entries and bucket.buffers:
            largest.add(selected.entries, bucket.buffers)
        # The bucket is cleared; each rank's entries are read and added, by a kernel of their own.
        added = selected.nbytes + 2.0 * selected.num_entries * self.itemsize
        yield self._compress(
            f"{selected.label} sum", [entrywise(bucket.nbytes, 1), _each(added, n)]
        )
        yield from self.hold("temporary", -selected.nbytes * n)

    # Local SGD -----------------------------------------------------------------------------------

    def average_weights(self, copies: bool) -> Script:
        """See `simdp.strategies.base.Rank`."""
        workload = self.scenario.workload
        # With master weights these are averaged, or the next update would undo it.
        nbytes = float(self._elements(self._sizes) * workload.itemsize)
        plan = self.launcher.plan("all_reduce", nbytes)
        yield from self.hold("temporary", nbytes)
        if self.replicas:
            self.replicas.trainer.average(plan)
        if copies:
            yield self._copy("weights", nbytes)
        call = yield from self._launch(plan, nbytes, "weights")
        yield from self.wait([call])
        if copies:
            yield self._copy("weights", nbytes)
        yield from self.hold("temporary", -nbytes)


def _each(nbytes: float, times: int) -> Kernel:
    return Kernel(0.0, nbytes * times, times)


def _shapes(factoring: Factoring) -> list[tuple[int, int, int, int]]:
    """How many matrices a kernel works on, their rows and columns, and the rank."""
    found: dict[tuple[int, int, int], int] = {}
    for factor in factoring.factors:
        key = (factor.rows, factor.columns, factor.rank)
        found[key] = found.get(key, 0) + 1
    if factoring.batched:
        return [(batch, *shape) for shape, batch in found.items()]
    return [(1, *shape) for shape, batch in found.items() for _ in range(batch)]
