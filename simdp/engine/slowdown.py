"""Slowdown: all stragglers of a cluster together, as the clocks need them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simdp.cluster import Cluster
from simdp.cluster.stragglers.pause import Pause
from simdp.rng import stream

Floats = NDArray[np.float64]


class Slowdown:
    """What the stragglers of a cluster do to the compute time of its ranks.

    Parameters
    ----------
    cluster : Cluster
        Its stragglers.
    seed : int
        Of the scenario.
    """

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.stragglers, self.seed = cluster.stragglers, seed
        self.world_size = cluster.world_size
        self._stops = [s for s in cluster.stragglers if isinstance(s, Pause)]

    def factors(self, step: int) -> Floats:
        """Factor on each rank's compute time in a step, shape `(world_size,)`."""
        product = np.ones(self.world_size)
        for number, straggler in enumerate(self.stragglers):
            random = stream(self.seed, "straggler", number, step)
            product *= straggler.slowdown(step, self.world_size, random)
        return product

    def lost(self, step: int) -> Floats:
        """Time that each rank loses once in a step, shape `(world_size,)` [s]."""
        total = np.zeros(self.world_size)
        for straggler in self.stragglers:
            total += straggler.lost(step, self.world_size)
        return total

    def finish(self, start: Floats, seconds: Floats, ranks: NDArray[np.int64]) -> Floats:
        """Instants at which work ends; arguments as in `Straggler.finish`."""
        end = start + seconds
        for straggler in self._stops:  # only pauses on the clock depend on the instant
            end = np.maximum(end, straggler.finish(start, seconds, ranks))
        return end
