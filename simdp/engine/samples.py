"""Batches of each rank, and the DataLoader's pipeline."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

import numpy as np

from simdp.arrays import Array, Floats, Ints
from simdp.scenario import Scenario
from simdp.workload.compute import Input
from simdp.workload.layers.base import ModelGraph, Shape
from simdp.workload.sampling import Packs, SampleParts

# BatchSamples -------------------------------------------------------------------------------------


class LookedAt(NamedTuple):
    """Shapes of micro-batches, and their attended token pairs.

    ``shapes`` are the different ones per sample, ``which`` the index of each rank's; ``shares`` are
    the fractions of the token pairs of one sample of that length that fused attention computes
    (empty if 1).
    """

    shapes: list[tuple[Shape, ...]]
    which: Ints
    shares: tuple[float, ...] = ()

    @property
    def key(self) -> tuple[Hashable, ...]:
        """Cache key of times."""
        return tuple(self.shapes), self.which.tobytes(), self.shares


class Packed:
    """Attended token pairs of packs, shape `(num_packs,)`."""

    def __init__(self, graph: ModelGraph, packs: Packs) -> None:
        from simdp.workload.layers.attention import Attention  # imports layers

        layers = [call.layer for call in graph.calls if isinstance(call.layer, Attention)]
        self._attention = layers[0] if layers else None
        self.of_packs: Floats = np.add.reduceat(self.of(packs.pieces), packs.first)

    def of(self, lengths: Ints) -> Floats:
        """Pairs of samples of some lengths."""
        known, which = np.unique(lengths, return_inverse=True)
        if self._attention is None:
            return lengths.astype(float) ** 2
        return np.array([self._attention.pairs(n, n) for n in known.tolist()])[which]


class BatchSamples:
    """The data set of one point. Padded samples are cut to the longest of their micro-batch.

    If one rank scatters the batch of all, that is the whole batch. Without numerics only lengths
    are kept.
    """

    def __init__(self, scenario: Scenario) -> None:
        workload, seed, base = scenario.workload, scenario.seed, scenario.base
        self.model = workload.model
        self.together = scenario.program.scatters
        self.lengths = workload.lengths(seed, base)
        packs = workload.packs(base)
        self._packed = None if packs is None else Packed(workload.graph, packs)
        self.arrays: dict[str, Array] = {}
        if scenario.numerics:
            found = workload.dataset.arrays(self.model, workload.loss, seed, base)
            for name in list(found):  # one by one, to limit peak memory
                array = found.pop(name)
                floats = array.dtype.kind == "f"
                self.arrays[name] = array.astype(workload.dtype, copy=False) if floats else array

    @property
    def has_indices(self) -> bool:
        """Whether it matters which samples a step has, and not only how many."""
        return bool(self.arrays or self.lengths)

    def shapes(self, parts: SampleParts) -> tuple[list[tuple[Shape, ...]], Ints]:
        """Different shapes of the ranks' micro-batches, per sample and input; index of each rank's.

        A rank without samples has full length.
        """
        found = self.looked_at(parts)
        return found.shapes, found.which

    def _padded(self, parts: SampleParts) -> tuple[list[tuple[Shape, ...]], Ints]:
        """As `shapes`, without packs."""
        names, full = self.model.graph.inputs, self.model.known_shapes()
        if not self.lengths:
            return [full], np.zeros(len(parts), dtype=np.int64)
        longest = np.stack([parts.largest(self.lengths[name]) for name in names])
        if self.together:
            longest[:] = longest.max(axis=1, keepdims=True)
        longest[:, parts.sizes == 0] = np.array([shape[0] for shape in full])[:, None]
        found, which = np.unique(longest, axis=1, return_inverse=True)
        shapes = [
            tuple((int(n), *shape[1:]) for n, shape in zip(column, full, strict=True))
            for column in found.T
        ]
        return shapes, which.reshape(-1)

    def looked_at(self, parts: SampleParts) -> LookedAt:
        """Shapes and attended pairs of the ranks' micro-batches, on which their times depend.

        Packs of a micro-batch count with their mean number of tokens.
        """
        if self._packed is None:
            return LookedAt(*self._padded(parts))
        ((full,),) = self.model.known_shapes()
        sizes = np.maximum(parts.sizes, 1)
        length = -(-parts.totals(self.lengths["x"]) // sizes)
        length[parts.sizes == 0] = full
        squares = sizes * self._packed.of(length)
        share = np.where(parts.sizes > 0, parts.totals(self._packed.of_packs) / squares, 1.0)
        found, which = np.unique(np.stack([length, share]), axis=1, return_inverse=True)
        shapes: list[tuple[Shape, ...]] = [((int(one),),) for one in found[0]]
        return LookedAt(shapes, which.reshape(-1), tuple(found[1].tolist()))

    def _longest(self, name: str, part: Ints) -> int:
        return int(self.lengths[name][part].max())

    def inputs(self, part: Ints, among: Ints | None = None) -> list[Array]:
        """The graph's inputs of a micro-batch, cut to the longest ``among`` some samples."""
        return [self._cut(name, name, part, among) for name in self.model.graph.inputs]

    def target(self, part: Ints, among: Ints | None = None) -> Array:
        """The targets of a micro-batch, cut as its inputs."""
        return self._cut("y", self.model.target_follows, part, among)

    def _cut(self, name: str, like: str | None, part: Ints, among: Ints | None) -> Array:
        array, others = self.arrays[name], part if among is None else among
        if self.lengths and like is not None and len(others):
            array = array[:, : self._longest(like, others)]
        return array[part]


