"""Tensors: what those of a micro-batch take on every rank, by how many samples it has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256

import numpy as np

from simdp.arrays import Floats, Ints
from simdp.engine.readers.footprints import Amount, Footprint
from simdp.workload.stages import Tensor


class Tensors:
    """Counts bytes, once for equal micro-batches.

    Parameters
    ----------
    footprint : Footprint
        Knows the allocator.
    """

    def __init__(self, footprint: Footprint) -> None:
        self._footprint = footprint
        self._known: dict[tuple[tuple[Tensor, ...], int | bytes], list[tuple[str, Amount]]] = {}

    def by_part(self, tensors: tuple[Tensor, ...], sizes: Ints) -> list[tuple[str, Amount]]:
        """What tensors take, part by part, where the ranks have so many samples [bytes]."""
        if not tensors:
            return []
        key = (tensors, _told_apart(sizes))  # those of equal blocks are equal
        if key not in self._known:
            found = list[tuple[str, Amount]]()
            for part in dict.fromkeys(tensor.part for tensor in tensors):
                mine = [tensor for tensor in tensors if tensor.part == part]
                found.append((part, for_each(sizes, partial(self.room_of, mine))))
            self._known[key] = found
        return self._known[key]

    def room_of(self, tensors: Sequence[Tensor], num_samples: int) -> float:
        """What tensors take on a rank with so many samples [bytes]."""
        if not num_samples:
            return 0.0
        return self._footprint.room(num_samples * t.per_sample + t.fixed for t in tensors)


def _told_apart(sizes: Ints) -> int | bytes:
    """Something small that tells the ranks' numbers of samples from others."""
    alike = bool((sizes == sizes[0]).all())
    return int(sizes[0]) if alike else sha256(sizes.tobytes()).digest()


def for_each(sizes: Ints, count: Callable[[int], float]) -> Amount:
    """Count for the samples of every rank; one number where all have as many."""
    if (sizes == sizes[0]).all():
        return count(int(sizes[0]))
    different, which = np.unique(sizes, return_inverse=True)
    found: Floats = np.array([count(int(n)) for n in different])[which]
    return found
