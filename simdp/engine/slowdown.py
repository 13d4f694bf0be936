"""Slowdown of ranks by stragglers, and noise of step times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from simdp.arrays import Array, Floats, Ints
from simdp.cluster import Cluster
from simdp.cluster.stragglers import Pause
from simdp.results.metrics import Squares
from simdp.rng import stream

SLOWED = frozenset({"forward", "backward", "host"})
"""Activities that stragglers slow down."""


class Slowdown:
    """Effects of a cluster's stragglers on the compute time of its ranks."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.stragglers, self.seed = cluster.stragglers, seed
        self.world_size = cluster.world_size
        nodes = np.arange(self.world_size) // cluster.local_size
        self._lasting = np.ones(self.world_size)
        for number, straggler in enumerate(cluster.stragglers):
            random = stream(seed, "straggler", number, "lasting")
            self._lasting *= straggler.lasting(nodes, random)
        self._stops: dict[int, list[Pause]] = {}
        for straggler in cluster.stragglers:
            if isinstance(straggler, Pause) and straggler.on_the_clock():
                self._stops.setdefault(straggler.rank, []).append(straggler)

    @property
    def has_stops(self) -> bool:
        """Whether a rank pauses at certain instants, so that durations depend on the clock."""
        return bool(self._stops)

    def factors(self, step: int) -> Floats:
        """Factor on each rank's compute time in a step, shape `(world_size,)`."""
        product = self._lasting.copy()
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

    def finish(self, start: Floats, seconds: Floats, ranks: Ints) -> Floats:
        """Ends of work [s]: ``start + seconds`` on some ranks, later by pauses in between."""
        end = start + seconds
        for rank, pauses in self._stops.items():
            for index in np.flatnonzero((ranks == rank) & (seconds > 0)):
                end[index] = _work_between(pauses, float(start[index]), float(seconds[index]))
        return end


def _work_between(pauses: list[Pause], start: float, seconds: float) -> float:
    """End of work that several periodic pauses interrupt [s]."""
    if len(pauses) == 1:
        return pauses[0].finish(start, seconds)
    now, left = start, seconds
    while True:
        windows = [pause.window(now) for pause in pauses]
        inside = [end for begin, end in windows if begin <= now]
        if inside:
            now = max(inside)
            continue
        until = min(begin for begin, _ in windows)
        if now + left <= until:
            return now + left
        now, left = until, left - (until - now)


def squares(
    gradients: Sequence[Mapping[str, Array]], sizes: Ints, loss_scale: float
) -> Squares | None:
    """Squared norms of the ranks' gradients of a step, and of their mean.

    ``sizes`` are each rank's samples; ``loss_scale`` is a factor on all gradients. None where ranks
    have unequal shares of the step, or a gradient is not finite.
    """
    n = len(gradients)
    if n < 2 or len(set(sizes.tolist())) != 1 or not sizes[0]:
        return None
    small = large = 0.0
    for name in dict.fromkeys(name for own in gradients for name in own):
        parts = [own[name].astype(np.float64) for own in gradients if name in own]
        small += sum(float(np.vdot(part, part)) for part in parts) / n
        mean = sum(parts) / n
        large += float(np.vdot(mean, mean))
    if not np.isfinite(small):
        return None
    scale = loss_scale**2
    return Squares(small / scale, large / scale, int(sizes[0]), int(sizes.sum()))