class Pipeline:
    """The input pipelines of all ranks, which start at the first request.

    Batch k is made by worker ``k mod w`` of w, after its batch ``k - w`` and after the training
    process
    has taken batch ``k - w p`` (p: prefetch), since torch's DataLoader issues its next order
    whenever a
    batch is taken::

        made(k)   = max(made(k - w), taken(k - w p)) + per_sample * samples
        taken(k)  = max(asked(k), made(k))

    The compute stream requests a batch when it needs it. With a pinned copy it is requested when
    the
    previous batch is handed over, and copied during compute::

        handed(k) = max(clock, taken(k) + copy)

    Otherwise the compute stream copies: ``handed(k) = taken(k) + copy``.

    Parameters
    ----------
    spec : Input
        The workload's.
    world_size, local_size : int
        Ranks, and ranks of one node.
    """

    def __init__(self, spec: Input, world_size: int, local_size: int) -> None:
        self.spec, self._sharers = spec, min(spec.shared_link, local_size)
        # Without workers there is no prefetch.
        self._fetches = spec.pinned and spec.sample_size > 0 and spec.workers > 0
        self._ahead = spec.workers * spec.prefetch
        self._begin = np.zeros(world_size)
        self._made = np.zeros((max(spec.workers, 1), world_size))
        self._taken = np.zeros((max(self._ahead, 1), world_size))
        self._handed = np.zeros(world_size)

    def hand_over(
        self, number: int, samples: Floats, clock: Floats, ranks: Ints
    ) -> tuple[Floats, Floats]:
        """Hand a batch to some ranks; each rank's batches come in order.

        ``number`` is that of the batch, from 0; ``samples`` are each rank's, maybe 0; ``clock`` is
        the instant at which its compute stream needs it [s]. Returns the end of each compute
        stream's wait, and of its copy [s].
        """
        if number == 0:
            self._begin[ranks] = clock
        asked = self._handed[ranks] if self._fetches and number else clock
        taken = np.maximum(asked, self._batch_made(number, samples, asked, ranks))
        if self._ahead:
            self._taken[number % self._ahead, ranks] = taken
        copy = self._copy_time(samples)
        there, end = taken, taken + copy
        if self._fetches or (self.spec.pinned and not self.spec.workers):
            there = end = np.maximum(clock, end)
        self._handed[ranks] = end
        return there, end

    def _batch_made(self, number: int, samples: Floats, asked: Floats, ranks: Ints) -> Floats:
        workers, load = self.spec.workers, self.spec.per_sample * samples
        if not workers:
            return asked + load
        free = self._begin[ranks]
        if number >= workers:
            free = self._made[number % workers, ranks]
        if number >= self._ahead:
            free = np.maximum(free, self._taken[number % self._ahead, ranks])
        self._made[number % workers, ranks] = free + load
        return free + load

    def _copy_time(self, samples: Floats) -> Floats:
        sizes, which = np.unique(samples, return_inverse=True)
        each = [self.spec.copy_time(float(size), self._sharers) for size in sizes]
        return np.array(each)[which]
