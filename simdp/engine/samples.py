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

# Samples ------------------------------------------------------------------------------------------


class LookedAt(NamedTuple):
    """Shapes of micro-batches, and how much attention looks at.

    Attributes
    ----------
    shapes : list of tuple of Shape
        Of the inputs, per sample: those that differ in this or in their share.
    which : ndarray, shape `(world_size,)`, int64
        Which of them each rank has.
    shares : tuple of float
        The pairs of tokens that a fused attention looks at, as a share of those of one sample of
        that length; empty where it is all of them.
    """

    shapes: list[tuple[Shape, ...]]
    which: Ints
    shares: tuple[float, ...] = ()

    @property
    def key(self) -> tuple[Hashable, ...]:
        """What times are known by."""
        return tuple(self.shapes), self.which.tobytes(), self.shares


class Packed:
    """The pairs of tokens that look at each other in packs.

    Parameters
    ----------
    graph : Graph
        The model's, whose attention says how far a token looks.
    packs : Packs
        The samples.

    Attributes
    ----------
    of_packs : ndarray, shape `(num_packs,)`
        Pairs of each pack.
    """

    def __init__(self, graph: ModelGraph, packs: Packs) -> None:
        from simdp.workload.layers.attention import Attention  # brings layers along

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

    Where one rank has the batch of all and hands out its pieces, that is the whole batch.

    Parameters
    ----------
    scenario : Scenario
        One point; without numerics only lengths are kept.
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
            for name in list(found):  # one by one, so that they are not all there twice
                array = found.pop(name)
                floats = array.dtype.kind == "f"
                self.arrays[name] = array.astype(workload.dtype, copy=False) if floats else array

    def shapes(self, parts: SampleParts) -> tuple[list[tuple[Shape, ...]], Ints]:
        """Shapes of the inputs of the ranks' micro-batches, per sample.

        Parameters
        ----------
        parts : Parts
            The samples of each rank.

        Returns
        -------
        (list of tuple of Shape, ndarray of shape `(world_size,)`)
            Those that differ, each with a shape per input; and which of them each rank has. A rank
            without samples has the full ones.
        """
        found = self.looked_at(parts)
        return found.shapes, found.which

    def _padded(self, parts: SampleParts) -> tuple[list[tuple[Shape, ...]], Ints]:
        """As `shapes`, of samples that are no packs."""
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
        """What the ranks' micro-batches take depends on, beside their numbers of samples.

        Packs of a micro-batch lie in one row, so that each stands for as many tokens as they have
        on average.
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
        """The graph's inputs of a micro-batch, as long as the longest ``among`` others."""
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
    """The input pipelines of all ranks. It starts when a rank asks for its first batch.

    Batch k is made by worker ``k mod w``, once that is done with batch ``k - w`` and the training
    process has taken batch ``k - w p``, as torch's DataLoader hands out its next order whenever a
    batch is taken::

        made(k)   = max(made(k - w), taken(k - w p)) + per_sample * samples
        taken(k)  = max(asked(k), made(k))

    A batch is asked for when the compute stream comes to it. With a pinned copy it is asked for
    as soon as the batch before it is handed over, and copied while that is computed with::

        handed(k) = max(clock, taken(k) + copy)

    Else the compute stream copies: ``handed(k) = taken(k) + copy``.

    Parameters
    ----------
    spec : Input
        The workload's.
    world_size, local_size : int
        Ranks, and ranks of one node.
    """

    def __init__(self, spec: Input, world_size: int, local_size: int) -> None:
        self.spec, self._sharers = spec, min(spec.shared_link, local_size)
        # Without workers nothing can be fetched before it is needed.
        self._fetches = spec.pinned and spec.sample_size > 0 and spec.workers > 0
        self._ahead = spec.workers * spec.prefetch
        self._begin = np.zeros(world_size)
        self._made = np.zeros((max(spec.workers, 1), world_size))
        self._taken = np.zeros((max(self._ahead, 1), world_size))
        self._handed = np.zeros(world_size)

    def hand_over(
        self, number: int, samples: Floats, clock: Floats, ranks: Ints
    ) -> tuple[Floats, Floats]:
        """Hand a batch to each of some ranks, which must take their batches in turn.

        Parameters
        ----------
        number : int
            The batch, from 0.
        samples : ndarray, shape `(num_ranks,)`
            Its samples; 0 where a rank has none.
        clock : ndarray, shape `(num_ranks,)`
            When the compute streams come to it [s].
        ranks : ndarray, shape `(num_ranks,)`, int64
            Who.

        Returns
        -------
        (ndarray, ndarray)
            Until when each compute stream waits, and when it is done with copying [s].
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
            made: Floats = asked + load
            return made
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
