"""Samples: the data of a run, and what a rank is given of it."""

from __future__ import annotations

import numpy as np

from simdp.arrays import Array, Ints
from simdp.scenario import Scenario
from simdp.workload.layers.base import Shape
from simdp.workload.sampling import Parts


class Samples:
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
        self.arrays: dict[str, Array] = {}
        if scenario.numerics:
            found = workload.dataset.arrays(self.model, workload.loss, seed, base)
            for name in list(found):  # one by one, so that they are not all there twice
                array = found.pop(name)
                floats = array.dtype.kind == "f"
                self.arrays[name] = array.astype(workload.dtype, copy=False) if floats else array

    def shapes(self, parts: Parts) -> tuple[list[tuple[Shape, ...]], Ints]:
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
