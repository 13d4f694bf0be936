"""Batches of each rank, and the pieces of them that devices compute on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simdp.arrays import Array, Floats, Ints
from simdp.engine.ops import LookedAt
from simdp.results.result import MicrobatchPiece
from simdp.scenario.root import Scenario
from simdp.workload.layers.base import ModelGraph, Shape
from simdp.workload.sampling import Packs, SampleParts


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
            arrays = workload.dataset.arrays(self.model, workload.loss, seed, base)
            for name in list(arrays):  # one by one, to limit peak memory
                array = arrays.pop(name)
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
        looked_at = self.looked_at(parts)
        return looked_at.shapes, looked_at.which

    def _padded(self, parts: SampleParts) -> tuple[list[tuple[Shape, ...]], Ints]:
        """As `shapes`, without packs."""
        names, full = self.model.graph.inputs, self.model.known_shapes()
        if not self.lengths:
            return [full], np.zeros(len(parts), dtype=np.int64)
        longest = np.stack([parts.largest(self.lengths[name]) for name in names])
        if self.together:
            longest[:] = longest.max(axis=1, keepdims=True)
        longest[:, parts.sizes == 0] = np.array([shape[0] for shape in full])[:, None]
        lengths, which = np.unique(longest, axis=1, return_inverse=True)
        shapes = [
            tuple((int(n), *shape[1:]) for n, shape in zip(column, full, strict=True))
            for column in lengths.T
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
        unique, which = np.unique(np.stack([length, share]), axis=1, return_inverse=True)
        shapes: list[tuple[Shape, ...]] = [((int(tokens),),) for tokens in unique[0]]
        return LookedAt(shapes, which.reshape(-1), tuple(unique[1].tolist()))

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


def pieces(scenario: Scenario, most: int | None = None) -> Iterator[list[MicrobatchPiece]]:
    """Pieces of every step of one point whose speeds are measured, by micro-step and rank.

    Empty for a model that consists of times, without shapes of samples. ``most`` limits the number
    of ranks; default: all.
    """
    workload, n = scenario.workload, scenario.cluster.world_size
    if workload.model.timed:
        return
    timed = scenario.model_copy(update={"numerics": False})
    samples, output = BatchSamples(timed), workload.graph.outputs[0][0]
    known: dict[tuple[tuple[int, ...], ...], tuple[int, ...]] = {}
    has_indices = samples.has_indices
    steps = workload.batches(n, scenario.seed, scenario.base, has_indices=has_indices)
    for step, batches in enumerate(steps, 1):
        pieces_of_step = []
        for micro_step, parts in enumerate(batches.micro):
            shapes, which = samples.shapes(parts)
            for rank, size in enumerate(parts.sizes[:most].tolist()):
                shape = shapes[which[rank]]
                if shape not in known:
                    known[shape] = workload.graph.shapes(shape)[output]
                inputs = tuple((size, *size_of_dim) for size_of_dim in shape) if size else ()
                pieces_of_step.append(
                    MicrobatchPiece(step, micro_step, rank, inputs, (size, *known[shape]))
                )
        yield pieces_of_step
